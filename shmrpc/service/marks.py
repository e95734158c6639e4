"""Methods that are marked as endpoints, for a service to include an object."""

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
    """Marks a method as an endpoint, for :meth:`Service.include` of an instance.

    The options are those of :meth:`Service.endpoint`. It may stand above or below ``@staticmethod`` and
    ``@classmethod``. A class that overrides a marked method marks its own.

    Raises TypeError for what is no method.
    """

    def mark(function: _F) -> _F:
        _check_method(function)
        setattr(function, _MARK, EndpointOptions(name, run_in, threads))
        return function

    return mark if function is None else mark(function)


def iter_marked(source: object) -> Iterator[tuple[Callable[..., Any], EndpointOptions]]:
    """Each marked method of an object, and what its mark says, a name included; none of a class.

    Raises TypeError for a mark that would be lost.
    """
    if isinstance(source, type):
        return
    for attribute in dir(type(source)):
        options = _mark_of(type(source), attribute)
        if options is not None:
            name = attribute if options.name is None else options.name
            yield getattr(source, attribute), msgspec.structs.replace(options, name=name)


def _check_method(function: Any) -> None:
    """TypeError for what cannot be marked as an endpoint of an object."""
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
    """What ``@endpoint`` was told of a member of a class; nothing is evaluated, as a property would be.

    TypeError if the mark would be lost: on a property, or on a method that is overridden by one without.
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
    inner = static.__func__ if isinstance(static, (staticmethod, classmethod)) else static
    for each in (static, inner):
        options = getattr(each, "__dict__", {}).get(_MARK)
        if isinstance(options, EndpointOptions):
            return options
    return None
