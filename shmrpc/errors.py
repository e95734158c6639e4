"""The exceptions of shmrpc.

::

    ShmrpcError
    ├── ServiceUnavailable     no server answers for the service            also ConnectionError
    ├── ServiceInUse           another server has the name
    ├── SharedMemoryError      shared memory or a descriptor is missing     also OSError
    ├── ConnectionLost         the peer has ended                           also ConnectionError
    ├── NameConflict           another kind of object, or another size, has the name   also ValueError
    ├── WaitTimeout            the time to wait is over                     also TimeoutError
    │   ├── QueueBusy              a process is stopped in the middle of a change of the queue
    │   ├── QueueEmpty             no item has come                         also asyncio's and queue.Empty
    │   ├── QueueFull              the queue has no room                    also asyncio's and queue.Full
    │   ├── StoreBusy              another process is within a transaction
    │   └── TopicFull              the slowest subscriber has not read
    ├── StoreFull              the store has no room                        also MemoryError
    ├── ObjectDeleted          the object was removed from its store        also ReferenceError
    ├── QueueShutDown          the queue is shut down and empty             also asyncio's and queue.ShutDown (3.13)
    ├── StaleClaim             the claim had ended before
    ├── PublisherGone          a publisher has ended, and all its messages were read
    ├── SlowConsumer           the subscriber was too slow, and a publisher dropped it
    ├── MessagesLost           the subscriber has missed messages
    ├── WorkerDied             a worker of a pool died while it ran the task
    ├── PoolBroken             the workers of a pool cannot start           also concurrent.futures' BrokenExecutor
    ├── WaitStopped            ``stop()`` ended the wait
    ├── EndOfStream            a stream that was opened by hand has ended   also EOFError
    ├── ProtocolError
    │   ├── LocalProtocolError     this side was used wrongly
    │   └── RemoteProtocolError    the peer broke the protocol; the connection has ended
    └── CallError              one call failed; the connection still works
        ├── RemoteError            the endpoint raised                      also the class of the exception raised
        │   └── ApplicationError       on purpose: a code, a message and details
        ├── EndpointNotFound       the service has no such endpoint         also AttributeError
        ├── InvalidArguments       the arguments do not fit the endpoint    also TypeError
        ├── EncodeError            a value cannot be sent                   also TypeError
        ├── DecodeError            a value cannot be read, or is not of the declared type   also ValueError
        ├── FrameTooLarge          a value is larger than ``max_frame``     also ValueError
        ├── DeadlineExceeded       the call had not ended by its deadline   also TimeoutError
        ├── Overloaded             too many calls wait, at the server or in this client
        └── CallStopped            ``client.stop()`` ended the call
"""

from __future__ import annotations

import asyncio
import builtins
import concurrent.futures
import functools
import queue
import sys
import types
from typing import Any, ClassVar, Final

from shmrpc.exception_parts import build_exception, parts_of

__all__ = [
    "KNOWN_CLASSES",
    "ApplicationError",
    "CallError",
    "CallStopped",
    "ConnectionLost",
    "DeadlineExceeded",
    "DecodeError",
    "EncodeError",
    "EndOfStream",
    "EndpointNotFound",
    "FrameTooLarge",
    "InvalidArguments",
    "LocalProtocolError",
    "MessagesLost",
    "NameConflict",
    "ObjectDeleted",
    "Overloaded",
    "PoolBroken",
    "ProtocolError",
    "PublisherGone",
    "QueueBusy",
    "QueueEmpty",
    "QueueFull",
    "QueueShutDown",
    "RemoteError",
    "RemoteProtocolError",
    "ServiceInUse",
    "ServiceUnavailable",
    "SharedMemoryError",
    "ShmrpcError",
    "SlowConsumer",
    "StaleClaim",
    "StoreBusy",
    "StoreFull",
    "TopicFull",
    "WaitStopped",
    "WaitTimeout",
    "WorkerDied",
    "base_of",
    "join_remote_error",
    "own_class",
]


class ShmrpcError(Exception):
    """Base class of all exceptions of shmrpc."""


class ServiceUnavailable(ShmrpcError, ConnectionError):
    """Error of a connection or a call to which no server of the service answered in time.

    ``maybe_executed`` is False, because the call was not begun. It is True if a handler passed the error on: see
    RemoteError.
    """

    maybe_executed: bool = False


class ServiceInUse(ShmrpcError):
    """Error of starting a server whose name another live server has.

    ``pid`` is the id of the other process, or None if it is not visible from here.
    """

    def __init__(self, message: str, pid: int | None = None) -> None:
        super().__init__(message)
        self.pid = pid


class SharedMemoryError(ShmrpcError, OSError):
    """Error of an operation for which shared memory, a descriptor or address space is missing. ``errno`` is the reason.

    If this process has no room to map a result, only that call fails.
    """


class WorkerDied(ShmrpcError):
    """Error of a task whose worker died while it ran: the worker was killed, out of memory, or crashed in native code.

    ``maybe_executed`` is True, because the progress of the task is unknown. Tasks that had not begun go to other
    workers.
    """

    maybe_executed: bool = True


class PoolBroken(ShmrpcError, concurrent.futures.BrokenExecutor):
    """Error of a pool whose workers die before they are ready. ``__cause__`` is the error of the last worker."""


class NameConflict(ShmrpcError, ValueError):
    """Error of opening a name that is open as another kind of object, or with other settings."""


class WaitTimeout(ShmrpcError, TimeoutError):
    """Error of a wait whose ``timeout`` has passed. Nothing was taken."""


class QueueEmpty(WaitTimeout, asyncio.QueueEmpty, queue.Empty):
    """Error of a ``get`` for which no item arrived in time. Nothing was taken."""


class QueueBusy(WaitTimeout):
    """Error of an operation while a process is stopped in the middle of a change of the queue. Nothing changed."""


class StoreBusy(WaitTimeout):
    """Error of an operation while another process is in a transaction of the store. Nothing changed."""


class StoreFull(ShmrpcError, MemoryError):
    """Error of a change for which the store has no room, or of a transaction that is too large. Nothing changed."""


class ObjectDeleted(ShmrpcError, ReferenceError):
    """Error of using an object that was removed from its store, or whose transaction is not committed."""


class QueueFull(WaitTimeout, asyncio.QueueFull, queue.Full):
    """Error of a ``put`` for which the queue had no room in time. Nothing was put."""


class TopicFull(WaitTimeout):
    """Error of a ``publish`` that waited too long for a slow subscriber."""

    def __init__(self, message: str, pid: int = 0, lag: int = 0, published: int = 0) -> None:
        super().__init__(message)
        #: Process id of the slowest subscriber; 0 if it is not visible from here.
        self.pid = pid
        #: Number of messages that the slowest subscriber has not read.
        self.lag = lag
        #: Number of values that were published before.
        self.published = published


class PublisherGone(ShmrpcError):
    """Error of a read after the last message of a publisher that has ended."""

    def __init__(self, message: str, pid: int = 0, number: int = 0) -> None:
        super().__init__(message)
        #: Process id of the publisher; 0 if it was not visible from here.
        self.pid = pid
        #: Number of the publisher, as in its messages.
        self.number = number


class SlowConsumer(ShmrpcError):
    """Error of a read by a subscriber that was too slow, so that a publisher dropped it."""

    def __init__(self, message: str, pid: int = 0, number: int = 0) -> None:
        super().__init__(message)
        #: Process id of the publisher; 0 if it is not visible from here.
        self.pid = pid
        #: Number of the publisher, as in its messages.
        self.number = number


class MessagesLost(ShmrpcError):
    """Error of a read by a subscriber that has missed messages. The next read returns the oldest message left."""

    def __init__(self, message: str, count: int = 0) -> None:
        super().__init__(message)
        #: Number of messages missed since the last such error.
        self.count = count


if sys.version_info >= (3, 13):

    class QueueShutDown(ShmrpcError, asyncio.QueueShutDown, queue.ShutDown):
        """Error of using a queue that is shut down: nothing can be put, and no item is left to get."""

else:

    class QueueShutDown(ShmrpcError):
        """Error of using a queue that is shut down: nothing can be put, and no item is left to get."""


class StaleClaim(ShmrpcError):
    """Error of using a claim that has ended: by ``ack()`` or ``nack()``, or because its lease has expired."""


class WaitStopped(ShmrpcError):
    """Error of a wait that ``stop()`` ended, and of every later wait until ``resume()``."""


class ConnectionLost(ShmrpcError, ConnectionError):
    """Error of a call whose server stopped or died, or whose client was closed.

    ``maybe_executed`` is True if the call had been sent: the endpoint may have run, and another call may run it twice.
    """

    def __init__(self, message: str, *, maybe_executed: bool = False) -> None:
        super().__init__(message)
        self.maybe_executed = maybe_executed


class EndOfStream(ShmrpcError, EOFError):
    """Error of a read past the last item of a stream opened by hand, or of a write after its reader has left."""


class ProtocolError(ShmrpcError):
    """Base class of the errors of a side that broke the protocol."""


class LocalProtocolError(ProtocolError):
    """Error of using this side wrongly: an unconnected client, a closed queue, another event loop, a forked child."""


class RemoteProtocolError(ProtocolError):
    """Error of a connection whose peer broke the protocol. The connection has ended; no other one is affected."""


class CallError(ShmrpcError):
    """Base class of the errors of one call, after which the connection and its other calls still work."""


class RemoteError(CallError):
    """Error of a call whose endpoint raised an exception.

    ``type_name`` is the qualified name of its class, ``remote_traceback`` the text of its traceback, which is printed
    below the local one. If the class is a builtin exception or was registered here by :func:`shmrpc.register`, the
    exception that arrives is of a subclass of both RemoteError and that class, so that ``except ValueError`` and
    ``except OutOfStock`` work as they would locally. For any other class, the nearest builtin base class takes its
    place. A group of exceptions arrives as an ExceptionGroup of such exceptions, so that ``except* ValueError`` works.

    An exception of a handler's own call that the handler does not catch is passed on and arrives unchanged;
    ``remote_traceback`` then lists each handler on the way. So the Overloaded, ServiceUnavailable, ConnectionLost or
    DeadlineExceeded of an inner call arrives as a RemoteError that is also of that class. ``maybe_executed`` is True
    for every RemoteError, because the endpoint that was called has run, and another call runs it twice. It is False for
    an Overloaded or a ServiceUnavailable of the call itself.
    """

    type_name: str = ""
    remote_traceback: str = ""
    maybe_executed: bool = True
    #: The other base class of a class that joins RemoteError with another exception.
    _also: ClassVar[type[Exception] | None] = None
    #: Encoded contents that could not be read here, for a caller to which the exception is passed on.
    _unread: bytes | None = None
    #: Notes that the exception had on arrival.
    _came_with: tuple[str, ...] = ()

    def __init_subclass__(cls, **kwargs: Any) -> None:
        if cls._also is None:  # The hooks of users' classes do not expect a joined class.
            super().__init_subclass__(**kwargs)

    def __reduce__(self) -> tuple[Any, ...]:
        kind = type(self)
        return _unpickle, (kind._also or kind, kind._also is not None, parts_of(self)), vars(self)


class ApplicationError(RemoteError):
    """Error that a handler raises on purpose, and that arrives at the caller unchanged.

    ``code`` is a short text for programs, such as ``"not_found"``. Any text is valid; the codes of gRPC, which
    docs/how-to/errors.md lists, are a good choice. ``message`` is for people. ``details`` are values for programs, by
    name; values that cannot be sent are left out, and listed in the remote traceback.

    >>> error = ApplicationError("not_found", "no order 7", order=7)
    >>> str(error), error.details
    ('not_found: no order 7', {'order': 7})

    The server does not log an ApplicationError. A derived class arrives as ApplicationError, or as itself if it is
    registered. Raises TypeError for a code or a message that is not a str, ValueError for an empty code.
    """

    code: str = ""
    message: str = ""
    details: dict[str, Any]

    def __init__(self, code: str, message: str = "", **details: Any) -> None:
        for name, value in (("code", code), ("message", message)):
            if not isinstance(value, str):
                raise TypeError(f"ApplicationError: {name}: expected a str, as in 'not_found', got {value!r}")
        if not code:
            raise ValueError("ApplicationError: code: expected a word, as in 'not_found', got ''")
        super().__init__(code, message)
        self.code, self.message, self.details = code, message, details

    def __str__(self) -> str:
        return f"{self.code}: {self.message}" if self.message else self.code

    def __repr__(self) -> str:
        shown = [repr(self.code), *([repr(self.message)] if self.message else [])]
        shown += [f"{name}={value!r}" for name, value in getattr(self, "details", {}).items()]
        return f"{type(self).__name__}({', '.join(shown)})"


class EndpointNotFound(CallError, AttributeError):
    """Error of a call to an endpoint that the service does not have."""


class InvalidArguments(CallError, TypeError):
    """Error of a call whose arguments do not fit; the message names the parameter, the expected type and the value."""


class EncodeError(CallError, TypeError):
    """Error of a value that cannot be sent, or of a validated result that is not of its declared type."""


class DecodeError(CallError, ValueError):
    """Error of a result or an item that cannot be read, or of a result that is not of its declared type."""


class FrameTooLarge(CallError, ValueError):
    """Error of arguments or a result that take more than ``max_frame`` bytes encoded."""


class DeadlineExceeded(CallError, TimeoutError):
    """Error of a call that had not ended by its deadline. If its handler had begun, it is cancelled."""


class Overloaded(CallError):
    """Error of a call that was not begun because too many calls wait.

    Either the server has as many calls in flight and waiting as it allows, or the server does not read, and as many
    bytes wait in this client as ``max_memory`` allows. ``maybe_executed`` is False, unless a handler passed on the
    error of an inner call: see RemoteError.
    """

    maybe_executed: bool = False


class CallStopped(CallError):
    """Error of a call that another thread ended by ``client.stop()``. If its handler had begun, it is cancelled."""


#: Errors about the state of a service, not about a mistake in the calling program: a caller two hops away reacts to
#: them, too. All other errors of shmrpc concern a handler and the service that it calls.
_CONDITIONS: Final[tuple[type[ShmrpcError], ...]] = (ConnectionLost, DeadlineExceeded, Overloaded, ServiceUnavailable)
#: Classes of exceptions that both sides know, by name.
KNOWN_CLASSES: Final[dict[str, type[Exception]]] = {
    **{n: k for n, k in vars(builtins).items() if isinstance(k, type) and issubclass(k, Exception)},
    **{kind.__name__: kind for kind in _CONDITIONS},
}


def own_class(kind: type[Any]) -> type[Any]:
    """Return the class that was joined with RemoteError, for a joined class; otherwise the class itself."""
    return (kind._also or kind) if issubclass(kind, RemoteError) else kind


def base_of(kind: type[BaseException]) -> type[BaseException]:
    """Return the nearest base class that both sides know: a builtin exception, or one of ``_CONDITIONS``."""
    return next(c for c in kind.__mro__ if c.__module__ == "builtins" or c in _CONDITIONS)


def join_remote_error(kind: type[Exception]) -> type[RemoteError]:
    """Return the cached class derived from RemoteError and ``kind``; RemoteError if the two cannot be joined."""
    key: Any = kind  # A class can always be a key; mypy doubts it.
    return _join(key)


@functools.cache
def _join(kind: type[Exception]) -> type[RemoteError]:
    """Create the class that :func:`join_remote_error` returns."""
    ours = kind in KNOWN_CLASSES.values()
    names = {
        "__module__": __name__ if ours else kind.__module__,
        "__qualname__": f"Remote{kind.__name__}" if ours else kind.__qualname__,
        "__doc__": kind.__doc__,
        "_also": kind,
    }
    if issubclass(kind, (StopIteration, StopAsyncIteration)):
        return RemoteError
    try:
        name = f"Remote{kind.__name__}" if ours else kind.__name__
        return types.new_class(name, (RemoteError, kind), exec_body=lambda namespace: namespace.update(names))
    except TypeError:  # The layouts cannot be combined, or a metaclass refuses.
        return RemoteError


def _unpickle(kind: type[Exception], joined: bool, parts: dict[str, Any]) -> BaseException:
    """Return an exception of this class, or with ``joined`` of the class that joins it with RemoteError."""
    return build_exception(join_remote_error(kind) if joined else kind, parts)
