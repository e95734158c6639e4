"""The errors of a failed call."""

from __future__ import annotations

from shmrpc.errors import (
    ConnectionLost,
    DecodeError,
    EncodeError,
    EndOfStream,
    FrameTooLarge,
    LocalProtocolError,
    Overloaded,
    ServiceUnavailable,
    SharedMemoryError,
    ShmrpcError,
)
from shmrpc.transport.connection import CloseReason
from shmrpc.transport.errors import Backlog, Oversize
from shmrpc.values.blocks import Unmapped
from shmrpc.values.encode_errors import is_unsendable, reason
from shmrpc.wire.failure import CallRejected


def not_opened_error(name: str, with_statement: str) -> LocalProtocolError:
    """Return the error for a call whose streams are used before its block was entered."""
    return LocalProtocolError(f"{name}() is not open: use `{with_statement} as call:`")


def ended_by_caller_error(name: str) -> EndOfStream:
    """Return the error for a call by open() whose block was left before its end."""
    return EndOfStream(f"{name}() was ended by its caller")


def was_not_executed(error: BaseException) -> bool:
    """Return True if a call with this error was certainly not executed, so that it may be repeated.

    True only for ServiceUnavailable and ConnectionLost with ``maybe_executed`` False; False also for Overloaded.
    """
    return isinstance(error, (ServiceUnavailable, ConnectionLost)) and not error.maybe_executed


def swallowed_error(name: str) -> LocalProtocolError:
    """Return the error for a failed batch or open() whose exception an interceptor swallowed."""
    return LocalProtocolError(f"{name}: it failed, and an interceptor swallowed the exception; let it raise instead")


def send_error(name: str, error: Exception) -> Exception:
    """Return the error to raise in the caller for an error of sending a request; return other errors unchanged.

    Returns FrameTooLarge for Oversize, Overloaded for Backlog, and EncodeError for CallRejected.
    """
    if isinstance(error, Oversize):
        return FrameTooLarge(
            f"{name}(): the arguments are too large: {error}; set max_frame= on both sides, or for arrays and bytes "
            "max_memory= on this one"
        )
    if isinstance(error, Backlog):
        return Overloaded(f"{name}(): the server is far behind, and the call was not sent: {error} (max_memory=)")
    if isinstance(error, CallRejected):
        return EncodeError(f"{name}(): {error}")
    return error


def encode_error(name: str, error: Exception) -> Exception:
    """Return the error to raise in the caller for an error of encoding: EncodeError for arguments that cannot be sent.

    For other errors, return what send_error() returns.
    """
    if not isinstance(error, ShmrpcError) and is_unsendable(error):
        return EncodeError(f"{name}(): an argument cannot be sent as MessagePack: {reason(error)}")
    return send_error(name, error)


def decode_error(name: str, error: Exception) -> DecodeError | SharedMemoryError:
    """Return the error for a result that cannot be decoded, or that this process cannot map."""
    if isinstance(error, Unmapped):
        return SharedMemoryError(error.errno, f"{name}(): the result cannot be read: {error}")
    return DecodeError(f"{name}(): the result cannot be decoded, or is not of the declared type: {error}")


def connection_lost_error(end: CloseReason, call_id: int) -> ShmrpcError:
    """Return a new error for a call that was in flight when the connection ended.

    A ConnectionLost has ``maybe_executed`` False if the server cannot have executed the call. Any other error is a copy
    of the one in ``end``.
    """
    if isinstance(end.error, ConnectionLost):
        return ConnectionLost(str(end.error), maybe_executed=end.reached is None or call_id <= end.reached)
    return closed_error(end.error)


def closed_error(error: ShmrpcError) -> ShmrpcError:
    """Return a new copy of an error, with its own traceback, for a call after the end of the connection.

    The copy of a ConnectionLost has ``maybe_executed`` False, because the call was not sent.
    """
    return type(error)(*error.args)
