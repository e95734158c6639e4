"""A wait queue: the tasks of one event loop that wait in the same wait set of a shared object."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import deque
from collections.abc import Callable
from typing import Final, NamedTuple

from shmrpc._core import LoopWaiter, SharedObject
from shmrpc.errors import WaitStopped

#: Seconds after which a waiter insists, as in the core.
_INSIST_AFTER: Final = 0.02
#: Seconds for which the loop still listens to the doorbell after the last wait: starting and stopping to listen takes
#: longer than many waits.
_LINGER: Final = 1.0


class _Waiter(NamedTuple):
    #: True once the waiter has what it waits for, False once its timeout is over.
    future: asyncio.Future[bool]
    attempt: Callable[[], bool]
    #: Takes the place of ``attempt`` once the waiter has waited for long.
    insist: Callable[[], bool]
    #: Monotonic time, in seconds, at which the wait began.
    since: float


def wait_stopped_error(shared_object: SharedObject) -> WaitStopped:
    """Return the error for a wait of a handle that ``stop()`` has stopped."""
    return WaitStopped(f"{shared_object.kind} {shared_object.name!r}: the waits of this handle were stopped")


def undo_nothing() -> None:
    """Do nothing: the ``undo`` of a wait that acquires nothing."""


class WaitQueue:
    """The tasks of a loop that wait in the same wait set, in the order of their arrival.

    All of them share one slot in the wait set of the object, among the sleepers of all processes. When the doorbell of
    that slot rings, the loop makes the attempt of the first task on its behalf. Only ``close()`` may be called in
    another thread than the loop's.
    """

    def __init__(self, shared_object: SharedObject, wait_set: int, loop: asyncio.AbstractEventLoop) -> None:
        """Make an empty queue for the wait set of this number."""
        self._object = shared_object
        self._wait_set = wait_set
        self._loop = loop
        self._sleeper: LoopWaiter | None = None
        self._waiting: deque[_Waiter] = deque()
        self._is_asleep = False
        #: The number of sleeps of the loop. While it is unchanged, no task has waited: the linger timer compares it.
        self._sleeps = 0
        self._linger_timer: asyncio.TimerHandle | None = None
        self._is_listening = False

    async def wait(
        self,
        attempt: Callable[[], bool],
        undo: Callable[[], None],
        timeout: float | None,
        insist: Callable[[], bool] | None = None,
    ) -> bool:
        """Wait until ``attempt()``, or ``insist()`` once the task has waited for long, returns True.

        Returns False if the timeout, in seconds (None: no limit), is over before. If the task is cancelled after a
        successful attempt, ``undo()`` gives back what it has acquired.

        The loop calls ``attempt``, not the task. Raises WaitStopped, what ``attempt`` raises, LocalProtocolError if the
        object is closed, and SharedMemoryError if the wait set is full.
        """
        waiter = _Waiter(self._loop.create_future(), attempt, insist or attempt, time.monotonic())
        self._waiting.append(waiter)
        timer = None if timeout is None else self._loop.call_later(max(0.0, timeout), self._time_out, waiter.future)
        try:
            if not self._is_asleep:
                self._fall_asleep()
            return await waiter.future
        except asyncio.CancelledError:
            if _has_succeeded(waiter.future):
                undo()
            raise
        finally:
            if timer is not None:
                timer.cancel()
            if waiter in self._waiting:
                self._waiting.remove(waiter)
            if not self._waiting:
                self._wake_up()

    def poll(self) -> None:
        """Make the attempts of the waiting tasks in order, until one fails. Does nothing before the first wait.

        An error of an attempt ends the wait of its task; a corrupt slot ends all waits with its error.
        """
        if self._sleeper is None:
            return
        try:
            self._sleeper.withdraw()
            if self._is_asleep:
                self._serve()
        except Exception as error:  # Another process wrote over our slot: nothing would wake the tasks.
            if self._object.sleeps_on():
                return
            for waiter in self._waiting:
                if not waiter.future.done():
                    waiter.future.set_exception(error)

    def close(self) -> None:
        """Release the slot in the wait set once no task waits. Any thread may call this."""
        if asyncio._get_running_loop() is self._loop or not self._loop.is_running():
            self._release_slot()
        else:
            with contextlib.suppress(RuntimeError):  # A closed loop has released the slot with itself.
                self._loop.call_soon_threadsafe(self._release_slot)

    def _time_out(self, future: asyncio.Future[bool]) -> None:
        """End a wait whose timeout is over, after the attempts of the waiting tasks in order, until one fails."""
        if not future.done():
            self._serve_waiting()  # The process that was to ring the doorbell may be stopped.
        if not future.done():
            future.set_result(False)

    def _fall_asleep(self) -> None:
        """Enter the wait set, listen to the doorbell, and make the first attempts.

        Raises LocalProtocolError if the object is closed, and SharedMemoryError if the wait set is full.
        """
        self._object.prepare()
        if self._sleeper is None:
            self._sleeper = self._object.sleeper(self._wait_set)
        self._sleeper.draw_ticket()
        if not self._is_listening:
            self._loop.add_reader(self._sleeper.fileno(), self.poll)
            self._is_listening = True
        self._sleeps += 1
        self._is_asleep = True
        self._serve()

    def _wake_up(self) -> None:
        """Leave the wait set, because no task waits any longer.

        Releases the slot if the object is closed. Otherwise the loop still listens to the doorbell for some time.
        """
        if self._is_asleep and self._sleeper is not None:
            self._is_asleep = False
            try:
                self._sleeper.cancel()
            finally:
                if self._object.is_closed:
                    self._release_slot()
                elif self._linger_timer is None:
                    self._linger_timer = self._loop.call_later(_LINGER, self._end_linger, self._sleeps)

    def _end_linger(self, sleeps: int) -> None:
        """Stop listening to the doorbell if no task has waited since the timer was set; else set the timer again.

        ``sleeps``: the number of sleeps when the timer was set.
        """
        self._linger_timer = None
        if self._is_asleep:
            return
        if self._sleeps == sleeps:
            self._stop_listening()
        else:
            self._linger_timer = self._loop.call_later(_LINGER, self._end_linger, self._sleeps)

    def _stop_listening(self) -> None:
        """Remove the doorbell from the loop, if it is there. Idempotent."""
        if self._is_listening and self._sleeper is not None and not self._loop.is_closed():
            self._loop.remove_reader(self._sleeper.fileno())
        self._is_listening = False

    def _serve(self) -> None:
        """Make the attempts of the waiting tasks in order, and announce that the loop sleeps for those that remain."""
        assert self._sleeper is not None
        self._serve_waiting()
        while self._waiting:
            self._sleeper.announce()
            if not self._serve_first():
                if kept := self._object.kept_for():  # The doorbell does not ring at the end of that time.
                    self._loop.call_later(kept, self.poll)
                return
            self._sleeper.withdraw()

    def _serve_waiting(self) -> None:
        """Make the attempts of the waiting tasks in order, until one fails."""
        assert self._sleeper is not None
        while self._serve_first():
            self._sleeper.draw_ticket()  # The next task came later than the one that was served.

    def _serve_first(self) -> bool:
        """Make the attempt of the first task. Return False if the attempt failed, or if no task waits.

        An error, and WaitStopped after ``stop()``, ends the wait of that task, and returns True.
        """
        while self._waiting and self._waiting[0].future.done():
            self._waiting.popleft()
        if not self._waiting:
            return False
        future, attempt, insist, since = self._waiting[0]
        try:
            if self._object.is_stopped:
                raise wait_stopped_error(self._object)
            insists = attempt is not insist and time.monotonic() - since >= _INSIST_AFTER
            if not (insist() if insists else attempt()):
                return False
            future.set_result(True)
        except Exception as error:
            if self._object.sleeps_on():
                return False
            future.set_exception(error)
        self._waiting.popleft()
        return True

    def _release_slot(self) -> None:
        """Release the slot in the wait set and its doorbell, unless tasks wait. Idempotent."""
        if self._sleeper is not None and not self._is_asleep:
            self._stop_listening()
            if self._linger_timer is not None:
                self._linger_timer.cancel()
                self._linger_timer = None
            self._sleeper.close()
            self._sleeper = None


def _has_succeeded(future: asyncio.Future[bool]) -> bool:
    """Return True if the attempt of the waiter with this future has succeeded."""
    return future.done() and not future.cancelled() and future.exception() is None and future.result()
