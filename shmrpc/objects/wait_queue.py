"""The tasks of one event loop that wait for the same thing of a name."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import deque
from collections.abc import Callable
from typing import Final, NamedTuple

from shmrpc._core import LoopSleeper, Name
from shmrpc.errors import WaitStopped

#: Seconds after which one that waits insists, as in the core.
_LONG: Final = 0.02
#: Seconds after the last wait for which the loop goes on hearing the doorbell: to begin and to end that takes longer
#: than many a wait.
_LINGER: Final = 1.0


class _Waiter(NamedTuple):
    #: True once it has what it waited for, False once its time is over.
    future: asyncio.Future[bool]
    take: Callable[[], bool]
    #: Instead of ``take``, once it has waited for long.
    insist: Callable[[], bool]
    since: float


def stopped_wait(name: Name) -> WaitStopped:
    """Returns the error for a wait of a handle that was stopped."""
    return WaitStopped(f"{name.kind} {name.name!r}: the waits of this handle were stopped")


class Line:
    """Lets tasks of a loop wait, in the order in which they came, with one place among all sleepers of the name."""

    def __init__(self, name: Name, place: int, loop: asyncio.AbstractEventLoop) -> None:
        """``place``: the number of the name's wait set."""
        self._name = name
        self._place = place
        self._loop = loop
        self._sleeper: LoopSleeper | None = None
        self._waiting: deque[_Waiter] = deque()
        self._is_asleep = False
        #: How often it has slept, and what stops hearing the doorbell if that has not changed.
        self._sleeps = 0
        self._lingering: asyncio.TimerHandle | None = None
        self._hears = False

    async def wait(
        self,
        take: Callable[[], bool],
        undo: Callable[[], None],
        timeout: float | None,
        insist: Callable[[], bool] | None = None,
    ) -> bool:
        """Waits until ``take()`` is true, or ``insist()`` once it has waited for long.

        False if the timeout, in seconds, is over before.

        If it is cancelled after that, ``undo()`` gives back what was taken. Raises WaitStopped, and what ``take``
        raises.
        """
        waiter = _Waiter(self._loop.create_future(), take, insist or take, time.monotonic())
        self._waiting.append(waiter)
        timer = None if timeout is None else self._loop.call_later(max(0.0, timeout), self._time_out, waiter.future)
        try:
            if not self._is_asleep:
                self._fall_asleep()
            return await waiter.future
        except asyncio.CancelledError:
            if _has_it(waiter.future):
                undo()
            raise
        finally:
            if timer is not None:
                timer.cancel()
            if waiter in self._waiting:
                self._waiting.remove(waiter)
            if not self._waiting:
                self._wake_up()

    def _time_out(self, future: asyncio.Future[bool]) -> None:
        if not future.done():
            self._serve_waiting()  # Whoever was to ring may be stopped.
        if not future.done():
            future.set_result(False)

    def _fall_asleep(self) -> None:
        self._name.prepare()
        if self._sleeper is None:
            self._sleeper = self._name.sleeper(self._place)
        self._sleeper.line_up()
        if not self._hears:
            self._loop.add_reader(self._sleeper.fileno(), self.look)
            self._hears = True
        self._sleeps += 1
        self._is_asleep = True
        self._serve()

    def _wake_up(self) -> None:
        """Nobody waits any more."""
        if self._is_asleep and self._sleeper is not None:
            self._is_asleep = False
            try:
                self._sleeper.cancel()
            finally:
                if self._name.is_closed:
                    self._give_back()
                elif self._lingering is None:
                    self._lingering = self._loop.call_later(_LINGER, self._linger, self._sleeps)

    def _linger(self, sleeps: int) -> None:
        """Stops hearing the doorbell if nobody has waited since."""
        self._lingering = None
        if self._is_asleep:
            return
        if self._sleeps == sleeps:
            self._stop_hearing()
        else:
            self._lingering = self._loop.call_later(_LINGER, self._linger, self._sleeps)

    def _stop_hearing(self) -> None:
        if self._hears and self._sleeper is not None and not self._loop.is_closed():
            self._loop.remove_reader(self._sleeper.fileno())
        self._hears = False

    def look(self) -> None:
        """Serves those that wait, if any do."""
        if self._sleeper is None:
            return
        try:
            self._sleeper.withdraw()
            if self._is_asleep:
                self._serve()
        except Exception as error:  # Our place was written over: nobody would wake us any more.
            if self._name.sleeps_on():
                return
            for waiter in self._waiting:
                if not waiter.future.done():
                    waiter.future.set_exception(error)

    def _serve(self) -> None:
        """Gives those that wait what is there, and announces that the others sleep."""
        assert self._sleeper is not None
        self._serve_waiting()
        while self._waiting:
            self._sleeper.announce()
            if not self._serve_first():
                if kept := self._name.kept_for():  # Nobody rings when that is over.
                    self._loop.call_later(kept, self.look)
                return
            self._sleeper.withdraw()

    def _serve_waiting(self) -> None:
        """Gives those that wait what is there, as long as there is something."""
        assert self._sleeper is not None
        while self._serve_first():
            self._sleeper.line_up()  # The next one came later.

    def _serve_first(self) -> bool:
        """Whether the first one that waits was served, or waits no longer."""
        while self._waiting and self._waiting[0].future.done():
            self._waiting.popleft()
        if not self._waiting:
            return False
        future, take, insist, since = self._waiting[0]
        try:
            if self._name.is_stopped:
                raise stopped_wait(self._name)
            is_taken = take() if take is insist or time.monotonic() - since < _LONG else insist()
            if not is_taken:
                return False
            future.set_result(True)
        except Exception as error:
            if self._name.sleeps_on():
                return False
            future.set_exception(error)
        self._waiting.popleft()
        return True

    def close(self) -> None:
        """Gives the place among the sleepers back, once nobody waits. Any thread may do it."""
        if asyncio._get_running_loop() is self._loop or not self._loop.is_running():
            self._give_back()
        else:
            with contextlib.suppress(RuntimeError):  # The loop is closed, and gives it back with itself.
                self._loop.call_soon_threadsafe(self._give_back)

    def _give_back(self) -> None:
        if self._sleeper is not None and not self._is_asleep:
            self._stop_hearing()
            if self._lingering is not None:
                self._lingering.cancel()
                self._lingering = None
            self._sleeper.close()
            self._sleeper = None


def _has_it(future: asyncio.Future[bool]) -> bool:
    """Whether what was waited for was taken."""
    return future.done() and not future.cancelled() and future.exception() is None and future.result()
