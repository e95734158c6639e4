"""Types of parameters and results: which ones are streams, and which ones cannot be sent."""

from __future__ import annotations

import inspect
from collections.abc import (
    AsyncGenerator,
    AsyncIterable,
    AsyncIterator,
    Awaitable,
    Callable,
    Coroutine,
    Generator,
    Iterable,
    Iterator,
)
from typing import Annotated, Any, Final, Literal, get_args, get_origin

from shmrpc.values.aliases import UNIONS
from shmrpc.values.type_names import type_name

#: Annotations that make a parameter a stream from the caller, and a plain function's result a stream to it.
_INPUTS: Final = (AsyncIterator, AsyncIterable)
_OUTPUTS: Final = (AsyncIterator, AsyncGenerator, AsyncIterable, Iterator, Generator)
#: Annotations of a generator function that hold the item type.
_YIELDED: Final = (*_OUTPUTS, Iterable)
_AWAITED: Final = (Awaitable, Coroutine)
#: Types that no frame can carry, at any place in a type.
_UNSENDABLE_TYPES: Final = (*_OUTPUTS, *_AWAITED)


def is_streaming(function: Callable[..., Any], result: Any) -> bool:
    """Return True if a function with this declared result streams to its caller."""
    return _is_generator(function) or (not inspect.iscoroutinefunction(function) and _origin(result) in _OUTPUTS)


def output_item(result: Any) -> Any:
    """Return the item type of a declared result that is a stream to the caller; Any if undeclared."""
    return _item_type(result, _YIELDED)


def is_input(kind: Any) -> bool:
    """Return True if a parameter of this type, or of this type ``| None``, takes a stream from the caller."""
    return _origin(_without_none(kind)) in _INPUTS


def input_item(kind: Any) -> Any:
    """Return the item type of a parameter that takes a stream from the caller; Any if undeclared."""
    return _item_type(_without_none(kind), _INPUTS)


def check_parameter(parameter: inspect.Parameter, item: Any) -> None:
    """Raise TypeError for a parameter whose type contains a stream or an awaitable where none can be.

    Also raises TypeError for a stream with a default other than None or an async iterator, for a variadic stream, and
    for ``stream | None`` without a default. ``item`` is the item type of a parameter that takes a stream, otherwise the
    type of the parameter.
    """
    kind, default = parameter.annotation, parameter.default
    if is_input(kind):
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
            raise TypeError(f"parameter {parameter.name!r} cannot be a stream: name each stream")
        if default is parameter.empty and _without_none(kind) is not kind:
            raise TypeError(
                f"parameter {parameter.name!r} takes a stream or None, so that callers may leave it out: "
                "give it the default None, or declare it without None"
            )
        if default is not parameter.empty and default is not None and not isinstance(default, AsyncIterable):
            raise TypeError(
                f"parameter {parameter.name!r} takes a stream: its default has to be None or an async iterator, "
                f"not {default!r}"
            )
    within = _find_unsendable(item)
    if within is None:
        return
    name = _origin(within).__name__
    if _origin(within) in _AWAITED:
        advice = "callers cannot send an awaitable: declare the type of its result"
    elif is_input(kind):
        advice = f"the items of a stream have to be values, so that no {name} can be in them"
    elif _origin(kind) not in _UNSENDABLE_TYPES:
        advice = f"a stream has to be a parameter of its own, declared AsyncIterator[T]: no {name} can be in it"
    else:
        advice = "declare a parameter that takes a stream as AsyncIterator[T]; callers may send any iterable"
    raise TypeError(f"parameter {parameter.name!r} is declared as {type_name(kind)}: {advice}")


def check_result(function: Callable[..., Any], result: Any) -> None:
    """Raise TypeError for a declared result that does not match the function, or that contains a stream."""
    what = f"its result is declared as {type_name(result)}"
    if _is_generator(function):
        if result not in (Any, object) and _origin(result) not in _YIELDED:
            name = "AsyncIterator[T]" if inspect.isasyncgenfunction(function) else "Iterator[T]"
            raise TypeError(f"it yields, so it streams, but {what}: declare {name}, or return a list")
        result = output_item(result)
    elif inspect.iscoroutinefunction(function):
        if _origin(result) in _OUTPUTS:
            raise TypeError(
                f"{what}, but it has no yield: yield the items, or make it a plain def that returns the iterator"
            )
        if _origin(result) in _AWAITED:
            raise TypeError(f"{what}: of an async def, declare the awaited result")
    elif is_streaming(function, result):
        result = output_item(result)
    elif _origin(result) in _AWAITED:
        raise TypeError(f"{what}: make it an async def that awaits it, and declare the result")
    within = _find_unsendable(result)
    if within is not None:
        raise TypeError(f"{what}: no {_origin(within).__name__} can be within a result or an item of a stream")


def _is_generator(function: Callable[..., Any]) -> bool:
    """Return True for a generator function, plain or async."""
    return inspect.isasyncgenfunction(function) or inspect.isgeneratorfunction(function)


def _item_type(kind: Any, generics: tuple[Any, ...]) -> Any:
    """Return the first type argument of a type that is one of these generic types; Any for any other type."""
    kind = _without_annotated(kind)
    arguments = get_args(kind) if get_origin(kind) in generics else ()
    return arguments[0] if arguments else Any


def _origin(kind: Any) -> Any:
    """Return the generic type of a type, without ``Annotated``; the type itself if it is not generic."""
    kind = _without_annotated(kind)
    return get_origin(kind) or kind


def _without_annotated(kind: Any) -> Any:
    """Return T for ``Annotated[T, ...]``, and any other type unchanged."""
    return get_args(kind)[0] if get_origin(kind) is Annotated else kind


def _without_none(kind: Any) -> Any:
    """Return T for ``T | None``, and any other type unchanged."""
    if get_origin(kind) not in UNIONS:
        return kind
    members = [each for each in get_args(kind) if each is not type(None)]
    return members[0] if len(members) == 1 else kind


def _find_unsendable(kind: Any) -> Any:
    """Return the first type within this one that cannot be sent; None if there is none."""
    kind = _without_annotated(kind)
    if _origin(kind) in _UNSENDABLE_TYPES:
        return kind
    if get_origin(kind) in (Literal, Callable):
        return None
    found = map(_find_unsendable, get_args(kind))
    return next((each for each in found if each is not None), None)
