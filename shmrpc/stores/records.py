"""Classes whose instances can lie in a store."""

from __future__ import annotations

import dataclasses
import enum
import functools
import inspect
import types
from collections.abc import Callable
from typing import Any, Final, Protocol, TypeVar, cast, dataclass_transform, overload

import msgspec

from shmrpc import _core
from shmrpc.errors import DecodeError, EncodeError
from shmrpc.stores.class_names import find_class, text_of
from shmrpc.stores.proxies import Shared
from shmrpc.values.references import allow_instance

_C = TypeVar("_C", bound=type)

#: What the proxies of a class do not take from it: they have their own, or none.
_OWN: Final = frozenset(
    {
        "__class__", "__dict__", "__weakref__", "__slots__", "__init__", "__new__", "__del__", "__eq__", "__hash__",
        "__repr__", "__reduce__", "__reduce_ex__", "__getstate__", "__setstate__", "__setattr__", "__delattr__",
        "__getattribute__", "__module__", "__qualname__", "__doc__", "__match_args__", "__init_subclass__",
        "__dataclass_fields__", "__dataclass_params__", "__annotations__", "__annotate__", "__annotate_func__",
        "__annotations_cache__", "__static_attributes__", "__firstlineno__", "__orig_bases__", "__parameters__",
        "__abstractmethods__", "_abc_impl", "__attrs_attrs__",
    }
)  # fmt: skip


@dataclasses.dataclass(frozen=True, eq=False)
class SharedClass:
    """A class whose instances can lie in a store."""

    cls: type
    fields: tuple[str, ...]
    #: Whether instances have attributes beyond their fields.
    is_open: bool

    @property
    def name(self) -> str:
        """By which other processes find it."""
        return text_of(self.cls)

    @functools.cached_property
    def proxy(self) -> type:
        """The class of its proxies."""
        return _proxy_of(self)

    def make(self, fields: list[Any], extra: dict[str, Any]) -> Any:
        """Makes a plain instance."""
        if issubclass(self.cls, enum.IntEnum):
            return {member: fields[member] for member in self.cls}
        made = object.__new__(self.cls)
        # Another process may have the class open, or write what it must not.
        beyond = extra.items() if self.is_open else ()
        for name, value in [*zip(self.fields, fields, strict=True), *beyond]:
            object.__setattr__(made, name, value)
        return made

    def parts(self, instance: Any) -> tuple[list[Any], dict[str, Any] | None]:
        """Returns the values of the fields of an instance, and what it has beyond them. Raises TypeError."""
        try:
            fields = [getattr(instance, name) for name in self.fields]
        except AttributeError as error:
            raise TypeError(f"{self.name} cannot be stored: {error}") from None
        every = getattr(instance, "__dict__", {})
        extra = {name: value for name, value in every.items() if not self._is_known(name)}
        if self.is_open:
            return fields, extra
        if extra:
            raise EncodeError(
                f"an instance of {self.name} has the attribute {next(iter(extra))!r}, which is no field and would be "
                "lost: annotate it in the class, or mark the class with @shmrpc.shared(open=True)"
            )
        return fields, None

    def _is_known(self, name: str) -> bool:
        """Return True for a field, for the value of a cached property, and for the note that typing makes."""
        return (
            name in self.fields
            or name == "__orig_class__"
            or isinstance(inspect.getattr_static(self.cls, name, None), functools.cached_property)
        )


#: By the class, and by its name.
_classes: Final[dict[type, SharedClass]] = {}
_by_name: Final[dict[str, SharedClass]] = {}


@overload
def shared(cls: _C, /) -> _C: ...
@overload
def shared(*, open: bool = False) -> Callable[[_C], _C]: ...


@dataclass_transform()
def shared(cls: Any = None, /, *, open: bool = False) -> Any:
    """Lets the instances of a class lie in a store, where its methods work on the shared memory.

    A class with annotations that is no dataclass becomes one. Its fields are those of the dataclass, or its
    ``__slots__``. With ``open``, instances also have attributes beyond these, each of which is shared too. Other
    processes find the class by its module and name, so it must be possible to import it. Raises TypeError for a class
    that has no fields and is not open, or none of whose names can be found.
    """
    if cls is None:
        return lambda cls: _shared(cls, open)
    return _shared(cls, open)


def _shared(cls: Any, is_open: bool) -> Any:
    if not isinstance(cls, type):
        raise TypeError(f"shared: expected a class, got {cls!r}")
    _check_bases(cls)
    if not dataclasses.is_dataclass(cls) and inspect.get_annotations(cls) and not hasattr(cls, "__slots__"):
        cls = dataclasses.dataclass(cls)
    _register(SharedClass(cls, _fields_of(cls, is_open), is_open))
    allow_instance(cls)
    return cls


def _check_bases(cls: type) -> None:
    """Raises TypeError for a class whose instances have items or state that no field has."""
    if issubclass(cls, enum.Enum):
        raise TypeError(f"shared: {cls.__qualname__} is an Enum, whose members a store holds without a mark")
    for each in cls.__mro__[:-1]:
        # A class written in C makes its instances itself, with state beyond attributes.
        if isinstance(each.__dict__.get("__new__"), types.BuiltinFunctionType) or each is msgspec.Struct:
            raise TypeError(
                f"shared: {cls.__qualname__} is derived from {each.__qualname__}, whose items or state a store would "
                "lose: make it a dataclass with a field for them, or register it with shmrpc.register()"
            )


def _register(known: SharedClass) -> SharedClass:
    _classes[known.cls] = _by_name[known.name] = known
    return known


def _fields_of(cls: type, is_open: bool) -> tuple[str, ...]:
    if dataclasses.is_dataclass(cls):
        return tuple(field.name for field in dataclasses.fields(cls))
    slots: list[str] = []
    for each in reversed(cls.__mro__):
        found = each.__dict__.get("__slots__", ())
        slots += [found] if isinstance(found, str) else found
    fields = tuple(name for name in slots if name not in {"__dict__", "__weakref__"})
    if not fields and not is_open:
        raise TypeError(
            f"shared: {cls.__qualname__} has no fields; annotate them, name them in __slots__, or say open=True"
        )
    return fields


def shared_class(cls: type) -> SharedClass | None:
    """The class whose instances can lie in a store, if it is one."""
    return _classes.get(cls)


def struct_class(cls: type[enum.IntEnum]) -> SharedClass:
    """The class of structs whose fields have the members of an enumeration as their numbers. Raises TypeError."""
    if not (isinstance(cls, type) and issubclass(cls, enum.IntEnum)):
        raise TypeError(f"struct: expected a class derived from IntEnum, got {cls!r}")
    if sorted(cls) != list(range(len(cls))) or not len(cls):
        raise TypeError(f"struct: the members of {cls.__qualname__} have to be 0, 1, 2 and so on, got {sorted(cls)}")
    return _classes.get(cls) or _register(SharedClass(cls, tuple(member.name for member in sorted(cls)), False))


def named(name: str, fields: tuple[str, ...]) -> SharedClass:
    """The class of this name. Imports its module. Raises DecodeError if it cannot be found, or has other fields."""
    found = _by_name.get(name)
    if found is None:
        imported = find_class(name)
        if isinstance(imported, type) and issubclass(imported, enum.IntEnum):
            struct_class(imported)
        found = _by_name.get(name)
        if found is None:
            raise DecodeError(f"the class {name} of an object in the store is not marked as @shmrpc.shared here")
    if found.fields != fields:
        raise DecodeError(
            f"the class {name} has the fields {', '.join(fields)} in the store, and {', '.join(found.fields)} here: "
            "all processes need the same version of it"
        )
    return found


@dataclasses.dataclass(frozen=True)
class NewStruct:
    """A struct that is to be made."""

    known: SharedClass
    fields: list[Any]


class _Numbers(Protocol):
    def committed_number_of(self, known: SharedClass) -> int: ...


class _Opened(Protocol):
    values: _Numbers


class _Recorded(Shared):
    """What structs and records have in common: a class."""

    __slots__ = ()
    _known: SharedClass

    def _address(self) -> tuple[int, int, int, int]:
        return 19, cast(_Opened, self._opened).values.committed_number_of(self._known), *self._place


class SharedStruct(_Recorded, _core.StructProxy):
    """Numbered fields of a store, known by the members of an IntEnum."""

    __slots__ = ()

    def __repr__(self) -> str:
        values = {member.name: self[member] for member in sorted(self._known.cls)}  # type: ignore[call-overload]
        return f"{self._known.cls.__name__}({values})"


class SharedRecord(_Recorded, _core.Proxy):
    """An instance of a class, in a store."""

    __slots__ = ()

    def __repr__(self) -> str:
        values = ", ".join(f"{name}={getattr(self, name)!r}" for name in self._known.fields)
        return f"{self._known.cls.__name__}({values})"

    def __delattr__(self, name: str) -> None:
        raise AttributeError(f"{type(self).__name__!r} object in a store: its attribute {name!r} cannot be deleted")


class _Frozen:
    """What the proxies of frozen classes have: nothing can be set."""

    __slots__ = ()

    def __setattr__(self, name: str, value: Any) -> None:
        raise dataclasses.FrozenInstanceError(f"cannot assign to field {name!r}")

    def __delattr__(self, name: str) -> None:
        raise dataclasses.FrozenInstanceError(f"cannot delete field {name!r}")


class _Open:
    """What the proxies of open classes have: attributes beyond the fields."""

    __slots__ = ()

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        found = self._extra(name)
        if not found:
            raise AttributeError(f"{type(self).__name__!r} object in a store has no attribute {name!r}")
        return found[0]

    def __setattr__(self, name: str, value: Any) -> None:
        if name in self._known.fields or isinstance(getattr(type(self), name, None), property):
            object.__setattr__(self, name, value)
        else:
            self._set_extra(name, value)

    def __delattr__(self, name: str) -> None:
        if name in self._known.fields or not self._drop_extra(name):
            raise AttributeError(f"{type(self).__name__!r} object in a store has no attribute {name!r} to delete")


def _proxy_of(known: SharedClass) -> type:
    """Makes the class of the proxies of a class: with its methods, and a descriptor for each field."""
    space: dict[str, Any] = {"__slots__": (), "_known": known, "__module__": known.cls.__module__}
    space["__doc__"] = known.cls.__doc__
    if issubclass(known.cls, enum.IntEnum):
        return types.new_class(known.cls.__name__, (SharedStruct,), exec_body=lambda body: body.update(space))
    for each in reversed(known.cls.__mro__[:-1]):
        for name, value in each.__dict__.items():
            if name not in _OWN and name not in known.fields:
                if isinstance(value, functools.cached_property):
                    # A proxy caches nothing: what it would be made of can change.
                    value = property(value.func, doc=value.__doc__)
                # A class method is called with the class, whose instances are made of other things than a proxy is.
                space[name] = staticmethod(getattr(known.cls, name)) if isinstance(value, classmethod) else value
    for number, name in enumerate(known.fields):
        space[name] = _core.RecordField(number)
    # So that isinstance() and super() take a proxy for an instance.
    space["__class__"] = property(lambda self: known.cls)
    parameters = getattr(known.cls, "__dataclass_params__", None)
    bases: tuple[type, ...] = (_Open, SharedRecord) if known.is_open else (SharedRecord,)
    if parameters is not None and parameters.frozen:
        bases = (_Frozen, *bases)
    if known.cls.__hash__ is not None and known.cls.__eq__ is not object.__eq__:
        # The hash of equal instances. With fields that can change it is the program's own care, as with an instance.
        space["__hash__"] = lambda self: hash(self._copy())
    return types.new_class(known.cls.__name__, bases, exec_body=lambda body: body.update(space))
