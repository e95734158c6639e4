"""Words for a value that cannot be sent: why not, and what can be sent in its place."""

from __future__ import annotations

import contextlib
import io
import types
from collections.abc import AsyncIterable, Awaitable, Iterator, KeysView, MappingView
from typing import Any, Final

from shmrpc.basics.signals import is_of_a_handler

#: What encoding raises for a value that cannot be sent.
UNSENDABLE: Final = (TypeError, ValueError, OverflowError, RecursionError)

_FUNCTIONS = (types.FunctionType, types.MethodType, types.BuiltinFunctionType)


def is_unsendable(error: Exception, kinds: tuple[type[Exception], ...] = UNSENDABLE) -> bool:
    """Whether an exception out of encoding says that the value cannot be sent; others are a signal handler's."""
    return isinstance(error, kinds) and not is_of_a_handler(error)


def reason(error: Exception) -> str:
    """Why a value could not be encoded."""
    if isinstance(error, RecursionError):
        return "it contains itself, or is nested too deeply"
    return str(error)


def unsupported(value: Any) -> TypeError:
    """The error for a value of a type that does not travel."""
    kind = type(value)
    advice = _advice(value) or f"shmrpc.register({kind.__name__}, encode, decode) says how they travel"
    return TypeError(f"Encoding objects of type {kind.__qualname__} is unsupported; {advice}")


def _advice(value: Any) -> str:
    if isinstance(value, Awaitable):
        return "await it, and send what that gives"
    if isinstance(value, (AsyncIterable, Iterator)) and not isinstance(value, io.IOBase):
        return "send a list of its items, or declare a stream"
    if isinstance(value, (MappingView, KeysView)):
        return "send a list of it"
    if isinstance(value, io.IOBase):
        return "read it, and send what was in it"
    if _is_context_manager(value):
        return "enter it, and send what that gives"
    if isinstance(value, (type, types.ModuleType, *_FUNCTIONS)):
        return "functions, classes and modules do not travel: send a name"
    return ""


def returned(result: Any) -> str:
    """What an endpoint should do instead of returning this; "" for what is merely of a class that does not travel."""
    if isinstance(result, Awaitable):
        return "make the endpoint an async def, and await it there"
    if isinstance(result, AsyncIterable):
        return "declare the result as AsyncIterator[T], and it streams"
    if isinstance(result, Iterator) and not isinstance(result, io.IOBase):
        return "declare the result as Iterator[T], and it streams; or return a list"
    if _is_context_manager(result):
        return "enter it in the endpoint, or in the service's lifespan if it is to last"
    return ""


def _is_context_manager(value: Any) -> bool:
    managers = (contextlib.AbstractContextManager, contextlib.AbstractAsyncContextManager)
    return isinstance(value, managers) and type(value).__module__ == "contextlib"
