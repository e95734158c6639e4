"""Defaults of dataclasses in instances that msgspec builds.

msgspec does not call ``__init__``. It sets a default only if the instance has no attribute of that name, and a plain
default is an attribute of the class. So ``vars()`` and ``pickle`` do not find the field in the instance; an attribute
of a base class even hides a default factory, or a missing field. But msgspec calls ``__post_init__``, which it looks up
once, when it first reads a class. During that lookup, this module puts a hook in the place of ``__post_init__``, which
sets the missing fields and then calls the ``__post_init__`` of the class.
"""

from __future__ import annotations

import contextlib
import dataclasses
import threading
import types
import typing
import weakref
from collections.abc import Callable
from typing import Any, Final, get_args, get_origin

import msgspec

from shmrpc import _core
from shmrpc.values.fields import class_defaults, hints_of, names_of

_POST_INIT: Final = "__post_init__"
#: Attribute in which msgspec caches its facts about a class.
_CACHE: Final = "__msgspec_cache__"
_lock: Final = threading.RLock()
#: Classes, and generic aliases of them, that msgspec has cached with a hook of this module.
_hooked: Final[weakref.WeakSet[Any]] = weakref.WeakSet()


def complete(kind: Any) -> None:
    """Have msgspec set all fields of the instances that it builds of the dataclasses in this type.

    Changes ``__post_init__`` of these classes while it runs, under a lock. Ignores types that msgspec does not support.
    """
    found = _classes_in(kind, {})
    with _lock:
        hooks = {cls: hook for cls in set(found.values()) if (hook := _make_hook(cls)) is not None}
        hooked = [each for each, cls in found.items() if cls in hooks]
        if all(each in _hooked and _CACHE in vars(each) for each in hooked):
            return
        before = {cls: vars(cls)[_POST_INIT] for cls in hooks if _POST_INIT in vars(cls)}
        try:
            for cls, hook in hooks.items():
                setattr(cls, _POST_INIT, hook)
            for each in found:  # Its cache includes the classes of its fields.
                with contextlib.suppress(AttributeError, TypeError):  # A Struct, for example, has no such cache.
                    delattr(each, _CACHE)
            for each in (*found, kind):
                _fill_cache(each)
        finally:
            for cls in hooks:
                if cls in before:
                    setattr(cls, _POST_INIT, before[cls])
                else:
                    delattr(cls, _POST_INIT)
        _hooked.update(hooked)


def _fill_cache(kind: Any) -> None:
    """Have msgspec read and cache a type; ignore an unsupported one."""
    try:
        msgspec.msgpack.Decoder(kind)
    except Exception:  # The use of the type will raise the error; parts of it may be cached now.
        return


def _classes_in(kind: Any, found: dict[Any, type]) -> dict[Any, type]:
    """Add to ``found`` the classes with fields in a type, by the class or generic alias there, and return ``found``.

    A generic alias that cannot be hashed counts as its class.
    """
    origin, args = get_origin(kind), get_args(kind)
    if isinstance(kind, typing.NewType):
        return _classes_in(kind.__supertype__, found)
    if origin is typing.Literal:
        return found
    if origin is typing.Annotated:  # Its metadata need not be hashable.
        return _classes_in(args[0], found)
    for each in args:
        _classes_in(each, found)
    cls = origin or kind
    if not isinstance(cls, type) or (names_of(cls) is None and not hasattr(cls, "__annotations__")):
        return found
    key = kind if _is_hashable(kind) else cls
    if key not in found:
        found[key] = cls
        for each in (hints_of(cls) or {}).values():
            _classes_in(each, found)
    return found


def _is_hashable(kind: Any) -> bool:
    """Return True if a type can be hashed, with its arguments."""
    try:
        hash(kind)
    except TypeError:
        return False
    return True


class _PostInitHook:
    """``__post_init__`` while msgspec reads the class; another thread may build an instance just then."""

    def __init__(self, function: Callable[[Any], None]) -> None:
        self._function = function

    def __get__(self, instance: Any, owner: type) -> Callable[..., None]:
        return self._function if instance is None else types.MethodType(self._function, instance)


def _make_hook(cls: type) -> _PostInitHook | None:
    """Return a hook that sets the fields that msgspec leaves to the class; None if there are none."""
    if not dataclasses.is_dataclass(cls) or issubclass(cls, msgspec.Struct):
        return None
    left = set(class_defaults(cls, names_of(cls) or ()))
    # ``__init__`` itself leaves a plain default to the class if the field is no parameter.
    getters = {
        each.name: _make_default_getter(each)
        for each in dataclasses.fields(cls)
        if each.name in left and _is_set_by_init(each)
    }
    if not getters:
        return None

    def complete(instance: Any) -> None:
        for name, get in getters.items():
            if name not in instance.__dict__:
                object.__setattr__(instance, name, get())

    return _PostInitHook(_core.PostInit(tuple(getters), complete, getattr(cls, _POST_INIT, None)))


def _is_set_by_init(field: dataclasses.Field[Any]) -> bool:
    """Return True if ``__init__`` sets a field in the instance."""
    return field.init or field.default_factory is not dataclasses.MISSING


def _make_default_getter(field: dataclasses.Field[Any]) -> Callable[[], Any]:
    """Return a function that returns the default of a field, or raises ValueError if there is none."""
    if field.default_factory is not dataclasses.MISSING:
        return field.default_factory

    def default() -> Any:
        if field.default is dataclasses.MISSING:
            raise ValueError(f"Object missing required field `{field.name}`")
        return field.default

    return default
