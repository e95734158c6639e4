"""The exceptions of shmrpc.

::

    ShmrpcError
    ├── ServiceUnavailable     nobody serves the name                    also ConnectionError
    ├── ServiceInUse           somebody else serves the name already
    ├── SharedMemoryError      the segment cannot be had                 also OSError
    ├── ConnectionLost         the peer is gone                          also ConnectionError
    ├── ProtocolError
    │   ├── LocalProtocolError     this side was used wrongly
    │   └── RemoteProtocolError    the peer broke the rules; the connection is over
    └── CallError              one call failed; the connection goes on
        ├── RemoteError            the endpoint raised                   also the builtin it raised
        ├── EndpointNotFound       the service has no such endpoint      also AttributeError
        ├── InvalidArguments       the arguments do not fit              also TypeError
        ├── EncodeError            a value cannot become MessagePack     also TypeError
        ├── DecodeError            the result cannot be read, or is not of the declared type   also ValueError
        ├── FrameTooLarge          a value is over ``max_frame``         also ValueError
        ├── DeadlineExceeded       the call's time is over               also TimeoutError
        ├── Overloaded             too many calls wait, at the server or for it
        └── CallStopped            ``client.stop()`` ended the wait
"""

from __future__ import annotations

import builtins
import functools
from typing import Any, Final

__all__ = [
    "CallError",
    "CallStopped",
    "ConnectionLost",
    "DeadlineExceeded",
    "DecodeError",
    "EncodeError",
    "EndpointNotFound",
    "FrameTooLarge",
    "InvalidArguments",
    "LocalProtocolError",
    "Overloaded",
    "ProtocolError",
    "RemoteError",
    "RemoteProtocolError",
    "ServiceInUse",
    "ServiceUnavailable",
    "SharedMemoryError",
    "ShmrpcError",
    "remote_error",
]


class ShmrpcError(Exception):
    """Everything that shmrpc raises of its own."""


class ServiceUnavailable(ShmrpcError, ConnectionError):
    """No server answered for the service within the time given."""


class ServiceInUse(ShmrpcError):
    """Another live server has the name. ``pid`` is its process, or None if it did not say."""

    def __init__(self, message: str, pid: int | None = None) -> None:
        super().__init__(message)
        self.pid = pid


class SharedMemoryError(ShmrpcError, OSError):
    """The shared memory for a connection cannot be had, or is not what it should be."""


class ConnectionLost(ShmrpcError, ConnectionError):
    """The peer is gone.

    ``maybe_executed`` is True if the call had been sent: whether the endpoint ran is unknown then,
    and calling again may run it twice.
    """

    def __init__(self, message: str, *, maybe_executed: bool = False) -> None:
        super().__init__(message)
        self.maybe_executed = maybe_executed


class ProtocolError(ShmrpcError):
    """The rules between the two sides were broken."""


class LocalProtocolError(ProtocolError):
    """This side was used in a way it cannot be: a closed client, another loop, another process."""


class RemoteProtocolError(ProtocolError):
    """The peer sent what it must not. Its connection is over; no other one is touched."""


class CallError(ShmrpcError):
    """One call failed. The connection and all its other calls go on."""


class RemoteError(CallError):
    """The endpoint raised an exception.

    ``type_name`` is the qualified name of its class, ``remote_traceback`` the text of its traceback; it
    is printed below the local one. A builtin exception, or one derived from it, arrives as a subclass
    of both RemoteError and that builtin, so ``except ValueError`` works as it would locally.
    """

    type_name: str = ""
    remote_traceback: str = ""


class EndpointNotFound(CallError, AttributeError):
    """The service has no endpoint of this name."""


class InvalidArguments(CallError, TypeError):
    """The arguments do not fit the endpoint: which parameter, what was expected, what came."""


class EncodeError(CallError, TypeError):
    """An argument or a result cannot be carried by MessagePack."""


class DecodeError(CallError, ValueError):
    """The result cannot be read, or is not what the endpoint's function declares."""


class FrameTooLarge(CallError, ValueError):
    """The arguments or the result, encoded, are over ``max_frame`` bytes."""


class DeadlineExceeded(CallError, TimeoutError):
    """The call had not ended by its deadline. If it had begun, its handler is cancelled."""


class Overloaded(CallError):
    """Too many calls wait. This one was not begun.

    The server has as many under way, and as many that wait, as it allows. Or it does not read, and as many bytes
    wait on this side as ``max_memory`` allows.
    """


class CallStopped(CallError):
    """Another thread called ``stop()`` on the client. If the call had begun, its handler is cancelled."""


def remote_error(
    message: str, *, type_name: str, base: str, args: list[Any] | None, remote_traceback: str
) -> RemoteError:
    """The local stand-in for an exception that an endpoint raised.

    ``base`` names the builtin exception it is, or is derived from; ``args`` are its arguments where
    they could be carried.
    """
    error = _instance(base, message, args)
    error.type_name = type_name
    error.remote_traceback = remote_traceback
    if type_name.removeprefix("builtins.") != base:
        error.add_note(f"Raised remotely as {type_name}")
    if remote_traceback:
        error.add_note(f"Remote traceback:\n{remote_traceback.rstrip()}")
    return error


def _instance(base: str, message: str, args: list[Any] | None) -> RemoteError:
    kind = _remote_class(base) if base in _BUILTINS else RemoteError
    for arguments in (args, [message]):
        if arguments is not None:
            try:
                return kind(*arguments)
            except Exception:  # Not every exception takes any arguments: UnicodeDecodeError wants five.
                continue
    return RemoteError(message)


#: Only of these a class is made, and kept: the name is the peer's to choose.
_BUILTINS: Final = frozenset(dir(builtins))


@functools.cache
def _remote_class(base: str) -> type[RemoteError]:
    """RemoteError and the builtin exception of this name in one class."""
    builtin = getattr(builtins, base, None)
    if not (isinstance(builtin, type) and issubclass(builtin, Exception)) or builtin is Exception:
        return RemoteError
    if issubclass(builtin, (StopIteration, StopAsyncIteration)):
        return RemoteError  # These cannot leave a coroutine: Python turns them into RuntimeError.
    try:
        return type(f"Remote{base}", (RemoteError, builtin), {"__module__": __name__, "__doc__": builtin.__doc__})
    except TypeError:  # A layout that cannot be combined.
        return RemoteError
