"""The outcome of a call in one word, for logs and traces of both sides."""

from __future__ import annotations

import asyncio
from typing import Final

from shmrpc.errors import ApplicationError, DeadlineExceeded, RemoteError
from shmrpc.exception_parts import class_name
from shmrpc.service.call import Call
from shmrpc.wire.failure import CallRejected, describe_failure, failure_error

OK: Final = "ok"
#: The caller was cancelled or left the stream, or the server stopped.
CANCELLED: Final = "cancelled"
DEADLINE_EXCEEDED: Final = "deadline_exceeded"


def outcome_of(call: Call, error: BaseException | None) -> str:
    """Return ``ok``, ``cancelled``, ``deadline_exceeded``, an ApplicationError's code, or the exception's class.

    ``error`` is the exception that passed through the call's interceptors. The class name is qualified unless it is a
    builtin. An exception that was raised remotely has the name of its class at the remote side.
    """
    if error is None:
        return OK
    if isinstance(error, CallRejected):  # The caller gets a different class.
        error = failure_error(describe_failure(error))
    if isinstance(error, ApplicationError):
        return error.code
    # A DeadlineExceeded that is a RemoteError belongs to a call made by the handler.
    if isinstance(error, DeadlineExceeded) and not isinstance(error, RemoteError):
        return DEADLINE_EXCEEDED
    # The handler gets its deadline as a cancellation.
    if isinstance(error, asyncio.CancelledError) and call.remaining() == 0:
        return DEADLINE_EXCEEDED
    if isinstance(error, (asyncio.CancelledError, GeneratorExit)):
        return CANCELLED
    kind = type(error)
    name = (isinstance(error, RemoteError) and error.type_name) or class_name(kind)
    return name.removeprefix("builtins.")
