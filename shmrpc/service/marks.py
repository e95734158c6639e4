"""Marks of methods as endpoints, for services that include an object."""

from __future__ import annotations

import functools
import inspect
import types
from collections.abc import Callable, Iterator
from typing import Any, Final, TypeVar, overload

import msgspec

from shmrpc.service.endpoints import EndpointOptions, RunIn, defining_class, self_parameter

_F = TypeVar("_F", bound=Callable[..., Any])

_MARK: Final = "__shmrpc_endpoint__"


@overload
def endpoint(function: _F, /) -> _F: ...
@overload
def endpoint(*, name: str | None = None, run_in: RunIn = "loop", threads: int | None = None) -> Callable[[_F], _F]: ...
def endpoint(
    function: Any = None, /, *, name: str | None = None, run_in: RunIn = "loop", threads: int | None = None
) -> Any:
    """Mark a method as an endpoint, for :meth:`Service.include` of an instance.

    Options: see :meth:`Service.endpoint`. The decorator may stand above or below ``@staticmethod`` and
    ``@classmethod``. A class that overrides a marked method must mark its own method.

    Returns the method itself, marked. Raises TypeError for an object that is no method; errors of the options are
    raised by :meth:`Service.include`.
    """

    def mark(function: _F) -> _F:
        _check_method(function)
        setattr(function, _MARK, EndpointOptions(name, run_in, threads))
        return function

    return mark if function is None else mark(function)


def iter_marked(source: object) -> Iterator[tuple[Callable[..., Any], EndpointOptions]]:
    """Yield each marked method, bound to the object, with its options, including its name, in alphabetical order.

    Yields nothing if ``source`` is a class.

    Raises TypeError for a mark on a property, or on a method that an unmarked method overrides.
    """
    if isinstance(source, type):
        return
    for attribute in dir(type(source)):
        options = _mark_of(type(source), attribute)
        if options is not None:
            name = attribute if options.name is None else options.name
            yield getattr(source, attribute), msgspec.structs.replace(options, name=name)


def _check_method(function: Any) -> None:
    """Raise TypeError for an object that cannot be marked as an endpoint."""
    if isinstance(function, type):
        raise TypeError(f"@shmrpc.endpoint: expected a method, got the class {function.__qualname__}; mark its methods")
    if isinstance(function, (property, functools.cached_property)):
        raise TypeError(f"@shmrpc.endpoint: expected a method, got a {type(function).__name__}; make it a method")
    if not isinstance(function, (staticmethod, classmethod)) and not callable(function):
        raise TypeError(f"@shmrpc.endpoint: expected a method, got {function!r}")
    if isinstance(function, types.FunctionType) and not defining_class(function) and not self_parameter(function):
        raise TypeError(
            f"@shmrpc.endpoint marks methods, and {function.__qualname__}() is none: "
            "for a function it is @service.endpoint, of the service that offers it"
        )


def _mark_of(cls: type, attribute: str) -> EndpointOptions | None:
    """Return the mark of a class member without evaluating the member; None if there is none.

    Raises TypeError if the mark would be lost: on a property, or on a method that an unmarked method overrides.
    """
    static = inspect.getattr_static(cls, attribute, None)
    options = _direct_mark(static)
    if options is not None:
        return options
    if isinstance(static, (property, functools.cached_property)):
        getter = static.fget if isinstance(static, property) else static.func
        if _direct_mark(getter) is not None:
            raise TypeError(
                f"{cls.__qualname__}.{attribute} is marked @shmrpc.endpoint, and is a property: make it a method"
            )
    for base in cls.__mro__[1:]:
        if callable(static) and _direct_mark(base.__dict__.get(attribute)) is not None:
            raise TypeError(
                f"{cls.__qualname__}.{attribute} overrides an endpoint of {base.__qualname__} and is none itself: "
                "mark it with @shmrpc.endpoint too"
            )
    return None


def _direct_mark(static: Any) -> EndpointOptions | None:
    """Return the mark on a class member itself, or on the function within a static or class method; or None."""
    inner = static.__func__ if isinstance(static, (staticmethod, classmethod)) else static
    for each in (static, inner):
        options = getattr(each, "__dict__", {}).get(_MARK)
        if isinstance(options, EndpointOptions):
            return options
    return None
