"""The service by which a worker runs the tasks of its pool."""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import inspect
import os
import socket
import sys
import threading
import time
from asyncio.events import _get_running_loop, _set_running_loop
from collections.abc import Callable, Generator, Iterator
from types import FrameType
from typing import Any, NoReturn

from shmrpc import _core
from shmrpc.basics.loops import HIDES_TASKS, hide_task, show_task
from shmrpc.errors import DecodeError, ShmrpcError
from shmrpc.host.standard_descriptors import keep_standard_descriptors
from shmrpc.pools.transfer import log_forwarding, shared_values
from shmrpc.pools.transfer.functions import FunctionReference, load_function
from shmrpc.pools.transfer.main_module import defined_names
from shmrpc.pools.transfer.remote_failure import RemoteFailure
from shmrpc.pools.worker.current_worker import (
    SERVICE,
    TaskStopped,
    importing_program,
    program_import_error,
    worker,
)
from shmrpc.service.service import Service
from shmrpc.streams.sending import ContextSource
from shmrpc.values.pickling import LazyPickle


class _OutsideLoop:
    """Context that hides the event loop of this thread, and its current task.

    Unlike :func:`shmrpc.basics.loops.hide_loop`, it knows the loop: asking asyncio takes a system call in Python 3.11.
    """

    def __init__(self) -> None:
        self.loop: asyncio.AbstractEventLoop | None = None
        self._task: Any = None

    def __enter__(self) -> None:
        self._task = hide_task(self.loop)
        _set_running_loop(None)

    def __exit__(self, *error: object) -> None:
        _set_running_loop(self.loop)
        show_task(self.loop, self._task)


class TaskRunner:
    """The service of a worker, which runs the tasks that the pool sends.

    A task of a plain function runs in the main thread, outside the event loop, so that it may run a loop of its own.
    """

    def __init__(
        self, progress: _core.WorkerProgress, log_socket: socket.socket, import_program: Callable[[], None]
    ) -> None:
        self._import_program, self._log_socket = import_program, log_socket
        self._progress = progress
        self._begin = progress.begin
        self._functions: dict[int, Callable[..., Any]] = {}
        #: Number of functions registered with atexit before the first task.
        self._initial_exit_callbacks = 0
        self._outside_loop = _OutsideLoop()
        #: Slot of the task that occupies this thread.
        self._slot: int | None = None
        #: True in a child that a task has forked: it ends with that task, and is no second worker of the pool.
        self._is_forked = False

    def make_service(self) -> Service:
        """Return a service with the endpoints that the pool calls."""
        service = Service(SERVICE)
        for endpoint in (
            self.import_program,
            self.initialize,
            self.define,
            self.run,
            self.run_timed,
            self.run_named,
            self.ping,
        ):
            service.endpoint(endpoint)
        for other in (self.run_chunk, self.run_async, self.forget, self.forget_file, self.has_leftover_work):
            service.endpoint(other)
        return service

    def import_program(self) -> Any:
        """Import the program; return the names that it defines, or a RemoteFailure."""
        try:
            with importing_program():
                self._import_program()
        except BaseException as error:
            return RemoteFailure.from_exception(program_import_error(error))
        keep_standard_descriptors()  # The program may have closed them.
        return defined_names()

    async def initialize(self, reference: FunctionReference | None, args: Any, levels: log_forwarding.Levels) -> Any:
        """Call the pool's initializer, if there is one; return None, or a RemoteFailure.

        An awaitable result is awaited. The result becomes the worker's state. From then on, log records go to the
        pool's process, at its ``levels``, unless the program has set up logging.
        """
        current = worker()
        self._outside_loop.loop = _get_running_loop()
        try:
            with self._outside_loop:
                if type(args) is LazyPickle:
                    args = args.read()
                if reference is not None:
                    current.state = load_function(reference)(*args)
            if inspect.isawaitable(current.state):
                current.state = await current.state
        except BaseException as error:
            return RemoteFailure.from_exception(error)
        log_forwarding.forward_records(self._log_socket, levels)
        self._initial_exit_callbacks = atexit._ncallbacks()
        return None

    def define(self, number: int, reference: FunctionReference) -> None:
        """Load a function under a number. If it cannot be loaded, its tasks raise the error; this call does not."""
        try:
            self._functions[number] = load_function(reference)
        except BaseException as error:
            self._functions[number] = _make_raiser(error)

    def forget(self, number: int) -> None:
        """Forget a function for which the pool sends no more tasks. Ignores an unknown number."""
        self._functions.pop(number, None)

    def forget_file(self, file: int) -> None:
        """Forget the values of a file that the pool no longer shares."""
        shared_values.forget_file(file)

    def run(self, slot: int, number: int, args: Any) -> Any:
        """Run one task, and return its result or a RemoteFailure; return None if the pool has taken the task back.

        Unpickling the arguments is part of the task.
        """
        if not self._begin(slot):
            return None
        self._slot, task = slot, None
        try:
            # The same as self._outside_loop, without its calls.
            task = hide_task(self._outside_loop.loop) if HIDES_TASKS else None
            _set_running_loop(None)
            if type(args) is LazyPickle:
                args = self._read_arguments(number, args)
            result = self._functions[number](*args)
        except BaseException as error:
            result = self._on_failure(error)
        finally:
            self._slot = None
            _set_running_loop(self._outside_loop.loop)
            if task is not None:
                show_task(self._outside_loop.loop, task)
        if self._is_forked:
            _exit_forked_child(None)
        return result

    def run_timed(self, slot: int, number: int, args: Any) -> Any:
        """Run one task as :meth:`run` does, and record its duration, in nanoseconds, for the pool."""
        began = time.monotonic_ns()
        result = self.run(slot, number, args)
        self._progress.record_duration(slot, time.monotonic_ns() - began)
        return result

    def run_named(self, slot: int, number: int, arguments: Any) -> Any:
        """Run one task as :meth:`run` does. ``arguments``: a list of arguments and a dict of keyword arguments."""
        if not self._begin(slot):
            return None
        self._slot, task = slot, None
        try:
            task = hide_task(self._outside_loop.loop) if HIDES_TASKS else None
            _set_running_loop(None)
            args, kwargs = self._read_arguments(number, arguments) if type(arguments) is LazyPickle else arguments
            result = self._functions[number](*args, **kwargs)
        except BaseException as error:
            result = self._on_failure(error)
        finally:
            self._slot = None
            _set_running_loop(self._outside_loop.loop)
            if task is not None:
                show_task(self._outside_loop.loop, task)
        if self._is_forked:
            _exit_forked_child(None)
        return result

    def _on_failure(self, error: BaseException) -> RemoteFailure:
        """Return the failure of a task that has raised ``error``; in a forked child, end the process instead."""
        self._slot = None  # An interrupt from now on has no task to stop.
        if self._is_forked:
            _exit_forked_child(error)
        return RemoteFailure.from_exception(error)

    def _read_arguments(self, number: int, pickled: LazyPickle) -> Any:
        """Unpickle the arguments of a task.

        Raises DecodeError if that fails; lets MemoryError and the errors of shmrpc pass.
        """
        try:
            return pickled.read()
        except (MemoryError, ShmrpcError):
            raise
        except Exception as error:
            function = self._functions[number]
            name = getattr(function, "__qualname__", None) or repr(function)
            raise DecodeError(f"{name}(): an argument cannot be read: {type(error).__name__}: {error}") from error

    def run_chunk(self, slot: int, number: int, single: bool, items: list[Any]) -> Iterator[Any]:
        """Run the tasks of a chunk one after the other, up to the first that was taken back.

        Returns an iterator over their results, then the duration of the chunk in seconds. ``single``: True if an item
        is the only argument of a task, False if an item is a list of arguments.
        """
        return ContextSource(self._run_items(slot, number, single, items), self._outside_loop)  # type: ignore[return-value]

    def _run_items(self, slot: int, number: int, single: bool, items: list[Any]) -> Generator[Any, None, None]:
        """Run the tasks of a chunk; yield their results, then the duration in seconds."""
        function, begin = self._functions[number], self._begin
        began = time.monotonic()
        for item in items:
            if not begin(slot):
                break
            self._slot = slot
            try:
                if type(item) is LazyPickle:
                    item = self._read_arguments(number, item)
                result = function(item) if single else function(*item)
            except BaseException as error:
                result = self._on_failure(error)
            finally:
                self._slot = None
            if self._is_forked:
                _exit_forked_child(None)
            yield result
        yield time.monotonic() - began

    async def run_async(self, seat: int, number: int, arguments: Any) -> Any:
        """Run a task of an async function, and return its result or a RemoteFailure.

        Returns None if the pool has taken the task back. Many such tasks may run at a time.
        """
        if not self._progress.take_coroutine(seat):
            return None
        try:
            args, kwargs = self._read_arguments(number, arguments) if type(arguments) is LazyPickle else arguments
            return await self._functions[number](*args, **kwargs)
        except asyncio.CancelledError:
            raise
        except BaseException as error:
            return RemoteFailure.from_exception(error)

    def has_leftover_work(self) -> bool:
        """Return True if the end of this process would wait for threads, child processes or exit functions."""
        if any(not each.daemon for each in threading.enumerate() if each is not threading.main_thread()):
            return True
        if atexit._ncallbacks() > self._initial_exit_callbacks:
            return True
        processes, util = map(sys.modules.get, ("multiprocessing.process", "multiprocessing.util"))
        if processes is not None and any(not each.daemon for each in processes.active_children()):
            return True
        return util is not None and bool(util._finalizer_registry)

    def ping(self) -> None:
        """Do nothing: the answer tells the pool that no task occupies this thread."""

    def on_fork(self) -> None:
        """Have this process, a child that a task has forked, end with that task."""
        if self._slot is None:
            sys.setprofile(_exit_at_return)  # Only in the child, so the worker pays nothing.
        else:
            self._is_forked = True

    def on_interrupt(self, number: int, frame: FrameType | None) -> None:
        """Raise TaskStopped in the task that occupies this thread, if the pool wants that task to stop."""
        if self._slot is not None and self._progress.is_stopped(self._slot):
            self._slot = None  # Once: a second signal would raise where the first TaskStopped is handled.
            raise TaskStopped


def _exit_forked_child(error: BaseException | None) -> NoReturn:
    """End this process, a forked child, with the status of a program that has raised ``error``; None: no error."""
    status: Any = 0
    if isinstance(error, SystemExit):
        status = error.code or 0
    elif error is not None:
        sys.excepthook(type(error), error, error.__traceback__)
        status = 1
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(Exception):
            stream.flush()
    os._exit(status if isinstance(status, int) else 1)


def _exit_at_return(frame: FrameType, event: str, value: Any) -> None:
    """End a forked child once the coroutine that forked the child suspends or ends. A function for sys.setprofile()."""
    if event == "return" and frame.f_code is TaskRunner.run_async.__code__:
        _exit_forked_child(None)


def _make_raiser(error: BaseException) -> Callable[..., Any]:
    """Return a function that raises ``error`` for any arguments."""

    def fail(*args: Any, **kwargs: Any) -> Any:
        raise error

    return fail
