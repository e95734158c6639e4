"""From values to what the codec carries: MessagePack's own types and extensions, with large buffers beside them."""

from __future__ import annotations

import array
import datetime
import decimal
import enum
import fractions
import pathlib
import sys
import uuid
import zoneinfo
from collections.abc import Callable, Collection, Sequence
from typing import Any, Final

import msgspec
from msgspec.msgpack import Ext

from shmrpc import _core
from shmrpc.values import arrays, buffers, extensions, fields, pickling, registry, standard, tables, tensors
from shmrpc.values.unsendable import unsupported

Writer = Callable[[Any, "Packing"], Any]

#: What is an array to the codec.
_ARRAYS: Final = (list, tuple, set, frozenset)
#: Types that are remembered: more than a program has, unless it makes them as it runs.
_MAX_TYPES: Final = 4096


class Unlowered(OverflowError):
    """The codec has met something that it does not carry where by its declared type nothing such can be.

    An OverflowError, as for an integer that is too large: after it the value is lowered, every field of it.
    """


class ExtKey:
    """An extension that is the key of a map: `Ext` itself cannot be hashed."""

    __slots__ = ("ext",)

    def __init__(self, ext: Ext) -> None:
        self.ext = ext


def enc_hook(value: Any) -> Any:
    """For the codec: what it writes for a value that it does not know."""
    if type(value) is ExtKey:
        return value.ext
    raise Unlowered(str(unsupported(value)))


class Packing:
    """One value on its way into a body, and the buffers that travel beside it."""

    __slots__ = ("_classify", "_depth", "_held", "_places", "_writers", "buffers", "pack", "thorough")

    def __init__(self, lowering: Lowering, *, thorough: bool) -> None:
        """``thorough``: to look also where by the declared types nothing can be found."""
        self.thorough = thorough
        self.buffers: list[Any] = []
        #: Bytes for a value that has been lowered.
        self.pack = lowering.pack
        self._writers = lowering.writers
        self._classify = lowering.classify
        self._depth = 0
        self._places: dict[int, int] = {}
        self._held: list[Any] = []

    def lower(self, value: Any) -> Any:
        """What the codec carries in its place: the very same object if it carries that."""
        return (self._writers.get(type(value)) or self._classify(value))(value, self)

    def extension(self, code: int, content: Any) -> Ext:
        """An extension that holds a value. Of a tuple or a set: an array of its elements."""
        if self._depth == extensions.MAX_DEPTH:
            raise RecursionError(
                f"more than {extensions.MAX_DEPTH} tuples, sets or registered objects in each other cannot be sent"
            )
        self._depth += 1
        plain = self.lower_items(content) if isinstance(content, _ARRAYS) else self.lower(content)
        made = Ext(code, self.pack(plain))
        self._depth -= 1
        return made

    def lower_items(self, items: Collection[Any]) -> Collection[Any]:
        """The same for each element: the very same collection if the codec carries them all, else a list."""
        writers, classify, changed = self._writers, self._classify, None
        for index, item in enumerate(items):
            writer = writers.get(type(item)) or classify(item)
            if writer is not _same:
                plain = writer(item, self)
                if plain is not item:
                    if changed is None:
                        changed = list(items)
                    changed[index] = plain
        return items if changed is None else changed

    def place(self, owner: Any, memory: Any) -> int:
        """The place of a buffer beside the body. ``owner``: that whose it is; one that comes twice travels once."""
        place = self._places.get(id(owner))
        if place is None:
            place = self._places[id(owner)] = len(self.buffers)
            self.buffers.append(memory)
            self._held.append(owner)
        return place

    def key(self, value: Any) -> Any:
        """The same for a map's key. A tuple stays MessagePack's own array, which is read as a tuple there."""
        kind = type(value)
        if kind in _PLAIN_KEYS:
            return value
        if kind is tuple:
            return tuple([self.key(item) for item in value])
        lowered = self.lower(value)
        if type(lowered) is Ext:
            return ExtKey(lowered)
        try:
            hash(lowered)
        except TypeError:
            raise TypeError(f"a dict with a key of type {kind.__qualname__} cannot be sent") from None
        return lowered


class _InlinePacking(Packing):
    """The same with nothing beside the body."""

    __slots__ = ()

    def place(self, owner: Any, memory: Any) -> Any:
        """The buffer's bytes."""
        return memoryview(memory).tobytes()


class Lowering:
    """Writes values for one codec."""

    def __init__(self, pack: Callable[[Any], bytes], *, pickled: bool) -> None:
        """``pack``: bytes of what the codec carries; ``pickled``: whether what cannot travel otherwise is pickled."""
        self.pack = pack
        self._pickled = pickled
        #: By type; for some the very first value had to be looked at.
        self.writers: dict[type, Writer] = dict(_EXACT)
        #: How often they were forgotten.
        self._changes = 0

    def lower(self, value: Any) -> bytes | _core.Parcel:
        """The body for a value."""
        return self._body(value, Packing.lower)

    def lower_all(self, values: Sequence[Any]) -> bytes | _core.Parcel:
        """The body for an array of values."""
        return self._body(values, _lower_each)

    def lower_inline(self, value: Any) -> bytes:
        """The bytes for a value, large buffers among them."""
        return self._packed(value, Packing.lower, _InlinePacking)[0]

    def _body(self, value: Any, lower: Callable[[Packing, Any], Any]) -> bytes | _core.Parcel:
        body, buffers = self._packed(value, lower, Packing)
        return _core.Parcel(body, buffers) if buffers else body

    def _packed(self, value: Any, lower: Callable[[Packing, Any], Any], make: type[Packing]) -> tuple[bytes, list[Any]]:
        try:
            packing = make(self, thorough=False)
            body = self.pack(lower(packing, value))
        except OverflowError:
            packing = make(self, thorough=True)
            try:
                body = self.pack(lower(packing, value))
            except Unlowered as error:
                raise TypeError(str(error)) from None
        return body, packing.buffers

    def is_plain(self, kind: type) -> bool | tuple[tuple[str, ...], tuple[str, ...]]:
        """Whether the codec carries instances of a class as they are.

        Two tuples: those that have the first of these fields themselves, and something plain in the second ones.
        """
        if kind in (msgspec.Raw, Ext):
            return True
        if registry.entry_of(kind) is not None:
            return False
        names = fields.names_of(kind)
        if names is not None:
            looked_at = fields.class_defaults(kind, names), fields.loose_names(kind, names)
            return not self._pickles(kind) and (looked_at if any(looked_at) else True)
        return issubclass(kind, enum.Enum) and not self._pickled and fields.is_closed(kind)

    def forget(self) -> None:
        """Types are looked at anew: something has been registered."""
        self._changes += 1
        self.writers.clear()
        self.writers.update(_EXACT)

    def classify(self, value: Any) -> Writer:
        """What writes values of this one's type."""
        kind, changes = type(value), self._changes
        if len(self.writers) >= _MAX_TYPES:
            self.forget()
        writer = self._writer_for(value, kind)
        if changes == self._changes:  # Else it may have been registered meanwhile.
            self.writers[kind] = writer
        return writer

    def _writer_for(self, value: Any, kind: type) -> Writer:
        entry = registry.entry_of(kind)
        if entry is not None:
            return registry.writer(entry)
        if kind in _EXACT:  # Which it was not a moment ago: another thread has just forgotten all.
            return _EXACT[kind]
        writer = _of_libraries(value, kind, pickled=self._pickled)
        if writer is not None:
            return writer
        base = next((base for base in _BASES if issubclass(kind, base)), None)
        names = fields.names_of(kind)
        if self._pickles(kind) and (names is not None or base not in (None, pathlib.PurePath)):
            return pickling.write_pickle
        if base is not None:
            return _BASES[base]
        if names is not None:
            return fields.writer(kind, names)
        return _foreign(value) or (pickling.write_pickle if self._pickled else _refuse)

    def _pickles(self, kind: type) -> bool:
        """Whether instances of a class with fields are pickled: not those that our own frames are made of."""
        return self._pickled and not kind.__module__.startswith("shmrpc.")


def _lower_each(packing: Packing, values: Sequence[Any]) -> list[Any]:
    return [packing.lower(value) for value in values]


def _same(value: Any, packing: Packing) -> Any:
    return value


def _write_list(value: list[Any], packing: Packing) -> Any:
    return packing.lower_items(value)


def _write_dict(value: dict[Any, Any], packing: Packing) -> Any:
    writers, classify, changed = packing._writers, packing._classify, None
    for key, item in value.items():
        writer = writers.get(type(item)) or classify(item)
        if writer is not _same:
            plain = writer(item, packing)
            if plain is not item:
                if changed is None:
                    changed = dict(value)
                changed[key] = plain
    result = value if changed is None else changed
    if _PLAIN_KEYS.issuperset(map(type, result)):
        return result
    return {packing.key(key): item for key, item in result.items()}


def _write_enum(value: enum.Enum, packing: Packing) -> Any:
    return packing.lower(value._value_)


def _write_text(value: str, packing: Packing) -> str:
    return str.__str__(value)


def _write_float(value: float, packing: Packing) -> float:
    return float.__float__(value)


def _write_derived_int(value: int, packing: Packing) -> Any:
    return standard.write_integer(int.__int__(value), packing)


def _refuse(value: Any, packing: Packing) -> Any:
    raise unsupported(value)


def _of_libraries(value: Any, kind: type, *, pickled: bool) -> Writer | None:
    """The writer for a type of NumPy, PyTorch or pyarrow: each is asked only if the program has imported it."""
    numpy, torch, pyarrow = map(sys.modules.get, ("numpy", "torch", "pyarrow"))
    if issubclass(kind, getattr(numpy, "ndarray", ())):
        if pickled:
            return _write_array_or_pickle if kind in (numpy.ndarray, numpy.memmap) else pickling.write_pickle  # type: ignore[union-attr]
        masked = issubclass(kind, getattr(sys.modules.get("numpy.ma"), "MaskedArray", ()))
        return arrays.write_masked if masked else arrays.write_array
    if issubclass(kind, getattr(numpy, "generic", ())):
        return arrays.write_scalar
    if issubclass(kind, getattr(torch, "Tensor", ())):
        return tensors.write_tensor
    if issubclass(kind, getattr(pyarrow, "Buffer", ())):
        return tables.write_buffer
    if issubclass(kind, getattr(pyarrow, "RecordBatch", ())):
        return tables.write_batch
    if issubclass(kind, getattr(pyarrow, "Table", ())):
        return tables.write_table
    return None


def _write_array_or_pickle(value: Any, packing: Packing) -> Ext:
    write = pickling.write_pickle if value.dtype.hasobject else arrays.write_array
    return write(value, packing)


def _foreign(value: Any) -> Writer | None:
    """The writer for an array or a buffer of a library that we do not know."""
    if hasattr(type(value), "__dlpack__"):
        return arrays.write_foreign
    try:
        memoryview(value).release()
    except (TypeError, BufferError, ValueError):
        return None
    return buffers.write_buffer


#: Keys that every codec writes as they are.
_PLAIN_KEYS: Final = frozenset({str, float, bool, type(None)})
#: What writes values of exactly these types.
_EXACT: Final[dict[type, Writer]] = {
    type(None): _same,
    bool: _same,
    float: _same,
    str: _same,
    int: standard.write_integer,
    bytes: buffers.write_bytes,
    list: _write_list,
    dict: _write_dict,
    Ext: _same,
    msgspec.Raw: _same,
    msgspec.UnsetType: _same,
    ExtKey: _same,
    bytearray: buffers.write_bytearray,
    memoryview: buffers.write_memoryview,
    array.array: buffers.write_python_array,
    complex: standard.write_complex,
    set: standard.write_set,
    frozenset: standard.write_frozenset,
    tuple: standard.write_tuple,
    range: standard.write_range,
    slice: standard.write_slice,
    datetime.date: standard.write_date,
    datetime.time: standard.write_time,
    datetime.datetime: standard.write_datetime,
    datetime.timedelta: standard.write_timedelta,
    datetime.timezone: standard.write_zone,
    zoneinfo.ZoneInfo: standard.write_zone,
    decimal.Decimal: standard.write_decimal,
    fractions.Fraction: standard.write_fraction,
    uuid.UUID: standard.write_uuid,
}
#: What writes instances of a class that is derived from one of these: the first that fits.
_BASES: Final[dict[type, Writer]] = {
    enum.Enum: _write_enum,
    int: _write_derived_int,
    float: _write_float,
    str: _write_text,
    bytes: buffers.write_bytes,
    list: _write_list,
    dict: _write_dict,
    bytearray: buffers.write_bytearray,
    array.array: buffers.write_python_array,
    complex: standard.write_complex,
    set: standard.write_set,
    frozenset: standard.write_frozenset,
    tuple: standard.write_tuple,
    datetime.datetime: standard.write_datetime,
    datetime.date: standard.write_date,
    datetime.time: standard.write_time,
    datetime.timedelta: standard.write_timedelta,
    datetime.tzinfo: standard.write_zone,
    decimal.Decimal: standard.write_decimal,
    fractions.Fraction: standard.write_fraction,
    uuid.UUID: standard.write_uuid,
    pathlib.PurePath: standard.write_path,
}
