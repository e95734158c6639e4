"""Events: a flag that all processes wait for."""

from __future__ import annotations

from typing import Literal, Self

from shmrpc.basics.checks import public_class, public_name
from shmrpc.basics.drivers import ThreadsOnly
from shmrpc.objects.arguments import check_timeout
from shmrpc.objects.handle import AsyncClosing, Closing, opened


class EventBase(Closing):
    """What an event is in loops and in threads alike."""

    @public_name("Event")
    def __new__(cls, name: str) -> Self:
        """Open the event, and make it if nobody else has."""
        return cls._of(opened(name, "event", 0))

    def set(self) -> None:
        """Sets the event, and wakes all that wait for it."""
        self._name.set()

    def clear(self) -> None:
        """Clears the event: from now on :meth:`wait` waits."""
        self._name.clear()

    def is_set(self) -> bool:
        """Whether it is set."""
        return bool(self._name.event() & 1)

    def _in_vain(self) -> str:
        return "it was not set"


@public_class("shmrpc.Event")
class Event(AsyncClosing, EventBase):
    """An event of all processes that open its name: not set at first, and set until it is cleared.

    ``with`` and ``async with`` close it at the end of the block.

    Raises as :class:`Semaphore` does.
    """

    async def wait(self, timeout: float | None = None) -> Literal[True]:
        """Waits until the event is set, for ``timeout`` seconds at most. One that is cleared at once has been set too.

        Returns True. Raises WaitTimeout, and WaitStopped after :meth:`stop`.
        """
        timeout = check_timeout(timeout)
        since = self._name.event()
        if not since & 1:
            await self._wait(lambda: self._name.has_passed(since), _nothing, timeout)
        return True


@public_class("shmrpc.sync.Event")
class BlockingEvent(ThreadsOnly, EventBase):
    """A :class:`shmrpc.Event` whose :meth:`wait` blocks the thread that calls it."""

    def wait(self, timeout: float | None = None) -> Literal[True]:
        """Waits until the event is set, for ``timeout`` seconds at most. One that is cleared at once has been set too.

        Returns True. Raises WaitTimeout, and WaitStopped after :meth:`stop`.
        """
        self._block(self._name.wait_event, check_timeout(timeout))
        return True


def _nothing() -> None:
    """Nothing is to be given back."""
