"""Values to bodies: MessagePack's own types and extensions, with large buffers beside them."""

from __future__ import annotations

import enum
import functools
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Final

import msgspec
from msgspec.msgpack import Ext

from shmrpc import _core
from shmrpc.values import fields, registry, standard
from shmrpc.values.extension import Extension, imported
from shmrpc.values.pickling import write_pickle
from shmrpc.values.unsendable import derived, unregistered, unsupported
from shmrpc.values.writing import ExtKey, InlineWriting, Writer, Writing, write_dict, write_list, write_same

#: How many types are remembered: more than a program has, unless it makes them as it runs.
_MAX_TYPES: Final = 4096


class NotPlain(OverflowError):
    """The codec met something that it does not carry, in a field whose declared type rules that out.

    It is an OverflowError, as for an integer that is too large: after either, the value is written again, thoroughly.
    """


def enc_hook(value: Any) -> Any:
    """For msgspec: what to write for a value that it does not know."""
    if type(value) is ExtKey:
        return value.ext
    raise NotPlain(str(unsupported(value)))


class ValueEncoder:
    """Writes values for one codec."""

    def __init__(
        self,
        pack: Callable[[Any], bytes],
        extensions: Iterable[Extension],
        *,
        pickled: bool,
        structural: bool = True,
    ) -> None:
        """``pack`` makes bytes of plain values; ``pickled``: whether to pickle what cannot travel otherwise.

        ``structural``: whether instances of classes that are not registered travel as a map of their fields, a tuple
        or an Enum's value, of which a receiver that declares the class makes them again.
        """
        self._pack = pack
        self._pickled = pickled
        self._structural = structural
        declares = structural and not pickled
        self._extensions = tuple(each for each in extensions if declares or not each.declared)
        written = [pair for each in self._extensions for pair in each.writers.items()]
        self._exact = _EXACT | {kind: write for kind, write in written if isinstance(kind, type)}
        #: What writes values of each type that has been met.
        self._writers = dict(self._exact)
        #: How often these were forgotten.
        self._changes = 0

    def encode(self, value: Any) -> bytes | _core.Parcel:
        """The body for a value."""
        return self._body(value, Writing.plain)

    def encode_all(self, values: Sequence[Any]) -> bytes | _core.Parcel:
        """The body for an array of values."""
        return self._body(values, _plain_each)

    def encode_inline(self, value: Any) -> bytes:
        """The bytes for a value, with its large buffers among them."""
        return self._packed(value, Writing.plain, InlineWriting)[0]

    def _body(self, value: Any, plain: Callable[[Writing, Any], Any]) -> bytes | _core.Parcel:
        body, buffers = self._packed(value, plain, Writing)
        return _core.Parcel(body, buffers) if buffers else body

    def _packed(self, value: Any, plain: Callable[[Writing, Any], Any], make: type[Writing]) -> tuple[bytes, list[Any]]:
        try:
            writing = make(self._writers, self.classify, self._pack, self._pickled, False)
            body = self._pack(plain(writing, value))
        except OverflowError:
            writing = make(self._writers, self.classify, self._pack, self._pickled, True)
            try:
                body = self._pack(plain(writing, value))
            except NotPlain as error:
                raise TypeError(str(error)) from None
        return body, writing.buffers

    def is_plain(self, kind: type) -> bool | tuple[tuple[str, ...], tuple[str, ...]] | None:
        """Whether the codec carries instances of a class as they are.

        Two tuples of fields: it carries an instance that has the first ones itself and plain values in the second.
        None: it does not, and the core may write what is usual of them.
        """
        if kind in (msgspec.Raw, Ext):
            return True
        if registry.entry_of(kind) is not None:
            return False
        if kind is memoryview or kind is imported("numpy.ndarray"):
            return None
        if not self._structural:
            return False
        names = fields.names_of(kind)
        if names is not None:
            if fields.is_partly_written(kind):
                return False
            looked_at = fields.class_defaults(kind, names), fields.inexact_names(kind, names)
            return not self._pickles(kind) and (looked_at if any(looked_at) else True)
        return issubclass(kind, enum.Enum) and not self._pickled and fields.is_closed(kind)

    def forget(self) -> None:
        """Look at types anew, since something has been registered."""
        self._changes += 1
        self._writers.clear()
        self._writers.update(self._exact)

    def classify(self, value: Any) -> Writer:
        """What writes values of this one's type."""
        kind, changes = type(value), self._changes
        if len(self._writers) >= _MAX_TYPES:
            self.forget()
        writer = self._writer_for(value, kind)
        if changes == self._changes:  # Else the type may have been registered in the meantime.
            self._writers[kind] = writer
        return writer

    def _writer_for(self, value: Any, kind: type) -> Writer:
        entry = registry.entry_of(kind)
        if entry is not None:
            return entry.write
        if kind in self._exact:  # It was not a moment ago: another thread has just called `forget`.
            return self._exact[kind]
        base, write, covers = next((each for each in self._bases() if issubclass(kind, each[0])), _NO_BASE)
        if base is kind or covers(kind):
            return write
        names = fields.names_of(kind)
        if self._pickles(kind) and (base is not None or names is not None):
            return write_pickle
        if is_structural(kind, base, names):
            if not self._structural:
                return _refuse_unregistered
            return fields.writer(kind, names) if base is None and names is not None else write
        if base is not None:
            return functools.partial(_refuse_derived, base)
        return self._adopt(value) or (write_pickle if self._pickled else _refuse)

    def _adopt(self, value: Any) -> Writer | None:
        """Return the writer of a value of an unknown class that can, for example, export its memory; else None."""
        return next(filter(None, (each.adopt(value) for each in self._extensions)), None)

    def _bases(self) -> Iterator[tuple[type, Writer, Callable[[type], bool]]]:
        """Each class whose instances can be written, what writes them, and whether that covers a derived class."""
        yield enum.Enum, _write_enum, _never
        for extension in self._extensions:
            for kind, write in extension.writers.items():
                found = kind if isinstance(kind, type) else imported(kind)
                if found is not None:
                    yield found, write, extension.covers
        for base in (int, float, str, list, dict):
            yield base, self._exact[base], _never

    def _pickles(self, kind: type) -> bool:
        """Whether instances of a class with fields are pickled: all but those that our own frames are made of."""
        return self._pickled and not kind.__module__.startswith("shmrpc.")


def _plain_each(writing: Writing, values: Sequence[Any]) -> list[Any]:
    return [writing.plain(value) for value in values]


def _write_enum(value: enum.Enum, writing: Writing) -> Any:
    return writing.plain(value._value_)


def _never(kind: type) -> bool:
    return False


def is_structural(kind: type, base: type | None, names: tuple[str, ...] | None) -> bool:
    """Return True if instances travel as their structure: a map of fields, the items of a NamedTuple, an Enum's value.

    ``base``: the class it is derived from that travels, if there is one; ``names``: its fields.
    """
    if base is None:
        return names is not None
    return base is enum.Enum or (base is tuple and hasattr(kind, "_fields"))


def _refuse(value: Any, writing: Writing) -> Any:
    raise unsupported(value)


def _refuse_derived(base: type, value: Any, writing: Writing) -> Any:
    raise derived(value, base)


def _refuse_unregistered(value: Any, writing: Writing) -> Any:
    raise unregistered(value)


#: What writes values of exactly these types, MessagePack's own and the codec's.
_EXACT: Final[dict[type, Writer]] = {
    type(None): write_same,
    bool: write_same,
    float: write_same,
    str: write_same,
    int: standard.write_integer,
    list: write_list,
    dict: write_dict,
    Ext: write_same,
    msgspec.Raw: write_same,
    msgspec.UnsetType: write_same,
    ExtKey: write_same,
}
#: For a class that is derived from nothing that can be written.
_NO_BASE: Final[tuple[None, Writer, Callable[[type], bool]]] = (None, _refuse, _never)
