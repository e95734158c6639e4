"""The tasks of one event loop that want the same thing of a queue: one at a time looks for itself."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable
from typing import Final, TypeVar

from shmrpc.errors import QueueBusy
from shmrpc.objects.wait_queue import Line

_T = TypeVar("_T")
#: Seconds between two tries to change a queue that a stopped process is changing.
PAUSE: Final = 0.02


class Turns(Line):
    """Lets tasks take turns in the order in which they came.

    A task is given the turn when there may be something for it, takes that itself, and passes the turn on. So nothing
    is taken for a task that is cancelled meanwhile.
    """

    #: Whether a task has the turn.
    _is_given = False
    #: Looks again at a certain time.
    _timer: asyncio.TimerHandle | None = None

    def look_in(self, seconds: float) -> None:
        """Looks again after that time, and at no other that was said before."""
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._loop.call_later(seconds, self.look)

    async def take(
        self,
        glance: Callable[[], bool],
        may_take: Callable[[], bool],
        take: Callable[[], _T | None],
        wake_other: Callable[[], object],
        timeout: float | None,
    ) -> _T | None:
        """Waits until ``take()`` returns something, and returns that; None if the timeout, in seconds, is over before.

        ``may_take()`` is a hint whether to try, and ``glance()`` one that looks for a moment. ``wake_other()`` wakes a
        waiter of another process, for a task that was given the turn and has no use for it. Raises WaitStopped, and
        what ``take`` raises; QueueBusy at the end of the timeout only.
        """

        def give() -> bool:
            if self._is_given or not may_take():
                return False
            self._is_given = True
            return True

        def pass_on() -> None:
            self._is_given = False
            self.look()

        def refuse() -> None:
            pass_on()
            wake_other()

        # Nobody came before this one.
        if (timeout is None or timeout > 0) and not (self._waiting or self._is_given) and glance():
            with contextlib.suppress(QueueBusy):
                if (taken := take()) is not None:
                    return taken
        end = None if timeout is None else time.monotonic() + timeout
        while True:
            left = None if end is None else end - time.monotonic()
            if not await self.wait(give, refuse, left):
                return None
            try:
                try:
                    taken = take()
                except QueueBusy:
                    if end is not None and time.monotonic() >= end:
                        raise
                    taken = None
                    await asyncio.sleep(PAUSE)
            except BaseException:
                refuse()
                raise
            pass_on()
            if taken is not None:
                return taken
