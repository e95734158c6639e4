"""Values that cannot be sent: why not, and what to send instead."""

from __future__ import annotations

import contextlib
import io
import types
from collections.abc import AsyncIterable, Awaitable, Iterator, MappingView
from typing import Any, Final

from shmrpc.basics.signals import is_of_a_handler

#: What encoding raises for a value that cannot be sent.
UNSENDABLE: Final = (TypeError, ValueError, OverflowError, RecursionError)


def is_unsendable(error: Exception, kinds: tuple[type[Exception], ...] = UNSENDABLE) -> bool:
    """Whether an exception from encoding says that the value cannot be sent, and is not a signal handler's."""
    return isinstance(error, kinds) and not is_of_a_handler(error)


def reason(error: Exception) -> str:
    """Why a value could not be encoded."""
    if isinstance(error, RecursionError):
        return "it contains itself, or is nested too deeply"
    return str(error)


def unsupported(value: Any) -> TypeError:
    """The error for a value of a type that does not travel."""
    kind = type(value)
    advice, _ = _advice(value)
    advice = advice or f"shmrpc.register({kind.__name__}, encode, decode) says how they travel"
    return TypeError(f"Encoding objects of type {kind.__qualname__} is unsupported; {advice}")


def returned(result: Any) -> str:
    """What an endpoint should do instead of returning this; "" if its class simply does not travel."""
    return _advice(result)[1]


def _advice(value: Any) -> tuple[str, str]:
    """What to do instead of sending a value; and instead of returning it from an endpoint."""
    if isinstance(value, Awaitable):
        return "await it, and send what that gives", "make the endpoint an async def, and await it there"
    if isinstance(value, io.IOBase):  # An iterator too.
        return "read it, and send what was in it", ""
    if isinstance(value, AsyncIterable):
        return _SEND_A_LIST, "declare the result as AsyncIterator[T], and it streams"
    if isinstance(value, Iterator):
        return _SEND_A_LIST, "declare the result as Iterator[T], and it streams; or return a list"
    if isinstance(value, MappingView):
        return "send a list of it", ""
    if isinstance(value, _CONTEXT_MANAGERS) and type(value).__module__ == "contextlib":
        return (
            "enter it, and send what that gives",
            "enter it in the endpoint, or in the service's lifespan if it is to last",
        )
    if isinstance(value, _NO_VALUES):
        return "functions, classes and modules do not travel: send a name", ""
    return "", ""


_SEND_A_LIST: Final = "send a list of its items, or declare a stream"
_CONTEXT_MANAGERS: Final = (contextlib.AbstractContextManager, contextlib.AbstractAsyncContextManager)
_NO_VALUES: Final = (type, types.ModuleType, types.FunctionType, types.MethodType, types.BuiltinFunctionType)
