"""How a call ended, in a word: for logs and traces, the same at both sides."""

from __future__ import annotations

import asyncio
from typing import Final

from shmrpc.errors import ApplicationError, DeadlineExceeded, RemoteError, class_name
from shmrpc.service.call import Call
from shmrpc.wire.failure import CallRejected, describe_failure, failure_error

OK: Final = "ok"
#: Its caller was cancelled or left the stream, or the server stopped.
CANCELLED: Final = "cancelled"
DEADLINE_EXCEEDED: Final = "deadline_exceeded"


def outcome_of(call: Call, error: BaseException | None) -> str:
    """``ok``, ``cancelled``, ``deadline_exceeded``, an ApplicationError's code, or the name of the exception's class.

    ``error`` is what went through the call's interceptors. Of a class that is no builtin it is the qualified
    name, and of an exception that was raised remotely the name it had there.
    """
    if error is None:
        return OK
    if isinstance(error, CallRejected):  # The caller is to see another class.
        error = failure_error(describe_failure(error))
    if isinstance(error, ApplicationError):
        return error.code
    if isinstance(error, DeadlineExceeded) and not isinstance(error, RemoteError):  # Else it is an inner call's.
        return DEADLINE_EXCEEDED
    if isinstance(error, asyncio.CancelledError) and call.remaining() == 0:  # So a handler hears of its deadline.
        return DEADLINE_EXCEEDED
    if isinstance(error, (asyncio.CancelledError, GeneratorExit)):
        return CANCELLED
    kind = type(error)
    name = (isinstance(error, RemoteError) and error.type_name) or class_name(kind)
    return name.removeprefix("builtins.")
