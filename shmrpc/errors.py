"""The exceptions of shmrpc.

::

    ShmrpcError
    ├── ServiceUnavailable     nobody serves the name                    also ConnectionError
    ├── ServiceInUse           another server has the name
    ├── SharedMemoryError      there is no shared memory                 also OSError
    ├── ConnectionLost         the peer is gone                          also ConnectionError
    ├── NameInUse              a name is open as something else, or with another size   also ValueError
    ├── WaitTimeout            what was waited for did not come in time   also TimeoutError
    │   ├── QueueBusy              a process that changes the queue is stopped
    │   ├── QueueEmpty             no item has come                      also asyncio's and queue.Empty
    │   ├── QueueFull              there was no room                     also asyncio's and queue.Full
    │   └── TopicFull              the slowest subscriber has not read
    ├── QueueShutDown          nothing more is put, and nothing is left  from 3.13 on also asyncio's and queue.ShutDown
    ├── StaleClaim             a claim had ended before
    ├── PublisherGone          all of a publisher is read that has ended
    ├── CutOff                 a publisher does not wait for this subscriber any more
    ├── MessagesLost           a subscriber has missed some
    ├── WorkerDied             a worker of a pool has died within the task
    ├── PoolBroken             a pool has given up                   also concurrent.futures' BrokenExecutor
    ├── WaitStopped            ``stop()`` ended the wait
    ├── EndOfStream            a stream that was opened by hand has ended   also EOFError
    ├── ProtocolError
    │   ├── LocalProtocolError     this side was used wrongly
    │   └── RemoteProtocolError    the peer broke the rules; the connection is over
    └── CallError              one call failed; the connection goes on
        ├── RemoteError            the endpoint raised                   also the class of what it raised
        │   └── ApplicationError       on purpose: a code, a message and details
        ├── EndpointNotFound       the service has no such endpoint      also AttributeError
        ├── InvalidArguments       the arguments do not fit              also TypeError
        ├── EncodeError            a value cannot become MessagePack     also TypeError
        ├── DecodeError            the result cannot be read, or is not of the declared type   also ValueError
        ├── FrameTooLarge          a value is over ``max_frame``         also ValueError
        ├── DeadlineExceeded       the call ran out of time              also TimeoutError
        ├── Overloaded             too many calls wait, at the server or for it
        └── CallStopped            ``client.stop()`` ended the wait
"""

from __future__ import annotations

import asyncio
import builtins
import concurrent.futures
import functools
import queue
import sys
import types
from collections.abc import Iterator, Sequence
from typing import Any, ClassVar, Final, TypeVar

__all__ = [
    "ApplicationError",
    "CallError",
    "CallStopped",
    "ConnectionLost",
    "CutOff",
    "DeadlineExceeded",
    "DecodeError",
    "EncodeError",
    "EndOfStream",
    "EndpointNotFound",
    "FrameTooLarge",
    "Gone",
    "InvalidArguments",
    "LocalProtocolError",
    "MessagesLost",
    "NameInUse",
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
    "StaleClaim",
    "StoreBusy",
    "StoreFull",
    "TopicFull",
    "WaitStopped",
    "WaitTimeout",
    "WorkerDied",
    "application_error",
    "base_of",
    "class_name",
    "known_parts",
    "made_of",
    "own_class",
    "parts_of",
    "remote_error",
]

_E = TypeVar("_E", bound=BaseException)


class ShmrpcError(Exception):
    """The base of all exceptions of shmrpc's own."""


class ServiceUnavailable(ShmrpcError, ConnectionError):
    """No server answered for the service within the time given.

    ``maybe_executed`` is False: the call was not begun. It is True if a handler passed the error on, see RemoteError.
    """

    maybe_executed: bool = False


class ServiceInUse(ShmrpcError):
    """Another live server has the name. ``pid`` is its process, or None if its id cannot be seen from here."""

    def __init__(self, message: str, pid: int | None = None) -> None:
        super().__init__(message)
        self.pid = pid


class SharedMemoryError(ShmrpcError, OSError):
    """There is no shared memory for a connection, or it is not as it should be.

    Or there is no descriptor left, or no room for the files by which server and client meet (``errno`` says which).
    Or this process has no room to map a result: then only that call fails.
    """


class WorkerDied(ShmrpcError):
    """A worker of a pool has died while it ran the task: killed, out of memory, or by a crash in native code.

    ``maybe_executed`` is True: nobody knows how far the task came. Tasks that were not begun go to other workers.
    """

    maybe_executed: bool = True


class PoolBroken(ShmrpcError, concurrent.futures.BrokenExecutor):
    """A pool has given up, since its workers die before they are ready. Its cause is what the last of them said."""


class NameInUse(ShmrpcError, ValueError):
    """Other processes have the name open as something else, or with another size."""


class WaitTimeout(ShmrpcError, TimeoutError):
    """The time to wait for a permit, a lock, a signal, an event, a queue or a name is over. Nothing was taken."""


class QueueEmpty(WaitTimeout, asyncio.QueueEmpty, queue.Empty):
    """No item has come into the queue in time, or there is none now. Nothing was taken."""


class QueueBusy(WaitTimeout):
    """A process is in the middle of changing the queue, and does not end that: it is stopped. Nothing was done."""


class StoreBusy(WaitTimeout):
    """Another process is within a transaction of the store, and has not ended it in time. Nothing was done."""


class StoreFull(ShmrpcError, MemoryError):
    """The store has no room: ``max_memory`` is in use, or a transaction changes too much. Nothing was done."""


class Gone(ShmrpcError, ReferenceError):
    """An object of a store was removed or replaced, or its transaction has not been committed, or never was."""


class QueueFull(WaitTimeout, asyncio.QueueFull, queue.Full):
    """The queue has had no room in time, or has none now. Nothing was put."""


class TopicFull(WaitTimeout):
    """The topic has had no room in time, or has none now, since a subscriber that is waited for has not read."""

    def __init__(self, message: str, pid: int = 0, lag: int = 0, published: int = 0) -> None:
        super().__init__(message)
        #: the process of the slowest; 0 if it cannot be seen from here
        self.pid = pid
        #: how many messages that is behind
        self.lag = lag
        #: how many of the values were published
        self.published = published


class PublisherGone(ShmrpcError):
    """All was read of a publisher that has ended."""

    def __init__(self, message: str, pid: int = 0, number: int = 0) -> None:
        super().__init__(message)
        #: its process; 0 if that could not be seen from here
        self.pid = pid
        #: the number of the publisher, as its messages have it
        self.number = number


class CutOff(ShmrpcError):
    """A publisher does not wait for this subscriber any more, which was too slow: nothing more of it is read."""

    def __init__(self, message: str, pid: int = 0, number: int = 0) -> None:
        super().__init__(message)
        #: the process of the publisher; 0 if that cannot be seen from here
        self.pid = pid
        #: the number of the publisher, as its messages have it
        self.number = number


class MessagesLost(ShmrpcError):
    """This subscriber has missed messages. What is there can be read on."""

    def __init__(self, message: str, count: int = 0) -> None:
        super().__init__(message)
        #: how many, since it was last said
        self.count = count


if sys.version_info >= (3, 13):

    class QueueShutDown(ShmrpcError, asyncio.QueueShutDown, queue.ShutDown):
        """The queue was shut down: nothing more is put, and there is nothing left to get."""

else:

    class QueueShutDown(ShmrpcError):
        """The queue was shut down: nothing more is put, and there is nothing left to get."""


class StaleClaim(ShmrpcError):
    """The claim had ended before: its item is delivered to somebody else, or was, or it was acknowledged already."""


class WaitStopped(ShmrpcError):
    """The wait was ended by ``stop()``, or did not begin, until ``resume()``."""


class ConnectionLost(ShmrpcError, ConnectionError):
    """The peer is gone.

    ``maybe_executed`` is True if the call had been sent. Whether the endpoint ran is unknown then, and calling again
    may run it twice.
    """

    def __init__(self, message: str, *, maybe_executed: bool = False) -> None:
        super().__init__(message)
        self.maybe_executed = maybe_executed


class EndOfStream(ShmrpcError, EOFError):
    """In a stream that was opened by hand there are no more items to read, or no more are wanted."""


class ProtocolError(ShmrpcError):
    """One of the two sides broke the rules."""


class LocalProtocolError(ProtocolError):
    """This side was used in a way it cannot be: a closed client, another loop, another process."""


class RemoteProtocolError(ProtocolError):
    """The peer broke the rules. Its connection is over; no other one is affected."""


class CallError(ShmrpcError):
    """One call failed. The connection and all its other calls go on."""


class RemoteError(CallError):
    """The endpoint raised an exception.

    ``type_name`` is the qualified name of its class, ``remote_traceback`` the text of its traceback, which is printed
    below the local one. If the class is a builtin exception or one that :func:`shmrpc.register` knows here, what
    arrives is a subclass of both RemoteError and that class, so ``except ValueError`` and ``except OutOfStock`` work as
    they would locally. For any other class, the nearest builtin base class takes its place. A group of exceptions
    arrives as an ExceptionGroup of what each of them is, so ``except* ValueError`` works too.

    If a handler does not catch what its own call raised, that is passed on and arrives as it was; ``remote_traceback``
    then lists each handler on the way. So the Overloaded, ServiceUnavailable, ConnectionLost or DeadlineExceeded of an
    inner call arrives as a RemoteError that is also of that class. ``maybe_executed`` is True for every RemoteError:
    the endpoint that was called has run, and calling it again runs it twice. It is False for an Overloaded or a
    ServiceUnavailable of the call itself.
    """

    type_name: str = ""
    remote_traceback: str = ""
    maybe_executed: bool = True
    #: The other base class, if this class was made to join the two.
    _also: ClassVar[type[Exception] | None] = None
    #: The exception's contents as they came, if they could not be read here: a caller it is passed on to may.
    _unread: bytes | None = None
    #: The notes that the exception came with.
    _came_with: tuple[str, ...] = ()

    def __init_subclass__(cls, **kwargs: Any) -> None:
        if cls._also is None:  # A class that is made here does not concern the user's class.
            super().__init_subclass__(**kwargs)

    def __reduce__(self) -> tuple[Any, ...]:
        kind = type(self)
        return _unpickled, (kind._also or kind, kind._also is not None, parts_of(self)), vars(self)


class ApplicationError(RemoteError):
    """A failure that is part of what the endpoint offers: raise it in a handler, and it arrives as it is.

    ``code`` is a short text for programs, such as ``"not_found"``. Any text will do; those of gRPC are a good choice,
    see the guide. ``message`` is for people. ``details`` are values for programs, by name; values that cannot be sent
    are left out, and the remote traceback says so.

    >>> error = ApplicationError("not_found", "no order 7", order=7)
    >>> str(error), error.details
    ('not_found: no order 7', {'order': 7})

    The server does not log these. A derived class arrives as ApplicationError, or as itself if it is registered.
    Raises TypeError for a code or a message that is not a str, ValueError for an empty code.
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
    """The service has no endpoint of this name."""


class InvalidArguments(CallError, TypeError):
    """The arguments do not fit the endpoint; the message says which parameter, what was expected and what came."""


class EncodeError(CallError, TypeError):
    """An argument, a result or an item cannot be sent; or a validated result is not of its declared type."""


class DecodeError(CallError, ValueError):
    """The result, or an item of a queue, cannot be read; or the result is not what the endpoint's function declares."""


class FrameTooLarge(CallError, ValueError):
    """The arguments or the result, encoded, are over ``max_frame`` bytes."""


class DeadlineExceeded(CallError, TimeoutError):
    """The call had not ended by its deadline. If it had begun, its handler is cancelled."""


class Overloaded(CallError):
    """Too many calls wait. This one was not begun: ``maybe_executed`` is False.

    The server has as many calls under way and waiting as it allows. Or it does not read, and as many bytes wait on
    this side as ``max_memory`` allows. If a handler passed on the error of an inner call, ``maybe_executed`` is True,
    see RemoteError.
    """

    maybe_executed: bool = False


class CallStopped(CallError):
    """Another thread called ``stop()`` on the client. If the call had begun, its handler is cancelled."""


def remote_error(
    message: str,
    *,
    type_name: str,
    base: str,
    remote_traceback: str,
    raised: BaseException | None = None,
    parts: dict[str, Any] | None = None,
    unread: bytes | None = None,
    hint: str = "",
    exceptions: Sequence[Exception] = (),
) -> RemoteError:
    """The local stand-in for an exception that an endpoint raised.

    ``raised`` is the exception itself if its class is registered here. ``base`` names its nearest base class that is
    known everywhere, and ``parts`` are those of that class, see :func:`parts_of`. ``unread``: contents that could not
    be read here. ``hint``: an addition to the note that names the class. ``exceptions``: those of a group.
    """
    error = _also_remote(raised) if raised is not None else None
    if error is None and exceptions and base in _GROUPS:
        # An exception that ends a program elsewhere is a RemoteError here, so each group is one of Exceptions.
        error = made_of(_joined(ExceptionGroup), {"args": [message, list(exceptions)]})
    if error is None:
        error = _instance(base, message, parts)
    notes = []
    if type_name != class_name(own_class(type(error))):
        notes.append(f"Raised remotely as {type_name}{hint}")
    if remote_traceback:
        notes.append(f"Remote traceback:\n{remote_traceback.rstrip()}")
    # By `vars`, since a user's class may prevent assignment, as a frozen dataclass does.
    vars(error).update(type_name=type_name, remote_traceback=remote_traceback)
    vars(error).update(_unread=unread, _came_with=tuple(notes), __notes__=notes)
    return error


def application_error(code: str, message: str, details: Any) -> ApplicationError:
    """An ApplicationError from another process, of which nothing is checked."""
    parts = {"args": [code, message], "code": code, "message": message}
    return made_of(ApplicationError, {**parts, "details": details if isinstance(details, dict) else {}})


def _also_remote(raised: BaseException) -> RemoteError | None:
    """The same exception as one that is also a RemoteError; None if it cannot be."""
    if isinstance(raised, RemoteError):
        return raised
    if not isinstance(raised, Exception):
        return None
    try:
        return made_of(_joined(type(raised)), parts_of(raised))
    except Exception:  # The class is made in a way of its own.
        return None


def _instance(base: str, message: str, parts: dict[str, Any] | None) -> RemoteError:
    known = _known(base)
    if known is not None:
        kind = _joined(known)
        for each in (parts, {"args": [message]}):
            if each is not None:
                try:
                    made = made_of(kind, each)
                    str(made)  # Not every exception can be shown with any arguments.
                except Exception:  # Nor made with any: UnicodeDecodeError takes five.
                    continue
                return made
    return RemoteError(message)


def class_name(kind: type) -> str:
    """The qualified name of a class."""
    return f"{kind.__module__}.{kind.__qualname__}"


#: Errors that tell of a service's state, and not of a mistake in the calling program: a caller two hops away reacts to
#: these, too. Our other errors are between a handler and what it calls.
_CONDITIONS: Final[tuple[type[ShmrpcError], ...]] = (ConnectionLost, DeadlineExceeded, Overloaded, ServiceUnavailable)
_BY_NAME: Final[dict[str, type[Exception]]] = {
    **{n: k for n, k in vars(builtins).items() if isinstance(k, type) and issubclass(k, Exception)},
    **{kind.__name__: kind for kind in _CONDITIONS},
}


#: The names of the classes of groups.
_GROUPS: Final = frozenset({"ExceptionGroup", "BaseExceptionGroup"})


def own_class(kind: type[Any]) -> type[Any]:
    """The class that was raised, for one that was made to be a RemoteError too; else the class itself."""
    return (kind._also or kind) if issubclass(kind, RemoteError) else kind


def base_of(kind: type[BaseException]) -> type[BaseException]:
    """The nearest base class that both sides know without agreement: a builtin exception, or a condition of ours."""
    return next(c for c in kind.__mro__ if c.__module__ == "builtins" or c in _CONDITIONS)


def _known(base: str) -> type[Exception] | None:
    """The class of this name, if a RemoteError can be joined with it. The peer chose the name."""
    kind = _BY_NAME.get(base)
    if kind is None or kind is Exception:
        return None
    if issubclass(kind, (StopIteration, StopAsyncIteration)):
        return None  # These cannot leave a coroutine: Python turns them into RuntimeError.
    return kind


def _joined(kind: type[Exception]) -> type[RemoteError]:
    """A class that is RemoteError and another exception; RemoteError if the two cannot be joined."""
    key: Any = kind  # A class can always be a key; mypy doubts it.
    return _join(key)


@functools.cache
def _join(kind: type[Exception]) -> type[RemoteError]:
    ours = kind in _BY_NAME.values()
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


#: The attributes, of text, that builtin exceptions have besides their arguments.
_ATTRIBUTES: Final[dict[type[BaseException], tuple[str, ...]]] = {
    ImportError: ("name", "path"),
    NameError: ("name",),
    AttributeError: ("name",),
}
#: The attributes that describe how a RemoteError came here.
_OF_THE_WAY: Final = frozenset({"type_name", "remote_traceback", "maybe_executed", "_unread", "_came_with"})


def _attributes(kind: type) -> Iterator[str]:
    """The names of attributes that instances keep outside ``__dict__``."""
    for each in kind.__mro__:
        yield from _ATTRIBUTES.get(each, ())
        slots = vars(each).get("__slots__", ())
        yield from (slots,) if isinstance(slots, str) else slots


def known_parts(kind: type[BaseException]) -> frozenset[str]:
    """The names of the parts of an exception of a class that both sides know."""
    return frozenset(("args", *_attributes(kind)))


def parts_of(error: BaseException) -> dict[str, Any]:
    """The parts of an exception: its ``args``, as its builtin base class takes them, and its attributes."""
    kind = type(error)
    # OSError gives the file's name here, and not among its args.
    parts: dict[str, Any] = {"args": list(_builtin(kind).__reduce__(error)[1])}
    for name in _attributes(kind):
        value = getattr(error, name, None)
        if not name.startswith("__") and value is not None:
            parts[name] = value
    state = {n: v for n, v in vars(error).items() if not (n.startswith("__") or n in _OF_THE_WAY)}
    return {**state, **parts}


def made_of(kind: type[_E], parts: dict[str, Any]) -> _E:
    """Make an exception of this class from what :func:`parts_of` gave, without calling its own ``__init__``."""
    builtin, laid_out, args = _builtin(kind), kind, parts["args"]
    while laid_out.__module__ != "builtins":
        laid_out = laid_out.__base__  # type: ignore[assignment]
    made = laid_out.__new__(kind, *args)
    builtin.__init__(made, *args)
    apart = frozenset(_attributes(kind))
    for name, value in parts.items():
        if name in apart:
            object.__setattr__(made, name, value)
        elif name != "args" and not name.startswith("__"):
            vars(made)[name] = value
    return made


def _builtin(kind: type[BaseException]) -> Any:
    """The nearest builtin exception."""
    return next(c for c in kind.__mro__ if c.__module__ == "builtins")


def _unpickled(kind: type[Exception], joined: bool, parts: dict[str, Any]) -> BaseException:
    return made_of(_joined(kind) if joined else kind, parts)
