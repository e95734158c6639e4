"""Futures of submitted tasks, for threads and event loops."""

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
from shmrpc.pools.transfer.remote_failure import RemoteFailure

_R = TypeVar("_R")
_T = TypeVar("_T")

#: Guards the states of all futures that have no condition of their own.
_lock: Final = threading.Lock()
#: Module of asyncio whose callbacks must run in the thread that adds them.
_ASYNCIO_MODULE: Final = "asyncio.tasks"
_DONE_STATES: Final = (FINISHED, CANCELLED, CANCELLED_AND_NOTIFIED)


class _LoopCallback:
    """A callback that runs in the thread of an event loop, in whichever thread the future ends."""

    __slots__ = ("_callback", "_loop")

    def __init__(self, loop: asyncio.AbstractEventLoop, callback: Callable[[Any], object]) -> None:
        self._loop, self._callback = loop, callback

    def __call__(self, future: Any) -> None:
        if _get_running_loop() is self._loop:
            self._callback(future)
            return
        with contextlib.suppress(RuntimeError):  # The loop has been closed.
            self._loop.call_soon_threadsafe(self._callback, future)

    def wraps(self, callback: object) -> bool:
        """Return True if this callback runs the given one."""
        return self._callback is callback


class TaskFuture(concurrent.futures.Future[_R]):
    """The future of a submitted task: threads wait for its result, coroutines await it.

    A :class:`concurrent.futures.Future` creates a condition and two lists, which takes longer than a short task. A
    TaskFuture creates them when a caller begins to wait.
    """

    # Attributes that the base class sets in each instance.
    _state: str = PENDING
    _result: _R | None = None
    _exception: BaseException | None = None
    _waiters: list[Any]
    _done_callbacks: list[Callable[[Any], object]] | tuple[()] = ()
    _own_condition: threading.Condition | None = None
    #: Event loop in which the pool of the task runs; None for a pool for threads.
    _loop: asyncio.AbstractEventLoop | None = None

    def __init__(self) -> None:
        pass  # Sets nothing, for speed.

    if not TYPE_CHECKING:  # Type checkers see the attribute of the base class.

        @property
        def _condition(self) -> threading.Condition:
            """Condition that the methods of the base class use."""
            with _lock:
                if self._own_condition is None:
                    self._waiters, self._done_callbacks = [], [*self._done_callbacks]
                    self._own_condition = threading.Condition()
                return self._own_condition

    def __await__(self) -> Generator[Any, None, _R]:
        """Wait in an event loop of asyncio; return the result. Cancelling the wait cancels a task that has not begun.

        A task that has begun runs on. Raises what the task raised; CancelledError if the future is cancelled;
        LocalProtocolError if no loop of asyncio runs and the task has not ended.
        """
        if self._state not in _DONE_STATES:
            loop = running_loop()
            ended = loop.create_future()

            def end(future: object) -> None:
                if not ended.done():
                    ended.set_result(None)

            self.add_done_callback(_LoopCallback(loop, end))
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
            del self  # The traceback of its exception refers to this frame.

    def done(self) -> bool:
        """Return True if the task has ended or is cancelled."""
        return self._state in _DONE_STATES

    def result(self, timeout: float | None = None) -> _R:
        """Wait for the task's result and return it. ``timeout``: maximum seconds to wait; None: no limit.

        Raises what the task raised; CancelledError of concurrent.futures if the future is cancelled; TimeoutError. In
        the event loop of the task's pool, a wait for a task that has not ended raises LocalProtocolError: await it.
        """
        if self._state == FINISHED and self._exception is None:
            return self._result  # type: ignore[return-value]
        if self._loop is not None:
            self._check_wait(self._loop, timeout)
        try:
            return super().result(timeout)
        finally:
            del self  # The traceback of its exception refers to this frame.

    def exception(self, timeout: float | None = None) -> BaseException | None:
        """Wait for the task's end; return what it raised, or None.

        Raises CancelledError, TimeoutError and LocalProtocolError as :meth:`result` does.
        """
        if self._loop is not None:
            self._check_wait(self._loop, timeout)
        return super().exception(timeout)

    def _check_wait(self, loop: asyncio.AbstractEventLoop, timeout: float | None) -> None:
        """Raise LocalProtocolError if waiting would block the loop that has to end the task. Polling is allowed."""
        if self._state in _DONE_STATES or (timeout is not None and timeout <= 0) or _get_running_loop() is not loop:
            return
        raise LocalProtocolError(
            "the task has not ended, and result() would block the event loop of its pool: use `await future`"
        )

    def add_done_callback(self, fn: Callable[[concurrent.futures.Future[_R]], object]) -> None:
        """Call ``fn`` with this future once it is done, in the thread that ends it; at once if it is done.

        A callback of asyncio, which must be added in a running loop, runs in that loop. What ``fn`` raises is logged.
        """
        if getattr(fn, "__module__", None) == _ASYNCIO_MODULE:  # For example that of asyncio.wait().
            fn = _LoopCallback(asyncio.get_running_loop(), fn)
        with _lock:
            if self._own_condition is None and self._state not in _DONE_STATES:
                self._done_callbacks = [*self._done_callbacks, fn]
                return
        super().add_done_callback(fn)

    def remove_done_callback(self, fn: Callable[[concurrent.futures.Future[_R]], object]) -> int:
        """Remove all instances of a callback; return their number. For ``asyncio.wait()``."""
        with self._condition:
            kept = [each for each in self._done_callbacks if not _runs(each, fn)]
            removed, self._done_callbacks = len(self._done_callbacks) - len(kept), kept
        return removed

    def set_running_or_notify_cancel(self) -> bool:
        """Mark the task as running; return False if it is cancelled. For the pool, once for each task."""
        with _lock:
            if self._own_condition is None and self._state == PENDING:
                self._state = RUNNING
                return True
        return super().set_running_or_notify_cancel()

    def set_result(self, result: _R) -> None:
        """Set the result, or the exception for a RemoteFailure. For the pool. Raises InvalidStateError if done."""
        set_results([self], [result])


def _runs(callback: object, fn: object) -> bool:
    """Return True if a callback is ``fn``, or runs ``fn`` in a loop."""
    return callback.wraps(fn) if isinstance(callback, _LoopCallback) else callback == fn


def mark_running(tasks: Iterable[tuple[TaskFuture[Any], _T]]) -> list[tuple[TaskFuture[Any], _T]]:
    """Mark tasks as running; return those that are not cancelled, perhaps in another order."""
    running, others = [], []
    with _lock:
        for task in tasks:
            future = task[0]
            if future._own_condition is None and future._state == PENDING:
                future._state = RUNNING
                running.append(task)
            else:
                others.append(task)
    return running + [task for task in others if task[0].set_running_or_notify_cancel()] if others else running


def cancel_running(futures: Iterable[TaskFuture[Any]]) -> None:
    """Cancel tasks that were marked as running, and that no worker has begun, as the caller must ensure.

    Ignores futures that are done.
    """
    for future in futures:
        with future._condition:
            if future._state not in (PENDING, RUNNING):
                continue
            future._state = PENDING
        if future.cancel():
            future.set_running_or_notify_cancel()


def set_results(futures: Iterable[TaskFuture[Any]], results: Iterable[Any]) -> None:
    """Set the results of tasks that were marked as running; set the exception in the place of a RemoteFailure.

    Futures without a result in ``results`` stay as they are. Raises InvalidStateError for a future that is done.
    """
    others, with_callbacks = [], []
    with _lock:
        for future, result in zip(futures, results, strict=False):
            if future._own_condition is None and future._state == RUNNING and type(result) is not RemoteFailure:
                # No caller waits: a waiting caller creates the condition first.
                future._result = result
                future._state = FINISHED
                if future._done_callbacks:
                    with_callbacks.append(future)
            else:
                others.append((future, result))
    for future in with_callbacks:
        future._invoke_callbacks()  # type: ignore[attr-defined]
    for future, result in others:
        if type(result) is RemoteFailure:
            future.set_exception(result.to_exception())
        else:
            concurrent.futures.Future.set_result(future, result)
