"""Eager start of coroutines: the first step runs at once, and a Task exists only for a coroutine that suspends.

Most handlers never suspend, and a Task with an iteration of the event loop costs more than such a handler. But a
handler that suspends must have run in its Task from its first line on, because ``asyncio.timeout()``, task groups and
``current_task()`` depend on it. Therefore a *spare* Task is kept that has not begun. The first step runs as if inside
the spare Task. A coroutine that suspends takes the Task over; one that ends leaves it for the next coroutine. This
uses the functions that asyncio documents for third-party tasks. (``asyncio.eager_task_factory`` of Python 3.12 does
the first half, and creates a new Task for every call.)
"""

from __future__ import annotations

import asyncio
import contextvars
import time
from collections.abc import Callable, Coroutine, Generator
from typing import Any, Final

import msgspec

from shmrpc import _core
from shmrpc.server.program_exit import is_program_exit
from shmrpc.service.call import Call, current_call_var

_enter_task = asyncio._enter_task
_leave_task = asyncio._leave_task


#: Seconds that a step may run before it is reported for blocking the event loop.
BLOCKING_THRESHOLD: Final = 0.1
#: Callback for an endpoint that blocked the loop, given service, endpoint and seconds.
OnBlocking = Callable[[str, str, float], None]


class Suspended(msgspec.Struct, eq=False):
    """The result of :meth:`EagerStarter.run` for a coroutine that continues in a task."""

    task: asyncio.Task[Any]


class RaisedExit(msgspec.Struct, eq=False):
    """The result of a task whose coroutine raised SystemExit or the like, which would stop the loop in a Task."""

    error: BaseException


class EagerStarter:
    """The start of coroutines in one event loop. ``on_blocking`` is called for a later step that blocks the loop."""

    def __init__(
        self, contexts: _core.CallContexts, on_blocking: OnBlocking = lambda service, endpoint, seconds: None
    ) -> None:
        self.contexts = contexts
        self._loop = asyncio.get_running_loop()
        self._on_blocking = on_blocking
        self._spare_task: _SpareTask | None = None

    def run(self, coroutine: Coroutine[Any, Any, Any], call: Call) -> Any:
        """Run the coroutine, which handles ``call``, until it ends or first suspends.

        Returns the result of a coroutine that has ended, or raises its exception. Returns Suspended, with the task, for
        one that continues. Call this in a callback of the event loop, not in a task, and in a new context: the
        coroutine continues in that context.
        """
        spare_task = self._spare_task
        if spare_task is None or spare_task.task.done():  # Done after a cancellation of all tasks of the loop.
            spare_task = self._spare_task = _SpareTask(self._loop, self._on_blocking)
        task = spare_task.task
        current_call_var.set(call)
        _enter_task(self._loop, task)
        try:
            yielded = coroutine.send(None)
        except BaseException as error:
            call._ended = True
            if task.cancelling():  # The cancellation belongs to this call only.
                self.close()
            if isinstance(error, StopIteration):
                return error.value
            raise
        finally:
            _leave_task(self._loop, task)
        self._spare_task = None
        context = self.contexts.current()
        assert context is not None
        spare_task.adopt_coroutine(coroutine, yielded, call, context)
        del spare_task.task  # Avoids a reference cycle, which would keep the arguments of the call alive.
        return Suspended(task)

    def close(self) -> None:
        """Cancel the spare task."""
        if self._spare_task is not None:
            self._spare_task.task.cancel()
            self._spare_task = None


class _SpareTask(Coroutine[Any, Any, Any]):
    """A Task that waits for a coroutine to continue, and the coroutine of that Task.

    A class instead of an ``async def``, because the Task may be cancelled before its first step, and the coroutine it
    has taken over must receive the cancellation.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, on_blocking: OnBlocking) -> None:
        self._on_blocking = on_blocking
        self._call: Call | None = None
        self._coroutine: Coroutine[Any, Any, Any] | None = None
        #: Context of the coroutine, in which each of its steps runs.
        self._context: contextvars.Context
        #: Value that the coroutine yielded in its first step, for the task to receive.
        self._yielded: list[Any] = []
        #: Done once a coroutine was adopted.
        self._adopted = loop.create_future()
        self.task: asyncio.Task[Any] = loop.create_task(self)

    def adopt_coroutine(
        self, coroutine: Coroutine[Any, Any, Any], yielded: Any, call: Call, context: contextvars.Context
    ) -> None:
        """Take over a coroutine that has yielded ``yielded`` in its first step, and continue it in this task."""
        self._coroutine = coroutine
        self._context = context
        self._call = call
        self._yielded.append(yielded)
        if not self._adopted.done():
            self._adopted.set_result(None)

    def send(self, value: Any) -> Any:
        """Run the next step of the task: wait for a coroutine, or continue the adopted one."""
        if self._coroutine is None:
            return next(self._adopted.__await__())
        if self._yielded:
            return self._yielded.pop()
        began = time.monotonic()
        try:
            return self._context.run(self._coroutine.send, value)
        except (SystemExit, KeyboardInterrupt) as error:
            raise _task_exit(error) from None
        finally:
            seconds = time.monotonic() - began
            if seconds > BLOCKING_THRESHOLD and self._call is not None:
                self._on_blocking(self._call.service, self._call.endpoint, seconds)

    def throw(self, error: Any, value: Any = None, traceback: Any = None) -> Any:
        """Raise the task's cancellation, or the error of the awaited future, in the adopted coroutine."""
        if self._coroutine is None:
            raise error
        if self._yielded:
            # A cancelled task cancels the future it awaits. This task does not know the future yet.
            awaited = self._yielded.pop()
            if isinstance(error, asyncio.CancelledError) and asyncio.isfuture(awaited):
                awaited.cancel()
                awaited.add_done_callback(_retrieve_exception)
        try:
            return self._context.run(self._coroutine.throw, error)
        except (SystemExit, KeyboardInterrupt) as end:
            raise _task_exit(end) from None
        finally:
            del error  # Its traceback refers to this frame.

    def close(self) -> None:
        """Close the adopted coroutine, because the task was dropped."""
        if self._coroutine is not None:
            self._context.run(self._coroutine.close)

    def __await__(self) -> Generator[Any, Any, Any]:
        raise TypeError("only its own task runs this")


def _task_exit(error: SystemExit | KeyboardInterrupt) -> BaseException:
    """Return the exception to raise in a task: an error that ends the program, or the task's end with a RaisedExit."""
    return error if is_program_exit(error) else StopIteration(RaisedExit(error))


def _retrieve_exception(future: asyncio.Future[Any]) -> None:
    """Retrieve a future's exception, so that asyncio does not log it: gather() stores its cancellation as one."""
    if not future.cancelled():
        future.exception()
