"""Handles of shared objects: opening, closing, waiting, and the errors of waits that failed."""

from __future__ import annotations

import asyncio
import atexit
import functools
import logging
import os
import weakref
from collections.abc import Callable
from types import TracebackType
from typing import TYPE_CHECKING, Any, ClassVar, Final, NoReturn, Self, TypeVar, cast

from shmrpc._core import SharedObject
from shmrpc.basics.drivers import OpenOnAwait, ThreadsOnly
from shmrpc.basics.loops import running_loop
from shmrpc.basics.renamed import HideRenamed
from shmrpc.errors import WaitTimeout
from shmrpc.host.processes import describe_process, describe_stopped
from shmrpc.objects import lock_files
from shmrpc.objects.not_copyable import NotCopyable
from shmrpc.objects.wait_queue import WaitQueue, wait_stopped_error

_log = logging.getLogger("shmrpc")

_F = TypeVar("_F", bound=Callable[..., Any])
_W = TypeVar("_W", bound=WaitQueue)

#: The public function or class that opens an object of each of these kinds; the others are opened by their kind.
_OPENERS: Final = {"semaphore": "Semaphore", "lock": "Lock", "event": "Event", "signal": "Signal"}


def warn_of_discarded_items() -> None:
    """Log a warning for each queue that this process closed as its last member while items waited in the queue.

    Each queue is reported once.
    """
    for name, count in SharedObject.take_dropped():
        items = "1 item that waited is" if count == 1 else f"{count} items that waited are"
        _log.warning(
            "queue %r: its last process has closed it, and %s gone: keep it open in a process that stays, or call"
            " join() before the end",
            name,
            items,
        )


atexit.register(warn_of_discarded_items)
atexit.register(SharedObject.leave_all)  # atexit calls this one first.


def open_object(name: str, kind: str, amount: int, bounds: tuple[int, int] = (0, 0), raw: bool = False) -> SharedObject:
    """Open a shared object, and make the object if it has no members.

    ``amount``: permits of a semaphore or bytes of memory; 0 for a kind without an amount. ``bounds``: further limits,
    which depend on the kind. ``raw``: True if items are bytes.

    Raises NameConflict if the name is open as something else, SharedMemoryError if there is no room, LocalProtocolError
    if the directory is not safe or the object belongs to another user, RemoteProtocolError if this version of shmrpc
    cannot use the memory, WaitTimeout if a process that opens or closes the object does not finish within 5 seconds,
    and TypeError or ValueError if the name cannot be one.
    """
    return SharedObject(name, lock_files.choose_lock_file(name), kind, amount, bounds, raw)


def closes_on_error(make: _F) -> _F:
    """Decorate a method that makes a handle of an open object: an error closes the object.

    Otherwise the object would stay open as long as the traceback of the error lives.
    """

    @functools.wraps(make)
    def made(cls: type, shared_object: SharedObject, *args: Any, **options: Any) -> Any:
        try:
            return make(cls, shared_object, *args, **options)
        except BaseException:
            shared_object.close()
            raise

    return cast("_F", made)


class NotConstructible:
    """A handle that users get from a function, and not from its class."""

    #: The name of the function that makes handles.
    _constructor_name: ClassVar[str]

    if not TYPE_CHECKING:

        def __new__(cls, *arguments: object, **options: object) -> NoReturn:
            """Raise TypeError, which names the function that makes handles."""
            module = _module_of(cls)
            raise TypeError(f"{module}.{cls.__name__} is a type: open one by {module}.{cls._constructor_name}(name)")


class Handle(HideRenamed, NotCopyable):
    """A handle of a shared object: this process has the object open as one of its members."""

    #: The name of the function that opens another handle like this one.
    _opener_name: ClassVar = "attach"
    _object: SharedObject
    #: The wait queues of each event loop, by the numbers of their wait sets.
    _wait_queues: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, dict[int, WaitQueue]]

    @classmethod
    def _wrap(cls, shared_object: SharedObject) -> Self:
        """Make a handle of an object that this process has opened. The handle closes the object."""
        handle = object.__new__(cls)
        handle._bind(shared_object)
        return handle

    def _bind(self, shared_object: SharedObject) -> None:
        """Set the object of a new handle, which has no wait queues."""
        self._object = shared_object
        self._wait_queues = weakref.WeakKeyDictionary()

    @property
    def name(self) -> str:
        """The name of the object."""
        return self._object.name

    def close(self) -> None:
        """Close the handle. Idempotent.

        When a process closes its last handle of an object, the process leaves the object and gives back what it holds.
        When the last process leaves, the object is deleted. Waits of the handle, and later operations on it, raise
        LocalProtocolError. Any thread may call this.
        """
        self._object.close()
        for queues in self._wait_queues.values():
            for queue in queues.values():
                queue.close()

    def stop(self) -> None:
        """End all waits of this handle, present and future ones, with WaitStopped, until :meth:`resume`.

        An operation that need not wait still succeeds. Any thread may call this. Raises LocalProtocolError if the
        handle is closed.
        """
        self._object.stop(True)

    def resume(self) -> None:
        """Let this handle wait again after :meth:`stop`. Raises LocalProtocolError if the handle is closed."""
        self._object.stop(False)

    def __repr__(self) -> str:
        closed = ", closed" if self._object.is_closed else ""
        return f"<shmrpc {self._object.kind} {self.name!r}{self._describe_role()}{closed}>"

    def _describe_role(self) -> str:
        """Return the role of this handle for ``repr()``, if handles of its object differ."""
        return ""

    def _kind_and_factory(self) -> tuple[str, str]:
        """Return the kind and name of this object, and the name of the function that opens objects of its kind."""
        kind = self._object.kind
        opener = self._opener_name if self._opener_name != "attach" else _OPENERS.get(kind, kind)
        return f"{kind} {self.name!r}", opener

    def _copy_remedy(self) -> tuple[str, str]:
        opener = f"{_module_of(type(self))}.{self._opener_name}({self.name!r})"
        remedy = f"open it by its name in the other process: {opener}; within this one, share the handle"
        return f"{self._object.kind} {self.name!r}", remedy

    def _wait_queue(self, wait_set: int, kind: type[_W]) -> _W:
        """Return the running loop's queue for a wait set of the object; the first call makes the queue.

        ``kind``: the class of the queue, the same in each call for a wait set.

        Raises LocalProtocolError if no loop is running.
        """
        loop = running_loop()
        queues = self._wait_queues.setdefault(loop, {})
        queue = queues.get(wait_set)
        if queue is None:
            queue = queues[wait_set] = kind(self._object, wait_set, loop)
        assert isinstance(queue, kind)
        return queue

    async def _wait_in_loop(
        self,
        attempt: Callable[[], bool],
        undo: Callable[[], None],
        timeout: float | None,
        wait_set: int = 0,
        insist: Callable[[], bool] | None = None,
    ) -> None:
        """Wait in the loop until ``attempt()`` returns True: see :meth:`WaitQueue.wait`.

        Raises WaitTimeout, WaitStopped, LocalProtocolError if the handle is closed, and what ``attempt`` raises.
        """
        if not await self._wait_queue(wait_set, WaitQueue).wait(attempt, undo, timeout, insist):
            self._raise_timeout(timeout, wait_set)

    def _wait_in_thread(
        self, wait: Callable[[float | None], bool | None], timeout: float | None, wait_set: int = 0
    ) -> None:
        """Block the thread in ``wait(timeout)`` of the core.

        Raises WaitTimeout if that returns False, WaitStopped if it returns None, and what it raises.
        """
        waited = wait(timeout)
        if not waited:
            self._raise_wait_failed(waited, timeout, wait_set)

    def _raise_wait_failed(self, waited: bool | None, timeout: float | None, wait_set: int) -> NoReturn:
        """Raise the error for a wait that failed: WaitStopped if ``waited`` is None, else that of _raise_timeout()."""
        if waited is None:
            raise wait_stopped_error(self._object)
        self._raise_timeout(timeout, wait_set)

    def _raise_timeout(self, timeout: float | None, wait_set: int) -> NoReturn:
        """Raise WaitTimeout, whose text has the cause and the holders of permits. ``timeout`` is not None here.

        Raises LocalProtocolError instead if the handle is closed. A queue raises QueueFull and QueueEmpty here.
        """
        text = f"{self._timeout_cause()} within {timeout:g} s{self._describe_holders()}"
        raise WaitTimeout(f"{self._object.kind} {self.name!r}: {text}")

    def _timeout_cause(self) -> str:
        """Return the event that did not happen before the timeout, as a clause for WaitTimeout."""
        raise NotImplementedError

    def _describe_holders(self) -> str:
        """Return the text that names the processes that hold permits, or an empty one.

        Raises LocalProtocolError if the handle is closed.
        """
        holders = []
        for pid, _, held in self._object.report()["members"]:
            if held:
                holder = "this process" if pid == os.getpid() else describe_process(pid)
                holders.append(f"{holder} has {'it' if self._has_one_permit() else held}{describe_stopped(pid)}")
        return f": {', '.join(holders)}" if holders else ""

    def _has_one_permit(self) -> bool:
        """Return True if the object has only one permit, as a lock has."""
        return self._object.kind != "semaphore" or self._object.amount == 1


class ContextHandle(Handle):
    """A handle that ``with`` closes at the end of the block."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.close()


class AsyncContextHandle(OpenOnAwait, Handle):
    """A handle that ``async with`` closes at the end of the block."""

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None
    ) -> None:
        self.close()


def _module_of(cls: type) -> str:
    """Return the public module of a class: ``shmrpc.sync`` for objects of threads."""
    return "shmrpc.sync" if issubclass(cls, ThreadsOnly) else "shmrpc"
