"""Registered classes, whose instances arrive as instances of the same class."""

from __future__ import annotations

import dataclasses
import enum
import functools
import threading
import typing
from collections.abc import Callable, Iterable
from typing import Any, Final, TypeVar

import msgspec
from msgspec.msgpack import Ext

from shmrpc import errors, exception_parts
from shmrpc.basics.signals import is_from_signal_handler
from shmrpc.values.decode_context import DecodeContext
from shmrpc.values.encode_context import EncodeContext
from shmrpc.values.extension import Extension

ENUM: Final = 32
OBJECT: Final = 33
CUSTOM: Final = 34

_E = TypeVar("_E", bound=type)

_MISSING: Final = object()


class Entry:
    """Registered class, with the encoding of its instances."""

    def __init__(self, cls: Any, name: str) -> None:
        self.cls, self.name = cls, name

    def is_the_same(self, other: Entry) -> bool:
        """Return True if both entries register the same class under the same name."""
        return type(self) is type(other) and (self.cls, self.name) == (other.cls, other.name)

    #: Names of the fields; none for an Enum, an exception, or a class with converters.
    fields = functools.cached_property[tuple[str, ...]](lambda self: ())

    def write(self, value: Any, context: EncodeContext) -> Ext:
        """Return the extension for an instance. Raises one of UNSENDABLE if a part of it cannot be sent."""
        raise NotImplementedError


class _Enum(Entry):
    """Registered Enum, whose members travel by name and value."""

    def write(self, value: Any, context: EncodeContext) -> Ext:
        return context.extension(ENUM, [self.name, value.name, value.value])

    def make(self, name: Any, value: Any) -> Any:
        """Return the member with this name, or else with this value. Raises ValueError if there is neither."""
        found = self.cls.__members__.get(name)
        return self.cls(value) if found is None else found


class _Object(Entry):
    """Registered class whose fields travel."""

    def write(self, value: Any, context: EncodeContext) -> Ext:
        """Return the extension with the fields that the instance has, without those that are ``UNSET``."""
        items = {field: getattr(value, field, _MISSING) for field in self.fields}
        present = {field: item for field, item in items.items() if item is not _MISSING and item is not msgspec.UNSET}
        return context.extension(OBJECT, [self.name, present])

    def make(self, fields: dict[str, Any]) -> Any:
        """Return an instance with these fields. Ignores fields that the class does not have."""
        raise NotImplementedError


class _Dataclass(_Object):
    """Registered dataclass."""

    fields = functools.cached_property(lambda self: tuple(field.name for field in dataclasses.fields(self.cls)))

    def make(self, fields: dict[str, Any]) -> Any:
        """Return an instance, without calling ``__init__``.

        Raises ValueError if a field without a default is missing.
        """
        made: Any = object.__new__(self.cls)
        for field in dataclasses.fields(self.cls):
            if field.name in fields:
                value = fields[field.name]
            elif field.default is not dataclasses.MISSING:
                value = field.default
            elif field.default_factory is not dataclasses.MISSING:
                value = field.default_factory()
            elif field.init:
                raise ValueError(f"{self.name}: field {field.name!r} is missing")
            else:  # A field that __post_init__ sets, and that the sender's instance lacked, too.
                continue
            object.__setattr__(made, field.name, value)
        return made


class _Struct(_Object):
    """Registered Struct of msgspec."""

    fields = functools.cached_property(lambda self: self.cls.__struct_fields__)

    def make(self, fields: dict[str, Any]) -> Any:
        """Return an instance with these fields, even if ``__post_init__`` changes them.

        Raises TypeError for a missing field, and the exceptions of ``__post_init__``.
        """
        known = {field: fields[field] for field in self.fields if field in fields}
        made = self.cls(**known)
        if hasattr(self.cls, "__post_init__"):  # __post_init__ may have changed the fields.
            for field, value in known.items():
                msgspec.structs.force_setattr(made, field, value)
        return made


class _NamedTuple(_Object):
    """Registered NamedTuple."""

    fields = functools.cached_property(lambda self: self.cls._fields)

    def make(self, fields: dict[str, Any]) -> Any:
        """Return an instance. Raises KeyError if a field without a default is missing."""
        defaults = self.cls._field_defaults
        return tuple.__new__(self.cls, [fields[f] if f in fields else defaults[f] for f in self.fields])


class _Exception(_Object):
    """Registered exception, whose ``args`` and attributes travel."""

    def write(self, value: Any, context: EncodeContext) -> Ext:
        return context.extension(OBJECT, [self.name, exception_parts.parts_of(value)])

    def make(self, fields: dict[str, Any]) -> Any:
        """Return an exception, without calling its own ``__init__``.

        Raises KeyError without ``args``, and the errors of the constructor of its builtin base class.
        """
        return exception_parts.build_exception(self.cls, fields)


class Custom(Entry):
    """Class registered with converters."""

    def __init__(self, cls: Any, name: str, encode: Callable[[Any], Any], decode: Callable[[Any], Any]) -> None:
        super().__init__(cls, name)
        self.encode, self.decode = encode, decode

    def is_the_same(self, other: Entry) -> bool:
        """Return True if both entries register the same class under the same name with the same converters."""
        both = isinstance(other, Custom) and (self.encode, self.decode) == (other.encode, other.decode)
        return both and super().is_the_same(other)

    def write(self, value: Any, context: EncodeContext) -> Ext:
        """Return the extension with the value that ``encode`` returns.

        Raises one of UNSENDABLE: an error of ``encode`` that is no TypeError, ValueError or RecursionError becomes a
        TypeError.
        """
        try:
            plain = self.encode(value)
        except (TypeError, ValueError, RecursionError):
            raise
        except Exception as error:
            if is_from_signal_handler(error):
                raise
            raise TypeError(f"encoding a {self.name} failed: {type(error).__name__}: {error}") from error
        return context.extension(CUSTOM, [self.name, plain])


#: Classes whose instances an encoder writes without a look at the registry. The modules with the writers add them.
_native: Final[set[type]] = set()
_by_type: Final[dict[type, Entry]] = {}
_by_name: Final[dict[str, Entry]] = {}
_listeners: Final[list[Callable[[], None]]] = []
_lock: Final = threading.Lock()


def register(
    cls: _E,
    encode: Callable[[Any], Any] | None = None,
    decode: Callable[[Any], Any] | None = None,
    *,
    name: str | None = None,
) -> _E:
    """Let instances of a class arrive as instances of that class. Both sides register it, under the same name.

    A dataclass, a Struct, a NamedTuple or an Enum needs nothing else: its fields travel. The receiver builds instances
    of these without calling ``__init__`` or ``__post_init__``, except a Struct's ``__post_init__``, after which it sets
    the fields again. A receiver that has not registered the class gets a dict of the fields, or the Enum's value. Any
    other class needs ``encode``, which returns a value that can be sent for an instance, and ``decode``, which returns
    an instance for that value; a receiver that has not registered the class cannot read such a value.

    An exception needs no converters either: its ``args`` and its attributes travel. If an endpoint raises it, it
    arrives at the caller as this class, which is then a :class:`shmrpc.RemoteError`, too; or as a plain RemoteError if
    the caller has not registered it.

    ``name`` is the name of the class on both sides, by default its module and qualified name. Derived classes are not
    registered with it. Returns ``cls``, so that it is a decorator, too. Registering a class again in the same way does
    nothing. Raises TypeError for a class that travels as it is, such as ``Decimal`` or ``set``, for a class that cannot
    be registered like this, for one converter without the other, and for an argument of another type; ValueError if the
    name is empty or belongs to another class, or the class is registered differently.
    """
    if not isinstance(cls, type):
        raise TypeError(f"expected a class to register, got {cls!r}")
    if cls in _native:
        raise TypeError(f"{cls.__qualname__} travels as it is, and cannot be registered")
    if (encode is None) != (decode is None):
        raise TypeError(f"register({cls.__qualname__}): give both encode and decode, or neither")
    for option, converter in (("encode", encode), ("decode", decode)):
        if converter is not None and not callable(converter):
            raise TypeError(f"register({cls.__qualname__}): {option}: expected a function, got {converter!r}")
    if name is not None and not isinstance(name, str):
        raise TypeError(f"register({cls.__qualname__}): name: expected a str, got {name!r}")
    if name == "":
        raise ValueError(f"register({cls.__qualname__}): name: expected at least one character, got ''")
    entry = _create_entry(cls, name or f"{cls.__module__}.{cls.__qualname__}", encode, decode)
    with _lock:
        known = _by_name.get(entry.name)
        if known is not None and known.cls is not cls:
            raise ValueError(
                f"the name {entry.name!r} is registered for another class, {known.cls!r}; "
                "give this one a name= of its own"
            )
        known = _by_type.get(cls)
        if known is not None and not known.is_the_same(entry):
            raise ValueError(f"{cls.__qualname__} is registered already, as {known.name!r} or with other functions")
        _by_type[cls] = _by_name[entry.name] = entry
        listeners = [] if known is not None else list(_listeners)
    for listener in listeners:
        listener()
    return cls


def _create_entry(
    cls: type, name: str, encode: Callable[[Any], Any] | None, decode: Callable[[Any], Any] | None
) -> Entry:
    """Return the entry for a class. Raises TypeError for a class that needs converters and has none."""
    if encode is not None and decode is not None:
        return Custom(cls, name, encode, decode)
    if issubclass(cls, BaseException):
        return _Exception(cls, name)
    if issubclass(cls, enum.Enum):
        return _Enum(cls, name)
    if issubclass(cls, msgspec.Struct):
        return _Struct(cls, name)
    if dataclasses.is_dataclass(cls):
        return _Dataclass(cls, name)
    if issubclass(cls, tuple) and hasattr(cls, "_fields"):
        return _NamedTuple(cls, name)
    raise TypeError(
        f"{cls.__qualname__} is not a dataclass, Struct, NamedTuple, Enum or exception: "
        f"give converters: register({cls.__name__}, encode, decode)"
    )


def add_native(classes: Iterable[type]) -> None:
    """Have :func:`register` refuse these classes, because an encoder would never call their converters."""
    _native.update(classes)


def on_change(listener: Callable[[], None]) -> None:
    """Call ``listener`` whenever a class has been registered, from now until the end of the process.

    The thread that registers the class calls it, without a lock, and raises its exceptions.
    """
    with _lock:
        _listeners.append(listener)


def entry_of(cls: type) -> Entry | None:
    """Return the entry of exactly this class, or None. For a class joined with RemoteError, use the class raised."""
    entry = _by_type.get(cls)
    return _by_type.get(errors.own_class(cls)) if entry is None and issubclass(cls, errors.RemoteError) else entry


def is_known(name: str) -> bool:
    """Return True if a class is registered under this name."""
    return name in _by_name


def is_covered(cls: type) -> bool:
    """Return True if a class, or a class derived from it, is registered."""
    return not typing.is_typeddict(cls) and any(issubclass(known, cls) for known in list(_by_type))


def _read_enum(payload: Any, context: DecodeContext) -> Any:
    """Return the member; its value if no Enum is registered here by that name. Raises ValueError for no member."""
    name, member, value = _check_named(payload)
    entry = _by_name.get(name)
    return entry.make(member, value) if isinstance(entry, _Enum) else value


def _read_object(payload: Any, context: DecodeContext) -> Any:
    """Return an instance; a dict of its fields if the class is not registered here.

    Raises TypeError for an invalid payload, and the errors of ``make`` for a missing field.
    """
    name, fields = _check_named(payload)
    if not isinstance(fields, dict):
        raise TypeError(f"expected a map of fields, got {type(fields).__name__}")
    entry = _by_name.get(name)
    return entry.make(fields) if isinstance(entry, _Object) else fields


def _read_custom(payload: Any, context: DecodeContext) -> Any:
    """Return an instance. Raises ValueError if the class is not registered here, and the exceptions of its decoder."""
    name, value = _check_named(payload)
    entry = _by_name.get(name)
    if not isinstance(entry, Custom):
        raise ValueError(f"{name!r} is not registered here: call shmrpc.register() for it, as its sender did")
    return entry.decode(value)


def name_in(data: bytes) -> str | None:
    """Return the registered name in a body that is an instance of a registered class, also if not registered here.

    Returns None for any other body, also for a member of an Enum.
    """
    try:
        value = _shallow.decode(data)
        if isinstance(value, Ext) and value.code in (OBJECT, CUSTOM):
            return str(_check_named(_shallow.decode(value.data))[0])
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError, TypeError):
        pass
    return None


#: Decoder that leaves extensions undecoded.
_shallow: Final = msgspec.msgpack.Decoder()


def _check_named(payload: Any) -> list[Any]:
    """Return a payload that is an array beginning with a name. Raises TypeError for any other."""
    if not (isinstance(payload, list) and payload and isinstance(payload[0], str)):
        raise TypeError("expected an array that begins with a name")
    return payload


EXTENSIONS: Final = (
    Extension(ENUM, "registered Enum", "`[registered name, name of the member, value]`", _read_enum),
    Extension(OBJECT, "registered class", "`[registered name, map of text to its fields]`", _read_object),
    Extension(CUSTOM, "registered type", "`[registered name, value returned by its encoder]`", _read_custom),
)
