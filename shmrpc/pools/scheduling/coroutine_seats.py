"""Calls that workers have, and the seats of coroutines in the memory that a pool shares with a worker."""

from __future__ import annotations

import asyncio
import dataclasses
from collections import deque
from collections.abc import Awaitable, Callable

from shmrpc import _core


@dataclasses.dataclass(eq=False, slots=True)
class PendingCall:
    """A task of the pool's loop that waits for a worker's answer, and that wakes if its work is taken back."""

    task: asyncio.Task[object] | None
    #: Seat of a coroutine.
    seat: int = 0
    #: True once the task no longer waits.
    is_finished: bool = False
    #: True once the work was taken back, and the task's cancellation count at that time.
    is_preempted: bool = False
    _cancelling: int = 0

    def finish(self) -> None:
        """End the wait, and drop the task, which holds its result."""
        self.is_finished, self.task = True, None

    def preempt(self) -> None:
        """Wake the task by a cancellation, after its work was taken back."""
        assert self.task is not None
        self.is_preempted, self._cancelling = True, self.task.cancelling()
        self.task.cancel()

    def was_preempted(self) -> bool:
        """Return True if :meth:`preempt` is the only cause of the CancelledError that the task has just caught.

        Revokes that cancellation.
        """
        return self.is_preempted and self.task is not None and self.task.uncancel() <= self._cancelling


class CoroutineSeats:
    """The coroutines that a worker has, each in a seat of the shared memory.

    The worker claims a seat to begin its coroutine; the pool claims a seat to take the coroutine back.
    """

    def __init__(self, progress: _core.WorkerProgress) -> None:
        self._progress = progress
        #: Number of coroutines in the worker.
        self.count = 0
        #: Coroutines, oldest first, that had not begun at the last check, or are newer.
        self._unbegun: deque[PendingCall] = deque()
        #: First seat that was never used, and seats that are free again.
        self._next_seat, self._free = 0, list[int]()
        #: Seats of coroutines that were taken back, and that may still be on their way to the worker.
        self._quarantined: list[int] = []

    def assign(self, task: asyncio.Task[object]) -> PendingCall | None:
        """Assign a seat to a coroutine for which ``task`` waits; return None if no seat is free."""
        if self._free:
            seat = self._free.pop()
        elif self._next_seat < _core.WorkerProgress.COROUTINES:
            seat = self._next_seat
            self._next_seat += 1
        else:
            return None
        self._progress.clear_coroutine(seat)
        call = PendingCall(task, seat)
        self._unbegun.append(call)
        self.count += 1
        return call

    def take_back(self, call: PendingCall) -> bool:
        """Take a coroutine back, so that it never begins; return False if the worker has begun it. Wakes no task."""
        if not call.is_preempted:
            call.is_preempted = self._progress.take_coroutine(call.seat)
        return call.is_preempted

    def release(self, call: PendingCall, *, answered: bool) -> bool:
        """End a call, and free its seat, or quarantine the seat if the worker may still receive the coroutine.

        ``answered``: True if the worker has sent a result. Return True if the caller has to run
        :meth:`free_quarantined`.
        """
        call.finish()
        self.count -= 1
        if answered or not self.take_back(call):
            self._free.append(call.seat)
            return False
        self._quarantined.append(call.seat)
        return len(self._quarantined) == 1

    async def free_quarantined(self, ping: Callable[[], Awaitable[object]]) -> None:
        """Free the quarantined seats, each after the worker has answered a ``ping``.

        The answer proves that the worker has received everything that was sent before. Raises what ``ping`` raises.
        """
        while count := len(self._quarantined):
            await ping()
            self._free += self._quarantined[:count]
            del self._quarantined[:count]

    def has_unbegun(self) -> bool:
        """Return True if the worker has coroutines that it has not begun."""
        calls = self._unbegun
        while calls and (calls[0].is_finished or self._progress.is_coroutine_taken(calls[0].seat)):
            calls.popleft()
        return bool(calls)

    def preempt_unbegun(self) -> None:
        """Take back the coroutines that have not begun, and wake the tasks that wait for them.

        Leaves a coroutine whose task is being cancelled.
        """
        for call in self._unbegun:
            if call.task is not None and not call.task.cancelling() and self._progress.take_coroutine(call.seat):
                call.preempt()
        self._unbegun.clear()
