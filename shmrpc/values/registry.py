"""Classes that users have registered: what travels as an instance of its own class."""

from __future__ import annotations

import dataclasses
import enum
import threading
import typing
from collections.abc import Callable
from typing import Any, Final, Literal, TypeVar

import msgspec
from msgspec.msgpack import Ext

from shmrpc import errors
from shmrpc.basics.signals import is_of_a_handler
from shmrpc.values.extension import Extension
from shmrpc.values.reading import Reading
from shmrpc.values.writing import Writing

ENUM: Final = 32
OBJECT: Final = 33
CUSTOM: Final = 34

_T = TypeVar("_T")
_E = TypeVar("_E", bound=type)
_Form = Literal["enum", "dataclass", "struct", "namedtuple", "exception", "custom"]

#: What goes past us to the codec: it would never be asked about.
_NATIVE: Final = (type(None), bool, int, float, str, bytes, list, dict)
_MISSING: Final = object()


@dataclasses.dataclass(frozen=True)
class Entry:
    """A registered class."""

    cls: type
    name: str
    form: _Form
    encode: Callable[[Any], Any] | None = None
    decode: Callable[[Any], Any] | None = None

    @property
    def fields(self) -> tuple[str, ...]:
        """The names of its fields; none for an Enum, an exception, or a class with functions of its own."""
        match self.form:
            case "dataclass":
                return tuple(field.name for field in dataclasses.fields(self.cls))
            case "struct":
                return self.cls.__struct_fields__  # type: ignore[attr-defined, no-any-return]
            case "namedtuple":
                return self.cls._fields  # type: ignore[attr-defined, no-any-return]
        return ()


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
    """Lets instances of a class travel as what they are. Both sides register it, under one name.

    A dataclass, a Struct, a NamedTuple or an Enum needs no more: its fields travel. Instances are made from these
    without calling ``__init__``; nor is ``__post_init__`` called, except a Struct's, whose fields are set again after
    it. A receiver that has not registered the class gets a dict of the fields, or the Enum's value. Any other class
    needs ``encode``, which makes of an instance some value that can be sent, and ``decode``, which makes an instance
    of that; a receiver that has not registered it cannot read such a value.

    An exception needs no functions either: its ``args`` and its attributes travel. Raised by an endpoint, it arrives
    at the caller as this very class, which then is a :class:`shmrpc.RemoteError` too; and as a plain RemoteError at
    one that has not registered it.

    ``name``: by which both sides know it; the module and the qualified name of the class if it is not given. Classes
    derived from it are not registered with it. Gives back ``cls``, and so is a decorator too. TypeError for a class
    that cannot be registered so; ValueError if the name is another's, or the class is registered otherwise.
    """
    if not isinstance(cls, type):
        raise TypeError(f"expected a class to register, got {cls!r}")
    if cls in _NATIVE:
        raise TypeError(f"{cls.__qualname__} travels as it is, and cannot be registered")
    if (encode is None) != (decode is None):
        raise TypeError(f"register({cls.__qualname__}): give both encode and decode, or neither")
    entry = Entry(cls, name or f"{cls.__module__}.{cls.__qualname__}", _form_of(cls, encode), encode, decode)
    with _lock:
        known = _by_name.get(entry.name)
        if known is not None and known.cls is not cls:
            raise ValueError(
                f"the name {entry.name!r} is registered for another class, {known.cls!r}; "
                "give this one a name= of its own"
            )
        known = _by_type.get(cls)
        if known is not None and known != entry:
            raise ValueError(f"{cls.__qualname__} is registered already, as {known.name!r} or with other functions")
        _by_type[cls] = _by_name[entry.name] = entry
        listeners = [] if known is not None else list(_listeners)
    for listener in listeners:
        listener()
    return cls


def _form_of(cls: type, encode: Callable[[Any], Any] | None) -> _Form:
    if encode is not None:
        return "custom"
    if issubclass(cls, BaseException):
        return "exception"
    if issubclass(cls, enum.Enum):
        return "enum"
    if issubclass(cls, msgspec.Struct):
        return "struct"
    if dataclasses.is_dataclass(cls):
        return "dataclass"
    if issubclass(cls, tuple) and hasattr(cls, "_fields"):
        return "namedtuple"
    raise TypeError(
        f"{cls.__qualname__} is no dataclass, Struct, NamedTuple, Enum or exception: "
        f"say how it travels with register({cls.__name__}, encode, decode)"
    )


def on_change(listener: Callable[[], None]) -> None:
    """``listener`` is called whenever a class has been registered."""
    with _lock:
        _listeners.append(listener)


def entry_of(cls: type) -> Entry | None:
    """What is registered for exactly this class; of an exception that has come from an endpoint, for what it was."""
    entry = _by_type.get(cls)
    return _by_type.get(errors.own_class(cls)) if entry is None and issubclass(cls, errors.RemoteError) else entry


def is_covered(cls: type) -> bool:
    """Whether it, or a class derived from it, is registered."""
    return not typing.is_typeddict(cls) and any(issubclass(known, cls) for known in list(_by_type))


def writer(entry: Entry) -> Callable[[Any, Writing], Ext]:
    """What turns instances of the class into an extension."""
    name, fields, encode = entry.name, entry.fields, entry.encode

    def write_enum(value: Any, writing: Writing) -> Ext:
        return writing.extension(ENUM, [name, value.name, value.value])

    def write_object(value: Any, writing: Writing) -> Ext:
        items = {field: getattr(value, field, _MISSING) for field in fields}
        present = {field: item for field, item in items.items() if item is not _MISSING and item is not msgspec.UNSET}
        return writing.extension(OBJECT, [name, present])

    def write_exception(value: Any, writing: Writing) -> Ext:
        return writing.extension(OBJECT, [name, errors.parts_of(value)])

    def write_custom(value: Any, writing: Writing) -> Ext:
        assert encode is not None
        try:
            plain = encode(value)
        except (TypeError, ValueError, RecursionError):
            raise
        except Exception as error:
            if is_of_a_handler(error):
                raise
            raise TypeError(f"encoding a {name} failed: {type(error).__name__}: {error}") from error
        return writing.extension(CUSTOM, [name, plain])

    writers = {"enum": write_enum, "exception": write_exception, "custom": write_custom}
    return writers.get(entry.form, write_object)


def read_enum(payload: Any, reading: Reading) -> Any:
    """The member; its value if the class is not registered here."""
    name, member, value = _named(payload)
    entry = _by_name.get(name)
    if entry is None or entry.form != "enum":
        return value
    found: Any = entry.cls.__members__.get(member)  # type: ignore[attr-defined]
    return entry.cls(value) if found is None else found


def read_object(payload: Any, reading: Reading) -> Any:
    """An instance; a dict of its fields if the class is not registered here. Fields that it has not are left out."""
    name, fields = _named(payload)
    if not isinstance(fields, dict):
        raise TypeError(f"expected a map of fields, got {type(fields).__name__}")
    entry = _by_name.get(name)
    if entry is not None and entry.form == "exception":
        return errors.made_of(entry.cls, fields)
    if entry is None or not entry.fields:
        return fields
    known = {field: fields[field] for field in entry.fields if field in fields}
    return _MAKERS[entry.form](entry, known)


def read_custom(payload: Any, reading: Reading) -> Any:
    """What the class's decode makes of it."""
    name, value = _named(payload)
    entry = _by_name.get(name)
    if entry is None or entry.decode is None:
        raise ValueError(f"{name!r} is not registered here: call shmrpc.register() for it, as its sender did")
    return entry.decode(value)


def name_in(data: bytes) -> str | None:
    """The name of the class, if a body is one instance of a registered one."""
    try:
        value = _shallow.decode(data)
        if isinstance(value, Ext) and value.code in (OBJECT, CUSTOM):
            return str(_named(_shallow.decode(value.data))[0])
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError, TypeError):
        pass
    return None


#: Leaves extensions as they are.
_shallow: Final = msgspec.msgpack.Decoder()


def _named(payload: Any) -> list[Any]:
    if not (isinstance(payload, list) and payload and isinstance(payload[0], str)):
        raise TypeError("expected an array that begins with a name")
    return payload


def _make_dataclass(entry: Entry, fields: dict[str, Any]) -> Any:
    made: Any = object.__new__(entry.cls)
    for field in dataclasses.fields(entry.cls):
        if field.name in fields:
            value = fields[field.name]
        elif field.default is not dataclasses.MISSING:
            value = field.default
        elif field.default_factory is not dataclasses.MISSING:
            value = field.default_factory()
        elif field.init:
            raise ValueError(f"{entry.name}: field {field.name!r} is missing")
        else:  # One that __post_init__ would set, and that was not set at the sender either.
            continue
        object.__setattr__(made, field.name, value)
    return made


def _make_struct(entry: Entry, fields: dict[str, Any]) -> Any:
    made = entry.cls(**fields)
    if hasattr(entry.cls, "__post_init__"):  # It may have changed what was sent.
        for field, value in fields.items():
            msgspec.structs.force_setattr(made, field, value)
    return made


def _make_namedtuple(entry: Entry, fields: dict[str, Any]) -> Any:
    defaults = entry.cls._field_defaults  # type: ignore[attr-defined]
    return tuple.__new__(entry.cls, [fields[f] if f in fields else defaults[f] for f in entry.fields])


_MAKERS: Final[dict[str, Callable[[Entry, dict[str, Any]], Any]]] = {
    "dataclass": _make_dataclass,
    "struct": _make_struct,
    "namedtuple": _make_namedtuple,
}

EXTENSIONS: Final = (
    Extension(ENUM, "registered Enum", "`[registered name, name of the member, value]`", read_enum),
    Extension(OBJECT, "registered class", "`[registered name, map of text to its fields]`", read_object),
    Extension(CUSTOM, "registered type", "`[registered name, what its function made of it]`", read_custom),
)
