"""Classes whose instances can be in a store, and the proxies of such instances."""

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
from shmrpc.stores.class_names import class_name, find_class
from shmrpc.stores.shared_container import RECORD_TYPE, SharedContainer
from shmrpc.values.references import allow_instance

_C = TypeVar("_C", bound=type)

#: The attributes of a class that its proxies do not inherit: they have their own, or none.
_NOT_INHERITED: Final = frozenset(
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
    """A class whose instances can be in a store."""

    cls: type
    fields: tuple[str, ...]
    #: True if instances may have attributes besides their fields.
    is_open: bool

    @property
    def name(self) -> str:
        """The name by which other processes find the class: module, colon, qualified name."""
        return class_name(self.cls)

    @functools.cached_property
    def proxy_class(self) -> type:
        """The class of its proxies."""
        return _make_proxy_class(self)

    def make_instance(self, fields: list[Any], extra: dict[str, Any]) -> Any:
        """Make a plain instance, outside the store, of field values and other attributes; for a struct, make a dict.

        Does not call ``__init__``. Drops the other attributes if the class is not open in this process. Raises
        ValueError if the number of values is wrong.
        """
        if issubclass(self.cls, enum.IntEnum):
            return {member: fields[member] for member in self.cls}
        made = object.__new__(self.cls)
        # For another process the class may be open, and a hostile one may write anything.
        attributes = extra.items() if self.is_open else ()
        for name, value in [*zip(self.fields, fields, strict=True), *attributes]:
            object.__setattr__(made, name, value)
        return made

    def field_values(self, instance: Any) -> tuple[list[Any], dict[str, Any] | None]:
        """Return the values of an instance's fields, and a dict of its other attributes, None if the class is not open.

        Leaves out the values of cached properties. Raises TypeError if a field is missing, and EncodeError if an
        attribute would be lost.
        """
        try:
            fields = [getattr(instance, name) for name in self.fields]
        except AttributeError as error:
            raise TypeError(f"{self.name} cannot be stored: {error}") from None
        every = getattr(instance, "__dict__", {})
        extra = {name: value for name, value in every.items() if not self._is_expected_attribute(name)}
        if self.is_open:
            return fields, extra
        if extra:
            raise EncodeError(
                f"an instance of {self.name} has the attribute {next(iter(extra))!r}, which is no field: annotate it "
                "in the class, or mark the class with @shmrpc.shared(open=True)"
            )
        return fields, None

    def _is_expected_attribute(self, name: str) -> bool:
        """Return True for a field, for the value of a cached property, and for the attribute that typing adds."""
        return (
            name in self.fields
            or name == "__orig_class__"
            or isinstance(inspect.getattr_static(self.cls, name, None), functools.cached_property)
        )


#: The shared classes, by the class and by its name.
_classes: Final[dict[type, SharedClass]] = {}
_by_name: Final[dict[str, SharedClass]] = {}


@overload
def shared(cls: _C, /) -> _C: ...
@overload
def shared(*, open: bool = False) -> Callable[[_C], _C]: ...


@dataclass_transform()
def shared(cls: Any = None, /, *, open: bool = False) -> Any:
    """Mark a class, so that stores can hold its instances; in a store, its methods work on the shared memory.

    Returns the class. A class with annotations becomes a dataclass, unless it has ``__slots__``: then decorate it as a
    dataclass first, or its own annotations are no fields. The fields are those of the dataclass, or its ``__slots__``.
    With ``open``, instances may also have other attributes, each of which is shared too. Other processes find the class
    by its module and name, so they must be able to import it. Raises TypeError for an Enum, and for a class that has no
    fields and is not open, or whose base classes have state that a store would lose.
    """
    if cls is None:
        return lambda cls: _mark_shared(cls, open)
    return _mark_shared(cls, open)


def _mark_shared(cls: Any, is_open: bool) -> Any:
    """Mark a class as :func:`shared` does; return the class, or the dataclass that it has become. Raises TypeError."""
    if not isinstance(cls, type):
        raise TypeError(f"shared: expected a class, got {cls!r}")
    _check_bases(cls)
    own, base = cls.__dict__, getattr(cls, "__dataclass_params__", None)
    has_slots = hasattr(cls, "__slots__") if base is None else "__slots__" in own
    if "__dataclass_fields__" not in own and inspect.get_annotations(cls) and not has_slots:
        # Only a frozen dataclass can be derived from a frozen one.
        cls = dataclasses.dataclass(cls, frozen=base is not None and base.frozen)
    _register(SharedClass(cls, _fields_of(cls, is_open), is_open))
    allow_instance(cls)
    return cls


def _check_bases(cls: type) -> None:
    """Raise TypeError for an Enum, and for a class whose instances have items or state besides their fields."""
    if issubclass(cls, enum.Enum):
        raise TypeError(f"shared: {cls.__qualname__} is an Enum, whose members a store holds without a mark")
    for each in cls.__mro__[:-1]:
        # A class written in C makes its instances itself, with state besides their attributes.
        if isinstance(each.__dict__.get("__new__"), types.BuiltinFunctionType) or each is msgspec.Struct:
            raise TypeError(
                f"shared: {cls.__qualname__} is derived from {each.__qualname__}, whose state a store would lose: make "
                "it a dataclass with a field for the state, or use shmrpc.register()"
            )


def _register(shared_class: SharedClass) -> SharedClass:
    """Add a class to those that stores can hold; return it. Replaces an earlier class of the same name."""
    _classes[shared_class.cls] = _by_name[shared_class.name] = shared_class
    return shared_class


def _fields_of(cls: type, is_open: bool) -> tuple[str, ...]:
    """Return the names of a class's fields. Raises TypeError for none, unless it is a dataclass or is open."""
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


def registered_class(cls: type) -> SharedClass | None:
    """Return the SharedClass of a class; None if the class itself is not marked, also if a base class is."""
    return _classes.get(cls)


def struct_class(cls: type[enum.IntEnum]) -> SharedClass:
    """Return the SharedClass of structs whose fields are numbered by the members of an enumeration.

    The first call registers the enumeration. Raises TypeError if it is no IntEnum, or its members are not 0, 1, 2 and
    so on.
    """
    if not (isinstance(cls, type) and issubclass(cls, enum.IntEnum)):
        raise TypeError(f"struct: expected a class derived from IntEnum, got {cls!r}")
    if sorted(cls) != list(range(len(cls))) or not len(cls):
        raise TypeError(f"struct: the members of {cls.__qualname__} have to be 0, 1, 2 and so on, got {sorted(cls)}")
    return _classes.get(cls) or _register(SharedClass(cls, tuple(member.name for member in sorted(cls)), False))


def find_shared_class(name: str, fields: tuple[str, ...]) -> SharedClass:
    """Return the SharedClass of this name. Import its module if necessary.

    Raises DecodeError if the class cannot be found, is not marked, or has other fields, and what else the module raises
    while it is imported.
    """
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
    """The values of a struct that a store is about to hold."""

    shared_class: SharedClass
    fields: list[Any]


class _ClassNumbers(Protocol):
    def committed_class_number(self, shared_class: SharedClass) -> int: ...


class _StoreContext(Protocol):
    converter: _ClassNumbers


class _ClassProxy(SharedContainer):
    """A proxy of a struct or a record, which has a class."""

    __slots__ = ()
    _shared_class: SharedClass

    def _address(self) -> tuple[int, int, int, int]:
        """Return the type, class number, place and identity.

        Raises LocalProtocolError while the class is new in a transaction that is not committed.
        """
        return (
            RECORD_TYPE,
            cast(_StoreContext, self._store_context).converter.committed_class_number(self._shared_class),
            *self._place,
        )


class SharedStruct(_ClassProxy, _core.StructProxy):
    """A struct of a store: fields that are numbered by the members of an IntEnum."""

    __slots__ = ()

    def __repr__(self) -> str:
        values = {member.name: self[member] for member in sorted(self._shared_class.cls)}  # type: ignore[call-overload]
        return f"{self._shared_class.cls.__name__}({values})"


class SharedRecord(_ClassProxy, _core.Proxy):
    """An instance of a class that is in a store."""

    __slots__ = ()

    def __repr__(self) -> str:
        values = ", ".join(f"{name}={getattr(self, name)!r}" for name in self._shared_class.fields)
        return f"{self._shared_class.cls.__name__}({values})"

    def __delattr__(self, name: str) -> None:
        raise AttributeError(f"{type(self).__name__!r} object in a store: its attribute {name!r} cannot be deleted")


class _FrozenMixin:
    """Mixin of the proxies of frozen classes, whose attributes cannot be set."""

    __slots__ = ()

    def __setattr__(self, name: str, value: Any) -> None:
        raise dataclasses.FrozenInstanceError(f"cannot assign to field {name!r}")

    def __delattr__(self, name: str) -> None:
        raise dataclasses.FrozenInstanceError(f"cannot delete field {name!r}")


class _OpenMixin:
    """Mixin of the proxies of open classes, which have attributes besides the fields."""

    __slots__ = ()

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        found = self._extra(name)
        if not found:
            raise AttributeError(f"{type(self).__name__!r} object in a store has no attribute {name!r}")
        return found[0]

    def __setattr__(self, name: str, value: Any) -> None:
        if name in self._shared_class.fields or isinstance(getattr(type(self), name, None), property):
            object.__setattr__(self, name, value)
        else:
            self._set_extra(name, value)

    def __delattr__(self, name: str) -> None:
        if name in self._shared_class.fields or not self._drop_extra(name):
            raise AttributeError(f"{type(self).__name__!r} object in a store has no attribute {name!r} to delete")


def _make_proxy_class(shared_class: SharedClass) -> type:
    """Return a new class for proxies of instances, with the methods of their class and a descriptor for each field.

    A cached property is computed at each use, and a class method gets the original class.
    """
    space: dict[str, Any] = {"__slots__": (), "_shared_class": shared_class, "__module__": shared_class.cls.__module__}
    space["__doc__"] = shared_class.cls.__doc__
    if issubclass(shared_class.cls, enum.IntEnum):
        return types.new_class(shared_class.cls.__name__, (SharedStruct,), exec_body=lambda body: body.update(space))
    for each in reversed(shared_class.cls.__mro__[:-1]):
        for name, value in each.__dict__.items():
            if name not in _NOT_INHERITED and name not in shared_class.fields:
                if isinstance(value, functools.cached_property):
                    # A proxy caches nothing, because other processes may change the fields.
                    value = property(value.func, doc=value.__doc__)
                # A class method gets the class itself: it could not make an instance of the class of proxies.
                space[name] = staticmethod(getattr(shared_class.cls, name)) if isinstance(value, classmethod) else value
    for number, name in enumerate(shared_class.fields):
        space[name] = _core.RecordField(number)
    # With this, isinstance() and super() accept a proxy as an instance.
    space["__class__"] = property(lambda self: shared_class.cls)
    parameters = getattr(shared_class.cls, "__dataclass_params__", None)
    bases: tuple[type, ...] = (_OpenMixin, SharedRecord) if shared_class.is_open else (SharedRecord,)
    if parameters is not None and parameters.frozen:
        bases = (_FrozenMixin, *bases)
    if shared_class.cls.__hash__ is not None and shared_class.cls.__eq__ is not object.__eq__:
        # The hash of an equal instance. As with instances, the program must not change fields of a key.
        space["__hash__"] = lambda self: hash(self._copy())
    return types.new_class(shared_class.cls.__name__, bases, exec_body=lambda body: body.update(space))
