"""Instances that travel as maps: fields that the codec may not carry, and copies with plain fields."""

from __future__ import annotations

import collections.abc
import copy
import dataclasses
import datetime
import decimal
import enum
import functools
import inspect
import typing
import uuid
from collections.abc import Callable
from typing import Any, Final, get_args, get_origin

import msgspec

from shmrpc.values import registry
from shmrpc.values.aliases import UNIONS, type_hints
from shmrpc.values.encode_context import EncodeContext

#: Types whose values the codec carries in a field.
_CLOSED: Final = frozenset(
    {
        bool,
        int,
        float,
        str,
        type(None),
        datetime.date,
        datetime.time,
        datetime.datetime,
        datetime.timedelta,
        decimal.Decimal,
        uuid.UUID,
        msgspec.Raw,
        msgspec.UnsetType,
        msgspec.msgpack.Ext,
    }
)
#: Types whose values the codec carries unchanged; it converts times of other zones to UTC.
_EXACT: Final = _CLOSED - {datetime.time, datetime.datetime}
#: Types that are closed if their arguments are.
CONTAINERS: Final = frozenset(
    {
        list,
        dict,
        set,
        frozenset,
        tuple,
        collections.abc.Collection,
        collections.abc.Sequence,
        collections.abc.MutableSequence,
        collections.abc.Set,
        collections.abc.MutableSet,
        collections.abc.Mapping,
        collections.abc.MutableMapping,
    }
)
_ABSENT: Final = object()


def names_of(cls: type) -> tuple[str, ...] | None:
    """Return the field names of a dataclass, a Struct or an attrs class; None for any other class."""
    if issubclass(cls, msgspec.Struct):
        return cls.__struct_fields__
    if dataclasses.is_dataclass(cls):
        return tuple(field.name for field in dataclasses.fields(cls))
    attributes = getattr(cls, "__attrs_attrs__", None)
    return None if attributes is None else tuple(each.name for each in attributes)


def class_defaults(cls: type, names: tuple[str, ...]) -> tuple[str, ...]:
    """Return the names of fields whose default is an attribute of the class, and which an instance may lack.

    With ``init=False``, ``__init__`` does not set such a field, and the codec writes only fields that the instance has.
    """
    if not cls.__dictoffset__ or issubclass(cls, msgspec.Struct):
        return ()
    attributes = [(name, inspect.getattr_static(cls, name, _ABSENT)) for name in names]
    return tuple(name for name, found in attributes if not (found is _ABSENT or inspect.isdatadescriptor(found)))


def is_partly_written(cls: type) -> bool:
    """Return True if the codec omits fields of instances: it skips attrs fields that begin with an underscore."""
    is_attrs = hasattr(cls, "__attrs_attrs__") and not dataclasses.is_dataclass(cls)
    return is_attrs and not issubclass(cls, msgspec.Struct) and any(n.startswith("_") for n in names_of(cls) or ())


def loose_names(cls: type, names: tuple[str, ...]) -> tuple[str, ...]:
    """Return the names of fields that can hold values that the codec does not carry."""
    hints = hints_of(cls)
    return tuple(name for name in names if hints is None or not is_closed(hints.get(name, Any)))


def inexact_names(cls: type, names: tuple[str, ...]) -> tuple[str, ...]:
    """Return the names of fields that can hold values that the codec does not carry unchanged, such as times."""
    hints = hints_of(cls)
    return tuple(name for name in names if hints is None or not _is_closed(hints.get(name, Any), set(), _EXACT))


def hints_of(cls: type) -> dict[str, Any] | None:
    """Return the declared types of the fields of a class; None if they cannot be resolved."""
    try:
        return type_hints(cls)
    except Exception:  # For example a NameError, for a name imported only by type checkers.
        return None


def is_closed(kind: Any) -> bool:
    """Return True if the codec carries every value of a declared type, though it may change the zone of times."""
    return _is_closed(kind, set(), _CLOSED)


def _is_closed(kind: Any, seen: set[Any], closed: frozenset[Any]) -> bool:
    """Return True if every value of a type consists of ``closed`` types. ``seen``: classes that were visited before."""
    if kind is None:
        return True
    origin, args = get_origin(kind), get_args(kind)
    if origin is typing.Annotated:
        return _is_closed(args[0], seen, closed)
    if origin is typing.Literal:
        return True
    if origin in UNIONS or (origin in CONTAINERS and args):
        return all(each is Ellipsis or _is_closed(each, seen, closed) for each in args)
    if origin in (typing.Required, typing.NotRequired, typing.Final, typing.ClassVar):
        return all(_is_closed(each, seen, closed) for each in args)
    if isinstance(kind, typing.NewType):
        return _is_closed(kind.__supertype__, seen, closed)
    return isinstance(kind, type) and origin is None and _is_closed_class(kind, seen, closed)


def _is_closed_class(cls: type, seen: set[Any], closed: frozenset[Any]) -> bool:
    """Return True if every instance of a class consists of ``closed`` types; see _is_closed().

    Returns False for a registered class, and for one whose fields are unknown or may be more in a derived class.
    """
    if cls in closed or cls in seen:  # A recursive class adds nothing: its other fields decide.
        return True
    if registry.is_covered(cls):
        return False
    if issubclass(cls, enum.Enum):
        return all(type(member.value) in (int, str) for member in cls)
    seen.add(cls)
    names = names_of(cls)
    if names is None and (typing.is_typeddict(cls) or (issubclass(cls, tuple) and hasattr(cls, "_fields"))):
        names = tuple(getattr(cls, "_fields", cls.__annotations__))
    elif names is not None and not issubclass(cls, msgspec.Struct):
        return False  # A derived class may have further fields.
    hints = hints_of(cls)
    if names is None or hints is None:
        return False
    return all(_is_closed(hints.get(name, Any), seen, closed) for name in names)


def make_writer(cls: type, names: tuple[str, ...]) -> Callable[[Any, EncodeContext], Any]:
    """Return a writer, which returns an instance unchanged if the codec carries it, otherwise a plain copy.

    For a class that :func:`is_partly_written`, the writer always returns a dict.
    """
    if is_partly_written(cls):
        return functools.partial(_write_as_dict, names)
    inexact, defaults = inexact_names(cls, names), frozenset(class_defaults(cls, names))
    is_struct = issubclass(cls, msgspec.Struct)

    def write(value: Any, context: EncodeContext) -> Any:
        changed: dict[str, Any] = {}
        for name in names if context.thorough else inexact:
            item = getattr(value, name, _ABSENT)
            if item is not _ABSENT and item is not msgspec.UNSET and not _is_plain_time(item):
                plain = context.plain(item)
                if plain is not item:
                    changed[name] = plain
        if not changed and (not defaults or defaults.issubset(value.__dict__)):
            return value
        if is_struct:
            made = copy.copy(value)
            for name, item in changed.items():
                msgspec.structs.force_setattr(made, name, item)
            return made
        return _copy_with(value, names, changed)

    return write


def _write_as_dict(names: tuple[str, ...], value: Any, context: EncodeContext) -> dict[str, Any]:
    """Return a dict of the plain values of an instance's fields."""
    found = ((name, getattr(value, name, _ABSENT)) for name in names)
    return {name: item if _is_plain_time(item) else context.plain(item) for name, item in found if item is not _ABSENT}


def _is_plain_time(value: Any) -> bool:
    """Return True for a time that the codec carries unchanged: without a fold, and without a zone or in datetime.UTC.

    Returns False for any other value.
    """
    if type(value) is not datetime.datetime and type(value) is not datetime.time:
        return False
    return (value.tzinfo is None or value.tzinfo is datetime.UTC) and not value.fold


def _copy_with(value: Any, names: tuple[str, ...], changed: dict[str, Any]) -> Any:
    """Return a copy of an instance with changed fields, made without ``__init__`` and ``__copy__``."""
    try:
        made = object.__new__(type(value))
    except TypeError:  # For example an exception that is a dataclass.
        made = copy.copy(value)
    for name in names:
        item = changed.get(name, getattr(value, name, _ABSENT))
        if item is not _ABSENT:
            object.__setattr__(made, name, item)
    return made
