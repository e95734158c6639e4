"""Single calls: tasks that go to a worker one at a time."""

from __future__ import annotations

import asyncio
import functools
import sys
from collections.abc import Callable
from typing import Any

from shmrpc.errors import ConnectionLost, DecodeError, EncodeError, RemoteError
from shmrpc.pools.scheduling.exit_errors import MAX_WORKER_DEATHS
from shmrpc.pools.scheduling.lifecycle import PoolLifecycle
from shmrpc.pools.scheduling.scheduler import Scheduler
from shmrpc.pools.scheduling.stealing import CHECK_INTERVAL, WorkStealer
from shmrpc.pools.scheduling.worker_set import WorkerSet
from shmrpc.pools.task_future import TaskFuture, cancel_running
from shmrpc.pools.transfer.functions import FunctionRegistry, TaskFunction
from shmrpc.pools.transfer.remote_failure import RemoteFailure, name_task_in_error, read_result
from shmrpc.pools.transfer.shared_values import SharedValues
from shmrpc.pools.worker.current_worker import TaskStopped
from shmrpc.values.pickling import LazyPickle

if sys.version_info >= (3, 12):
    from asyncio import current_task
else:  # asyncio's is written in Python in 3.11, and takes longer than everything else that a pool does with a task.

    def current_task(loop: asyncio.AbstractEventLoop) -> asyncio.Task[Any] | None:
        """Return the task that runs in this loop."""
        return asyncio.tasks._current_tasks.get(loop)  # type: ignore[attr-defined,no-any-return]


class TaskStopIterationError(RuntimeError):
    """Error for a task that raised StopIteration, which a coroutine cannot raise; its cause is that StopIteration."""

    def __init__(self, stop: StopIteration, name: str) -> None:
        super().__init__(f"{name}() raised {stop!r}, which cannot be raised in a coroutine: see submit()")
        self.__cause__ = self.stop = stop


class CallRunner:
    """The runner of single calls: of ``run()``, of async functions, with keyword arguments, or submitted alone."""

    def __init__(
        self,
        lifecycle: PoolLifecycle,
        workers: WorkerSet,
        scheduler: Scheduler,
        stealer: WorkStealer,
        functions: FunctionRegistry,
        shared: SharedValues,
        retries: int,
    ) -> None:
        self._lifecycle, self._workers, self._scheduler, self._stealer = lifecycle, workers, scheduler, stealer
        self._functions, self._shared, self._retries = functions, shared, retries
        # The containers that each call reads.
        self._idle, self._waiters, self._sources = scheduler.idle, scheduler.waiters, scheduler.sources
        #: True if a worker may have to retire after any task.
        self._limits_tasks = workers.options.max_tasks_per_child is not None
        #: Number of calls whose result, or whose exception, a worker has sent.
        self.completed = 0

    async def run(
        self, function: Callable[..., Any] | TaskFunction, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        """Run one task and return its result. Cancelling this coroutine stops the task.

        Raises what the task raises, with TaskStopIterationError in the place of StopIteration; WorkerDied if its worker
        dies, after the retries; EncodeError or DecodeError for a function, arguments or a result that cannot be sent or
        read; TypeError for no function; or the error with which the pool has closed.
        """
        if self._lifecycle.closed_error is not None:
            raise self._lifecycle.closed_error
        known, args = self._functions.lookup(function, args)
        sent_args: Any = args
        if self._shared.refs:
            sent_args = tuple(self._shared.replace_values(args))
            kwargs = dict(zip(kwargs, self._shared.replace_values(kwargs.values()), strict=True))
        if known.is_async:
            return await self._run_async(known, sent_args, kwargs)
        retries, unbegun_deaths = self._retries, 0
        while True:
            worker = self._idle.pop() if self._idle else await self._scheduler.wait_for_worker()
            worker.open_call(current_task(self._lifecycle.loop))
            if self._stealer.check_timer is None:
                self._stealer.check_later()
            try:
                if known.number not in worker.known_functions:
                    await worker.ensure_function_sent(known)
                if kwargs:
                    result = await worker.run_named(0, known.number, (list(sent_args), kwargs))
                else:
                    result = await worker.run(0, known.number, sent_args)
            except asyncio.CancelledError:
                if worker.was_call_preempted():
                    self._scheduler.release_slot_after_ping(worker, 0)
                    self._lifecycle.check_open()
                    continue
                self._scheduler.stop_task(worker, 0)
                raise
            except ConnectionLost:
                self._workers.replace(worker)
                begun = worker.progress.count_begun(0) > 0
                unbegun_deaths += not begun and not worker.kill_reason
                if (begun and not retries) or unbegun_deaths >= MAX_WORKER_DEATHS:
                    raise await self._workers.death_error(worker, known, begun=begun) from None
                retries -= begun
                self._lifecycle.check_open()
                continue
            except (EncodeError, DecodeError, RemoteError) as error:
                self._scheduler.release_slot(worker, 0)
                raise name_task_in_error(error, known.name) from error.__cause__
            except BaseException:  # The task may be at any point.
                self._scheduler.stop_task(worker, 0)
                raise
            self.completed += 1
            worker.caller = None
            del worker.slots[0]
            is_leaving = worker.is_gone or worker.is_stopped or worker.is_retiring
            if worker.slots or is_leaving or self._waiters or self._sources:
                self._scheduler.release_slot(worker, 0)
            elif self._limits_tasks:
                self._scheduler.mark_idle(worker)
            else:
                self._idle.append(worker)  # A short form of mark_idle().
            if type(result) is LazyPickle:
                result = read_result(result, known.name)
            if type(result) is RemoteFailure:
                failure = result.to_exception()
                if isinstance(failure, TaskStopped) and self._lifecycle.closed_error is not None:
                    raise self._lifecycle.closed_error
                try:
                    raise _as_coroutine_error(failure, known.name)
                finally:
                    del failure  # Its traceback refers to this frame.
            return result

    def run_submitted(
        self, future: TaskFuture[Any], function: TaskFunction, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> None:
        """Run one task in the background, and set its result or its exception in a future, unless it is cancelled."""
        task = self._lifecycle.loop.create_task(self._run_submitted(future, function, args, kwargs))
        self._lifecycle.calls.add(task)
        task.add_done_callback(functools.partial(self._on_submitted_done, future))

    async def _run_submitted(
        self, future: TaskFuture[Any], function: TaskFunction, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> None:
        """Run one task, and set its outcome in a future, unless the future is cancelled or this coroutine is."""
        if not future.set_running_or_notify_cancel():
            return
        try:
            result = await self.run(function, args, kwargs)
        except asyncio.CancelledError:
            raise
        except TaskStopIterationError as error:
            future.set_exception(error.stop)
        except BaseException as error:
            future.set_exception(error)
        else:
            future.set_result(result)
        finally:
            del future  # The traceback of its exception refers to this frame.

    def _on_submitted_done(self, future: TaskFuture[Any], task: asyncio.Task[None]) -> None:
        """Forget a task that has ended. If it was cancelled, cancel its future, or fail it if the pool has closed."""
        self._lifecycle.calls.discard(task)
        if not future.done():  # The task was cancelled, perhaps before its first step.
            if self._lifecycle.closed_error is None:
                cancel_running([future])
            else:
                future.set_exception(self._lifecycle.closed_error)

    async def _run_async(self, function: TaskFunction, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run a task of an async function in the worker that can begin it soonest. Raises as :meth:`run` does."""
        retries, unbegun_deaths = self._retries, 0
        task = asyncio.current_task()
        assert task is not None
        while True:
            self._lifecycle.check_open()
            candidates = [worker for worker in self._workers.workers if worker.accepts_tasks]
            if not candidates:
                self._scheduler.release_slot(await self._scheduler.wait_for_worker(), 0)
                continue
            # A worker whose slots are in use holds its loop, and begins a coroutine later.
            worker = min(candidates, key=lambda each: (bool(each.slots), each.coroutines.count))
            call = worker.assign_seat(task)
            if call is None:
                await asyncio.sleep(CHECK_INTERVAL)
                continue
            self._stealer.check_later()
            answered = False
            try:
                await worker.ensure_function_sent(function)
                result = await worker.run_async(call.seat, function.number, (list(args), kwargs))
                answered = True
            except asyncio.CancelledError:
                if call.was_preempted():
                    continue
                raise
            except ConnectionLost:
                begun = not worker.coroutines.take_back(call)
                self._workers.replace(worker)
                unbegun_deaths += not begun and not worker.kill_reason
                if (begun and not retries) or unbegun_deaths >= MAX_WORKER_DEATHS:
                    raise await self._workers.death_error(worker, function, begun=begun) from None
                retries -= begun
                continue
            except (EncodeError, DecodeError, RemoteError) as error:
                raise name_task_in_error(error, function.name) from error.__cause__
            finally:
                if worker.coroutines.release(call, answered=answered) and not worker.is_gone:
                    self._lifecycle.start(worker.free_seats())
                if worker.is_retiring:
                    self._workers.retire(worker)
            self.completed += 1
            if type(result) is LazyPickle:
                result = read_result(result, function.name)
            if type(result) is RemoteFailure:
                raise _as_coroutine_error(result.to_exception(), function.name)
            return result


def _as_coroutine_error(error: BaseException, name: str) -> BaseException:
    """Return the exception that a coroutine raises for what a task raised: StopIteration is wrapped."""
    return TaskStopIterationError(error, name) if isinstance(error, StopIteration) else error
