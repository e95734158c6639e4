"""Running a coroutine's first step at once, without a Task unless it suspends.

Most handlers never suspend, and a Task with its turn of the loop costs more than such a handler. But a
handler that does suspend must have been in its Task from its first line on: ``asyncio.timeout()``, task
groups and ``current_task()`` ask for it. So a *spare_task* Task is kept that has not begun: the first step runs
as if inside it; a coroutine that suspends takes it over, and one that ends leaves it for
the next. The means are those that asyncio documents for third-party tasks. (``asyncio.eager_task_factory``
of Python 3.12 does the first half of this, and makes a new Task for every call.)
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


#: A step that holds the loop for longer, in seconds, is reported.
BLOCKING_THRESHOLD: Final = 0.1
#: The service and the endpoint that hold it, and for how many seconds.
OnBlocking = Callable[[str, str, float], None]


class Suspended(msgspec.Struct, eq=False):
    """What :meth:`EagerStarter.run` returns for a coroutine that goes on in a task of its own."""

    task: asyncio.Task[Any]


class RaisedExit(msgspec.Struct, eq=False):
    """The result of such a task whose coroutine has raised what no Task can keep: it would end the loop."""

    error: BaseException


class EagerStarter:
    """Runs coroutines of one loop. ``on_blocking`` hears of those whose later steps hold it for long."""

    def __init__(
        self, contexts: _core.CallContexts, on_blocking: OnBlocking = lambda service, endpoint, seconds: None
    ) -> None:
        self.contexts = contexts
        self._loop = asyncio.get_running_loop()
        self._on_blocking = on_blocking
        self._spare_task: _SpareTask | None = None

    def run(self, coroutine: Coroutine[Any, Any, Any], call: Call) -> Any:
        """Runs the coroutine, which handles ``call``, to its end or its first suspension.

        Its result, or its exception raised, if it ended; otherwise Suspended, with the task that it goes on
        in. To be called from a callback of the loop, not from within a task, and in a context of its own: the
        coroutine goes on in it.
        """
        spare_task = self._spare_task
        if spare_task is None or spare_task.task.done():  # Done: somebody cancelled every task of the loop.
            spare_task = self._spare_task = _SpareTask(self._loop, self._on_blocking)
        task = spare_task.task
        current_call_var.set(call)
        _enter_task(self._loop, task)
        try:
            yielded = coroutine.send(None)
        except BaseException as error:
            call._ended = True
            if task.cancelling():  # A cancellation belongs to this call alone.
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
        del spare_task.task  # The two would keep each other, and what the call was given, until a collection.
        return Suspended(task)

    def close(self) -> None:
        """Gives the spare_task task back."""
        if self._spare_task is not None:
            self._spare_task.task.cancel()
            self._spare_task = None


class _SpareTask(Coroutine[Any, Any, Any]):
    """A Task that waits for a coroutine to go on with, and that Task's own coroutine.

    It is a class and no ``async def`` because it may be cancelled before its first step, and the coroutine
    it has taken over has to hear of that.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, on_blocking: OnBlocking) -> None:
        self._on_blocking = on_blocking
        self._call: Call | None = None
        self._coroutine: Coroutine[Any, Any, Any] | None = None
        #: The coroutine's own, in which each of its steps runs.
        self._context: contextvars.Context
        #: What the coroutine yielded in its first step: the task is still to be told.
        self._yielded: list[Any] = []
        self._go = loop.create_future()
        self.task: asyncio.Task[Any] = loop.create_task(self)

    def adopt_coroutine(
        self, coroutine: Coroutine[Any, Any, Any], yielded: Any, call: Call, context: contextvars.Context
    ) -> None:
        """The task goes on with a coroutine that has yielded once."""
        self._coroutine = coroutine
        self._context = context
        self._call = call
        self._yielded.append(yielded)
        if not self._go.done():
            self._go.set_result(None)

    def send(self, value: Any) -> Any:
        """The task's next step."""
        if self._coroutine is None:
            return next(self._go.__await__())
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
        """The task was cancelled, or what it waited for failed."""
        if self._coroutine is None:
            raise error
        if self._yielded:
            # A task that is cancelled cancels what it waits for; this one does not know of it yet.
            awaited = self._yielded.pop()
            if isinstance(error, asyncio.CancelledError) and asyncio.isfuture(awaited):
                awaited.cancel()
                awaited.add_done_callback(_retrieve_exception)
        try:
            return self._context.run(self._coroutine.throw, error)
        except (SystemExit, KeyboardInterrupt) as end:
            raise _task_exit(end) from None
        finally:
            del error  # It has this frame in its traceback.

    def close(self) -> None:
        """The task is dropped."""
        if self._coroutine is not None:
            self._context.run(self._coroutine.close)

    def __await__(self) -> Generator[Any, Any, Any]:
        raise TypeError("only its own task runs this")


def _task_exit(error: SystemExit | KeyboardInterrupt) -> BaseException:
    """What a task's coroutine raises for this of its handler: the end of the task, unless it is for the program."""
    return error if is_program_exit(error) else StopIteration(RaisedExit(error))


def _retrieve_exception(future: asyncio.Future[Any]) -> None:
    """Takes a future's exception, so that it is not logged: a gathering has its cancellation as one."""
    if not future.cancelled():
        future.exception()
