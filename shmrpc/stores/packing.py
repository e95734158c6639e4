"""Packing of values whose types the core of stores does not know into bytes, and back.

A value is read back equal and of the same type, or is refused. So this module packs nothing that the codec of calls
sends as something else: an instance of an unregistered class as a dict of its fields, an instance of a derived class as
its base, an array of another library as one of NumPy. Two kinds of values need no registration, because readers find
their class by its name: members of an Enum, and instances of classes that are derived from an immutable builtin type
and add no state.
"""

from __future__ import annotations

import enum
import re
import types
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final

import msgspec
from msgspec.msgpack import Ext

from shmrpc.errors import DecodeError
from shmrpc.stores.class_names import find_class, importable_name
from shmrpc.values import encode_errors, registry
from shmrpc.values.all_extensions import ALL_EXTENSIONS
from shmrpc.values.arrays import CLASSED
from shmrpc.values.decode_context import UNREADABLE, DecodeContext, Reader
from shmrpc.values.encode import ValueEncoder, enc_hook
from shmrpc.values.encode_context import MAX_DEPTH, EncodeContext, Writer, write_dict, write_list
from shmrpc.values.extension import Extension, imported
from shmrpc.values.mappings import MAPPING
from shmrpc.values.references import STORED

#: The number of the extension for values that are found by the name of their class. Only stores have it.
NAMED: Final = 64
#: Builtin types whose derived classes are found by their name, each with the function that makes the plain value.
_BASES: Final[dict[type, Any]] = {
    int: int.__int__,
    float: float.__float__,
    str: str.__str__,
    bytes: lambda value: bytes.join(b"", (value,)),
    tuple: lambda value: tuple(tuple.__iter__(value)),
}


def builtin_base(cls: type) -> type | None:
    """Return the one of int, float, str, bytes and tuple that a class is, or is derived from.

    Return None without one, or if a class written in C comes before it, as for bool, because it may add state.
    """
    for each in cls.__mro__[:-1]:
        if each in _BASES:
            return each
        if isinstance(each.__dict__.get("__new__"), types.BuiltinFunctionType):
            return None  # A class written in C, which may have more state.
    return None


def builtin_value(value: Any, base: type) -> Any:
    """Return an instance of a derived class as a value of its builtin base, even if the class overrides methods.

    ``base`` is a result of :func:`builtin_base`.
    """
    return _BASES[base](value)


def _extra_attributes(value: Any) -> list[str]:
    """Return the names of the attributes and slots that an instance of a derived class has besides its plain value."""
    names: list[str] = list(getattr(value, "__dict__", ()))
    for each in type(value).__mro__:
        slots = each.__dict__.get("__slots__", ())
        names += [slots] if isinstance(slots, str) else slots
    return names


def _write_enum(value: enum.Enum, context: EncodeContext) -> Ext:
    """Return the extension of a member of an Enum. Raises TypeError if its class cannot be found by its name."""
    cls = type(value)
    name = value._name_
    content = [name] if name is not None and cls.__members__.get(name) is value else value._value_
    return context.extension(NAMED, [importable_name(cls), content])


def _write_derived(value: Any, context: EncodeContext) -> Any:
    """Return the extension of an instance of a derived class.

    Raises TypeError if the instance adds state, or if its class has a ``__reduce__`` or is not found by its name.
    """
    cls = type(value)
    base = builtin_base(cls)
    pickled_by_itself = any({"__reduce__", "__reduce_ex__"} & each.__dict__.keys() for each in cls.__mro__[:-1])
    if base is None or pickled_by_itself:
        raise unsupported_error(value)
    if state := _extra_attributes(value):
        raise TypeError(
            f"it has {state[0]!r} beyond its {base.__name__}: store the {base.__name__}, or {_register_advice(cls)}"
        )
    plain = builtin_value(value, base)
    # A tuple is packed as a list, because the codec packs tuples as an extension of their own.
    return context.extension(NAMED, [importable_name(cls), list(plain) if base is tuple else plain])


def _read_named(payload: Any, context: DecodeContext) -> Any:
    """Return the value that :func:`_write_enum` or :func:`_write_derived` has written.

    Raises TypeError, ValueError or KeyError if the class or the content does not fit, and DecodeError if the class is
    not found.
    """
    name, content = payload
    if type(name) is not str:
        raise TypeError(f"expected the name of a class, got {type(name).__name__}")
    cls: Any = find_class(name)
    if isinstance(cls, type) and issubclass(cls, enum.Enum):
        return cls[content[0]] if type(content) is list else cls(content)
    base: Any = builtin_base(cls) if isinstance(cls, type) else None
    if base is None:
        raise ValueError(f"{name} is no Enum, and is not derived from an immutable type")
    return base.__new__(cls, content)


def _register_advice(cls: type) -> str:
    """Return the advice to register a class."""
    return f"register the class with shmrpc.register({cls.__qualname__}, encode, decode)"


#: The advice for values of types that a store refuses; the first type that fits counts.
_ADVICE: Final[tuple[tuple[str, str], ...]] = (
    ("numpy.ma.MaskedArray", "store .filled(), or its .data and .mask"),
    ("numpy.ndarray", "store numpy.asarray(value), which is a plain array"),
    ("torch.Tensor", "store .detach().cpu(), which is a plain tensor"),
    ("collections.UserString", "store str(value)"),
    ("collections.abc.Mapping", "store dict(value)"),
    ("collections.abc.Set", "store set(value)"),
    ("collections.abc.ValuesView", "store list(value)"),
    ("collections.abc.Sequence", "store list(value)"),
    ("datetime.datetime", "store a plain datetime, or its text"),
)


def unsupported_error(value: Any) -> TypeError:
    """Return the error, with advice, for a value that would not be read back as it is."""
    cls = type(value)
    if cls.__module__.partition(".")[0] in {"pandas", "polars"} and (advice := encode_errors.advise_sender(value)):
        return TypeError(f"{re.sub('^send ', 'store ', advice)}; or {_register_advice(cls)}")
    for name, advice in _ADVICE:
        found = imported(name)
        if found is not None and isinstance(value, found):
            return TypeError(f"{advice}; or {_register_advice(cls)}")
    if advice := encode_errors.advise_sender(value):
        return TypeError(re.sub(r"\bsend ", "store ", advice))
    return TypeError(f"mark the class {cls.__qualname__} as @shmrpc.shared, or {_register_advice(cls)}")


def _refuse(value: Any, context: EncodeContext) -> Any:
    """Raise the error, with advice, for a value that a store cannot hold."""
    raise unsupported_error(value)


def _depth_limited(write: Writer) -> Writer:
    """Return a writer of plain containers that limits their depth, as writers of extensions do.

    Beyond MAX_DEPTH the writer raises RecursionError.
    """

    def counted(value: Any, context: EncodeContext) -> Any:
        if context._depth == MAX_DEPTH:
            raise RecursionError(f"more than {MAX_DEPTH} containers in each other within one packed value")
        context._depth += 1
        plain = write(value, context)
        context._depth -= 1
        return plain

    return counted


class _ExactEncoder(ValueEncoder):
    """Encoder that refuses values that would not be read back equal and of the same type."""

    def __init__(self) -> None:
        super().__init__(msgspec.msgpack.Encoder(enc_hook=enc_hook).encode, _EXTENSIONS, pickled=False)
        self._exact |= {list: _depth_limited(write_list), dict: _depth_limited(write_dict)}
        self.forget()
        registry.on_change(self.forget)

    def _writer_for(self, value: Any, kind: type) -> Writer:
        """Return the writer for a value that is read back equal, otherwise one that raises an error with advice."""
        if registry.entry_of(kind) is not None or kind in self._exact:
            return super()._writer_for(value, kind)
        if issubclass(kind, enum.Enum):
            return _write_enum
        for base, write, covers in self._bases():
            if base is kind and kind.__module__ + "." + kind.__qualname__ not in _REFUSED_ARRAYS:
                return write
            if covers(kind) and issubclass(kind, base):
                return write
        return _write_derived if builtin_base(kind) is not None else _refuse

    def _bases(self) -> Iterator[tuple[type, Writer, Callable[[type], bool]]]:
        """Yield the base classes of extensions without Enum, whose members stores write by name."""
        return (each for each in super()._bases() if each[0] is not enum.Enum)


#: Classes that an extension covers only to raise an error with advice.
_REFUSED_ARRAYS: Final = frozenset({"numpy.ma.MaskedArray", "numpy.ma.core.MaskedArray"})
#: Extensions of mutable values: each read would return a copy, and a change of that would be lost.
_MUTABLE: Final = frozenset({MAPPING, CLASSED})


def _read_registered(read: Reader) -> Reader:
    """Return a reader of registered classes that raises ValueError for an unknown class.

    For calls, the reader returns the fields instead.
    """

    def read_registered(payload: Any, context: DecodeContext) -> Any:
        if type(payload) is list and payload and not registry.is_known(payload[0]):
            raise ValueError(f"{payload[0]} is not registered here: call shmrpc.register() for it, as its writer did")
        return read(payload, context)

    return read_registered


#: The extensions that stores do not have, or read in their own way.
_NOT_STORED: Final = frozenset({STORED, registry.ENUM, registry.OBJECT, *_MUTABLE})
#: The extensions of stores. There are no references, because a stored value is a copy.
_EXTENSIONS: Final = (
    *(each for each in ALL_EXTENSIONS if not each.declared and each.code not in _NOT_STORED),
    *(
        msgspec.structs.replace(each, read=_read_registered(each.read))
        for each in ALL_EXTENSIONS
        if each.code in {registry.ENUM, registry.OBJECT}
    ),
    Extension(NAMED, "value of a class", "`[name of the class, name of a member or plain value]`", _read_named),
)


def _read_for_display(payload: Any, context: DecodeContext) -> Any:
    """Return an instance as a plain value, without its class; a member of an Enum as its name."""
    name, content, *_ = payload
    is_member = type(content) is list and len(content) == 1 and type(content[0]) is str
    return f"{name.rpartition(':')[2]}.{content[0]}" if is_member else content


def _make_decoder(extensions: Iterable[Extension], read_of: dict[int, Reader]) -> Callable[[bytes], Any]:
    """Return the function that unpacks values. ``read_of``: readers to use instead, by the numbers of extensions."""
    readers = {each.code: (each.name, read_of.get(each.code, each.read)) for each in extensions}
    context = DecodeContext(readers, msgspec.msgpack.decode, pickled=False)
    decode = msgspec.msgpack.Decoder(ext_hook=context.hook).decode

    def unpack(data: bytes) -> Any:
        """Return the value of packed bytes. Raises DecodeError if this process cannot read it."""
        try:
            return decode(data)
        except UNREADABLE as error:  # Another process may have overwritten the bytes.
            raise DecodeError(f"a value in the store cannot be read: {error}") from error

    return unpack


_encoder: Final = _ExactEncoder()
#: The function that returns the value of packed bytes. It raises DecodeError if this process cannot read it.
unpack: Final = _make_decoder(_EXTENSIONS, {})
#: The same for tools that only show values: instances come out as plain values, without their classes.
unpack_for_display: Final = _make_decoder(
    _EXTENSIONS, dict.fromkeys((NAMED, registry.ENUM, registry.OBJECT, registry.CUSTOM), _read_for_display)
)


def pack(value: Any) -> bytes:
    """Return the packed bytes of a value, which :data:`unpack` reads.

    Raises TypeError, ValueError or OverflowError for a value that cannot be packed, RecursionError for too deep
    nesting.
    """
    return _encoder.encode_inline(value)
