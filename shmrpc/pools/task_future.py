"""The result of a task that was submitted."""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import threading
from asyncio.events import _get_running_loop
from collections.abc import Callable, Generator, Iterable
from concurrent.futures._base import CANCELLED, CANCELLED_AND_NOTIFIED, FINISHED, PENDING, RUNNING
from typing import TYPE_CHECKING, Any, Final, TypeVar

from shmrpc.basics.loops import running_loop
from shmrpc.errors import LocalProtocolError
from shmrpc.pools.transfer.remote_failure import Failed

_R = TypeVar("_R")
_T = TypeVar("_T")

#: Guards the states of the futures that have no condition of their own.
_lock: Final = threading.Lock()
#: The module of asyncio whose callbacks are for the thread that adds them.
_ASYNCIO: Final = "asyncio.tasks"
_OVER: Final = (FINISHED, CANCELLED, CANCELLED_AND_NOTIFIED)


class _InLoop:
    """A callback that is called in the thread of a loop, wherever the future ends."""

    __slots__ = ("_call", "_loop")

    def __init__(self, loop: asyncio.AbstractEventLoop, call: Callable[[Any], object]) -> None:
        self._loop, self._call = loop, call

    def __call__(self, future: Any) -> None:
        if _get_running_loop() is self._loop:
            self._call(future)
            return
        with contextlib.suppress(RuntimeError):  # The loop has been closed since.
            self._loop.call_soon_threadsafe(self._call, future)

    def calls(self, call: object) -> bool:
        """Return True if this callback calls the given one."""
        return self._call is call


class TaskFuture(concurrent.futures.Future[_R]):
    """The result of a task that was submitted: for threads, and to be awaited.

    A :class:`concurrent.futures.Future` makes a condition and two lists, which takes longer than a short task. This one
    makes them once something waits for it, and no sooner.
    """

    # What the base class sets in each instance.
    _state: str = PENDING
    _result: _R | None = None
    _exception: BaseException | None = None
    _waiters: list[Any]
    _done_callbacks: list[Callable[[Any], object]] | tuple[()] = ()
    _made: threading.Condition | None = None
    #: The event loop in which the task's pool runs; None: a pool for threads.
    _loop: asyncio.AbstractEventLoop | None = None

    def __init__(self) -> None:
        pass  # The base class would make all of it.

    if not TYPE_CHECKING:  # To a type checker it is the attribute of the base class.

        @property
        def _condition(self) -> threading.Condition:
            """What the methods of the base class lock, and wait on."""
            with _lock:
                if self._made is None:
                    self._waiters, self._done_callbacks = [], [*self._done_callbacks]
                    self._made = threading.Condition()
                return self._made

    def __await__(self) -> Generator[Any, None, _R]:
        """Waits in an event loop. Cancelling the wait cancels a task that was not begun."""
        if self._state not in _OVER:
            loop = running_loop()
            ended = loop.create_future()

            def end(future: object) -> None:
                if not ended.done():
                    ended.set_result(None)

            self.add_done_callback(_InLoop(loop, end))
            try:
                yield from ended
            except asyncio.CancelledError:
                self.cancel()
                raise
        if self.cancelled():
            raise asyncio.CancelledError
        try:
            return self.result()
        finally:
            del self  # The traceback of the exception that it holds has this frame.

    def done(self) -> bool:
        """Whether the task has ended, or is cancelled."""
        return self._state in _OVER

    def result(self, timeout: float | None = None) -> _R:
        """The task's result; waits for it. Raises what the task raised, CancelledError, or TimeoutError.

        In the event loop of the task's pool, raises LocalProtocolError while the task has not ended: await the future.
        """
        if self._state == FINISHED and self._exception is None:
            return self._result  # type: ignore[return-value]
        if self._loop is not None:
            self._check_wait(self._loop, timeout)
        try:
            return super().result(timeout)
        finally:
            del self  # As in __await__().

    def exception(self, timeout: float | None = None) -> BaseException | None:
        """Wait for the task's end, and return what it raised, or None. Raises as :meth:`result`."""
        if self._loop is not None:
            self._check_wait(self._loop, timeout)
        return super().exception(timeout)

    def _check_wait(self, loop: asyncio.AbstractEventLoop, timeout: float | None) -> None:
        """Raise LocalProtocolError where a wait would block the loop that is to end the task."""
        if self._state in _OVER or (timeout is not None and timeout <= 0) or _get_running_loop() is not loop:
            return
        raise LocalProtocolError(
            "the task has not ended, and result() would block the event loop of its pool: use `await future`"
        )

    def add_done_callback(self, fn: Callable[[concurrent.futures.Future[_R]], object]) -> None:
        """Has ``fn`` called with this future once it is done: at once if it is."""
        if getattr(fn, "__module__", None) == _ASYNCIO:  # Such as that of asyncio.wait(), which is for its own thread.
            fn = _InLoop(asyncio.get_running_loop(), fn)
        with _lock:
            if self._made is None and self._state not in _OVER:
                self._done_callbacks = [*self._done_callbacks, fn]
                return
        super().add_done_callback(fn)

    def remove_done_callback(self, fn: Callable[[concurrent.futures.Future[_R]], object]) -> int:
        """Removes all instances of a callback; how many there were. For ``asyncio.wait()``."""
        with self._condition:
            kept = [each for each in self._done_callbacks if not _is_of(each, fn)]
            removed, self._done_callbacks = len(self._done_callbacks) - len(kept), kept
        return removed

    def set_running_or_notify_cancel(self) -> bool:
        """Says that the task begins; False if it is cancelled. For the pool."""
        with _lock:
            if self._made is None and self._state == PENDING:
                self._state = RUNNING
                return True
        return super().set_running_or_notify_cancel()

    def set_result(self, result: _R) -> None:
        """Ends it with a result. For the pool."""
        settle([self], [result])


def _is_of(callback: object, fn: object) -> bool:
    return callback.calls(fn) if isinstance(callback, _InLoop) else callback == fn


def begin(tasks: Iterable[tuple[TaskFuture[Any], _T]]) -> list[tuple[TaskFuture[Any], _T]]:
    """Says that tasks begin; those that are not cancelled."""
    begun, others = [], []
    with _lock:
        for task in tasks:
            future = task[0]
            if future._made is None and future._state == PENDING:
                future._state = RUNNING
                begun.append(task)
            else:
                others.append(task)
    return begun + [task for task in others if task[0].set_running_or_notify_cancel()] if others else begun


def withdraw(futures: Iterable[TaskFuture[Any]]) -> None:
    """Cancels tasks that were to begin, and have not."""
    for future in futures:
        with future._condition:
            if future._state not in (PENDING, RUNNING):
                continue
            future._state = PENDING
        if future.cancel():
            future.set_running_or_notify_cancel()


def settle(futures: Iterable[TaskFuture[Any]], results: Iterable[Any]) -> None:
    """Ends tasks with their results, or with what has failed."""
    others, told = [], []
    with _lock:
        for future, result in zip(futures, results, strict=False):
            if future._made is None and future._state == RUNNING and type(result) is not Failed:
                # Nobody waits: whoever does makes the condition first.
                future._result = result
                future._state = FINISHED
                if future._done_callbacks:
                    told.append(future)
            else:
                others.append((future, result))
    for future in told:
        future._invoke_callbacks()  # type: ignore[attr-defined]
    for future, result in others:
        if type(result) is Failed:
            future.set_exception(result.error())
        else:
            concurrent.futures.Future.set_result(future, result)
