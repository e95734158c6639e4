"""Events: a flag that tasks and threads of all processes wait for."""

from __future__ import annotations

from typing import Literal, Self

from shmrpc.basics.checks import public_class, public_name
from shmrpc.basics.drivers import ThreadsOnly
from shmrpc.objects.arguments import check_timeout
from shmrpc.objects.handle import AsyncContextHandle, ContextHandle, open_object
from shmrpc.objects.wait_queue import undo_nothing


class EventBase(ContextHandle):
    """The part of an event that is the same in loops and in threads."""

    @public_name("Event")
    def __new__(cls, name: str) -> Self:
        """Open the event, and make it if no process has it open. A new event is not set."""
        return cls._wrap(open_object(name, "event", 0))

    def set(self) -> None:
        """Set the event, and wake all waiters of all processes. Raises LocalProtocolError if the handle is closed."""
        self._object.set()

    def clear(self) -> None:
        """Clear the event: :meth:`wait` waits again. Raises LocalProtocolError if the handle is closed."""
        self._object.clear()

    def is_set(self) -> bool:
        """Return True if the event is set. Raises LocalProtocolError if the handle is closed."""
        return bool(self._object.event() & 1)

    def _timeout_cause(self) -> str:
        return "it was not set"


@public_class("shmrpc.Event")
class Event(AsyncContextHandle, EventBase):
    """An event, which all processes that open its name share. A new event is not set.

    ``with`` and ``async with`` close the handle at the end of the block.

    Raises as :class:`Semaphore` does.
    """

    async def wait(self, timeout: float | None = None) -> Literal[True]:
        """Wait until the event is set, for at most ``timeout`` seconds (None: no limit), and return True.

        A :meth:`set` ends the wait even if a :meth:`clear` follows at once.

        Raises WaitTimeout, WaitStopped after :meth:`stop`, SharedMemoryError if too many loops and threads wait, and
        LocalProtocolError if the handle is closed.
        """
        timeout = check_timeout(timeout)
        since = self._object.event()
        if not since & 1:
            await self._wait_in_loop(lambda: self._object.has_passed(since), undo_nothing, timeout)
        return True


@public_class("shmrpc.sync.Event")
class BlockingEvent(ThreadsOnly, EventBase):
    """A :class:`shmrpc.Event` whose :meth:`wait` blocks the thread that calls it."""

    def wait(self, timeout: float | None = None) -> Literal[True]:
        """Wait until the event is set, for at most ``timeout`` seconds (None: no limit), and return True.

        A :meth:`set` ends the wait even if a :meth:`clear` follows at once.

        Raises WaitTimeout, WaitStopped after :meth:`stop`, SharedMemoryError if too many loops and threads wait, and
        LocalProtocolError if the handle is closed.
        """
        self._wait_in_thread(self._object.wait_event, check_timeout(timeout))
        return True
