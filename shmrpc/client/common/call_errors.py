"""The errors of a failed call."""

from __future__ import annotations

from shmrpc.errors import (
    ConnectionLost,
    DecodeError,
    EncodeError,
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
    """The error for a call whose streams are used before its block has begun."""
    return LocalProtocolError(f"{name}() was not called: it is open in a block, `{with_statement} as call:`")


def was_not_executed(error: BaseException) -> bool:
    """Whether a call that failed so was certainly not begun, and may be sent again."""
    return isinstance(error, (ServiceUnavailable, ConnectionLost)) and not error.maybe_executed


def swallowed_error(name: str) -> LocalProtocolError:
    """The error for a batch whose failure an interceptor kept to itself: there are no results to give."""
    return LocalProtocolError(f"{name}: it failed, and an interceptor swallowed the exception; let it raise instead")


def send_error(name: str, error: Exception) -> Exception:
    """The error for what could not be sent; any other, as of a signal's handler, is given back as it is."""
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
    """The error for arguments that encoding has failed with. For what encoding raises, and nothing else."""
    if not isinstance(error, ShmrpcError) and is_unsendable(error):
        return EncodeError(f"{name}(): an argument cannot be sent as MessagePack: {reason(error)}")
    return send_error(name, error)


def decode_error(name: str, error: Exception) -> DecodeError | SharedMemoryError:
    """The error for a result that cannot be read, or for which this process has no room."""
    if isinstance(error, Unmapped):
        return SharedMemoryError(error.errno, f"{name}(): the result cannot be read: {error}")
    return DecodeError(f"{name}(): the result cannot be read, or is not what it is declared as: {error}")


def connection_lost_error(end: CloseReason, call_id: int) -> ShmrpcError:
    """The error for a call under way when the connection ended: each call has its own."""
    if isinstance(end.error, ConnectionLost):
        return ConnectionLost(str(end.error), maybe_executed=end.reached is None or call_id <= end.reached)
    return closed_error(end.error)


def closed_error(error: ShmrpcError) -> ShmrpcError:
    """The error for a call on a connection that had ended: each call has its own, with its own traceback."""
    return type(error)(*error.args)
