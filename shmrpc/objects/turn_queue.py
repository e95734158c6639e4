"""A turn queue: the tasks of one event loop that try in turn, each by itself."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from typing import Final, TypeVar

from shmrpc.basics.timeouts import end_of_wait, seconds_left
from shmrpc.errors import QueueBusy
from shmrpc.objects.wait_queue import WaitQueue

_T = TypeVar("_T")
#: Seconds between two attempts to change a queue that a stopped process is changing.
BUSY_RETRY_INTERVAL: Final = 0.02


class TurnQueue(WaitQueue):
    """The tasks of a loop that take turns, in the order of their arrival.

    When an attempt may succeed, the first task gets the turn, makes the attempt itself, and passes the turn on. So
    nothing is acquired for a task that is cancelled meanwhile.
    """

    #: True while a task has the turn.
    _is_taken = False
    _poll_timer: asyncio.TimerHandle | None = None

    def poll_in(self, seconds: float) -> None:
        """Poll after ``seconds``, instead of at the time that an earlier call has set. Call on the loop's thread."""
        if self._poll_timer is not None:
            self._poll_timer.cancel()
        self._poll_timer = self._loop.call_later(seconds, self.poll)

    async def try_in_turn(
        self,
        spin: Callable[[], bool],
        may_succeed: Callable[[], bool],
        attempt: Callable[[], _T | None],
        wake_other: Callable[[], object],
        timeout: float | None,
    ) -> _T | None:
        """Wait until ``attempt()`` returns a result, and return it; return None after the timeout, in seconds.

        ``may_succeed()`` returns True if an attempt is worthwhile, and so does ``spin()``, which polls for a moment.
        ``wake_other()`` wakes a waiter of another process when a task that has the turn fails.

        Without a limit (None), QueueBusy of ``attempt`` is retried forever; otherwise it is raised only at the end of
        the timeout. Raises WaitStopped, LocalProtocolError if the object is closed, and what else ``attempt`` raises.
        While ``may_succeed()`` is true and ``attempt()`` finds nothing, the task yields to the loop after each attempt.
        """

        def take_turn() -> bool:
            if self._is_taken or not may_succeed():
                return False
            self._is_taken = True
            return True

        def pass_turn() -> None:
            self._is_taken = False
            self.poll()

        def give_up_turn() -> None:
            pass_turn()
            wake_other()

        # Without a wait, if no other task came before this one.
        if (timeout is None or timeout > 0) and not (self._waiting or self._is_taken) and spin():
            with contextlib.suppress(QueueBusy):
                if (result := attempt()) is not None:
                    return result
        end = end_of_wait(timeout)
        while True:
            left = seconds_left(end)
            if not await self.wait(take_turn, give_up_turn, left):
                return None
            try:
                try:
                    result, is_busy = attempt(), False
                except QueueBusy:
                    if seconds_left(end) == 0:
                        raise
                    result, is_busy = None, True
                    await asyncio.sleep(BUSY_RETRY_INTERVAL)
            except BaseException:
                give_up_turn()
                raise
            pass_turn()
            if result is not None:
                return result
            # The next wait may end at once, without a turn of the loop, and its timer would never fire.
            if not is_busy:
                if seconds_left(end) == 0:
                    return None
                await asyncio.sleep(0)
