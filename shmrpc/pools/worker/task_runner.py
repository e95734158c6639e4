"""A worker from the inside: it serves its pool, and no other client."""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import dataclasses
import inspect
import logging
import os
import select
import signal
import socket
import sys
import threading
import time
from asyncio.events import _get_running_loop, _set_running_loop
from collections.abc import Callable, Generator, Iterator
from types import FrameType
from typing import Any, Final, NoReturn

import uvloop

from shmrpc import _core
from shmrpc.errors import DecodeError, LocalProtocolError, ShmrpcError
from shmrpc.host.standard_descriptors import keep_standard_descriptors
from shmrpc.pools.transfer import log_forwarding as logs
from shmrpc.pools.transfer import shared_values
from shmrpc.pools.transfer.functions import Reference, find
from shmrpc.pools.transfer.main_module import names_here
from shmrpc.pools.transfer.remote_failure import Failed
from shmrpc.server.server import serve
from shmrpc.service.call import internal_services
from shmrpc.service.service import Service
from shmrpc.streams.sending import ContextSource
from shmrpc.values.pickling import LazyPickle
from shmrpc.wire.codec import identity_codec
from shmrpc.wire.control import MAX_MAX_MEMORY
from shmrpc.wire.frames import MAX_MAX_FRAME

#: The service that a worker is for its pool.
SERVICE: Final = "pool"
#: What interrupts a task that is to end.
INTERRUPT: Final = signal.SIGUSR1
#: Calls that may be under way: as many as a pool sends.
_IN_FLIGHT: Final = 100_000


class TaskStopped(BaseException):
    """Raised within a task whose caller has cancelled it, or whose time is over."""


@dataclasses.dataclass
class Worker:
    """The worker that this process is."""

    #: Its number, from 0 to one less than the pool's workers.
    number: int
    #: What the pool's initializer returned.
    state: Any = None


_here: Worker | None = None
#: Whether this process is importing the program's own module.
_imports_program = False


def worker() -> Worker:
    """The worker in which this runs. Raises LocalProtocolError in a process that is none."""
    if _here is None:
        raise LocalProtocolError("worker() is for functions that run in a worker of a pool: this process is none")
    return _here


@contextlib.contextmanager
def importing_program() -> Iterator[None]:
    """Imports the program's own module as a module, in which no pool can be made."""
    global _imports_program
    _imports_program = True
    try:
        yield
    finally:
        _imports_program = False


def is_worker() -> bool:
    """Whether this process is a worker of a pool.

    Raises LocalProtocolError while it imports the program: that would start pools without end.
    """
    if _imports_program:
        raise _MadeAtImportError(
            f"module {_importing()!r} makes a pool as it is imported, and workers import it too: make the pool in a "
            'function, or in the program itself behind `if __name__ == "__main__":`'
        )
    return _here is not None


class _MadeAtImportError(LocalProtocolError):
    """A pool is made where workers would make it too."""


def _importing() -> str:
    """The module that is just being imported, and has called what has called this."""
    frame: FrameType | None = sys._getframe()
    while frame is not None and frame.f_code.co_name != "<module>":
        frame = frame.f_back
    return "__main__" if frame is None else str(frame.f_globals.get("__name__")).replace("__mp_main__", "__main__")


def _not_imported(error: BaseException) -> LocalProtocolError:
    """The error for a program that a worker could not import."""
    if isinstance(error, _MadeAtImportError):
        return LocalProtocolError(str(error))
    unfit = LocalProtocolError(
        f"a worker could not import the program ({type(error).__name__}: {error}): {_cure(error)}"
    )
    unfit.__cause__ = error
    return unfit


def _cure(error: BaseException) -> str:
    if isinstance(error, ImportError):
        return (
            "it looks for modules where sys.path says, and for relative entries of that from the working directory, "
            f"{os.getcwd()}"
        )
    if isinstance(error, FileNotFoundError):
        return "is that file where it was as the program began?"
    return 'put what is to run in the program alone behind `if __name__ == "__main__":`'


class _OutsideLoop:
    """Hides the loop of this thread, for as long as this is entered. In Python 3.11 that takes a call of the kernel."""

    loop: asyncio.AbstractEventLoop | None = None

    def __enter__(self) -> None:
        _set_running_loop(None)

    def __exit__(self, *error: object) -> None:
        _set_running_loop(self.loop)


class _Tasks:
    """Runs the tasks that the pool sends."""

    def __init__(self, progress: _core.Progress, records: socket.socket, prepare: Callable[[], None]) -> None:
        self._prepare, self._records = prepare, records
        self._progress = progress
        self._begin = progress.begin
        self._functions: dict[int, Callable[..., Any]] = {}
        #: The number of functions registered with atexit before the first task.
        self._last_calls = 0
        #: Where a task runs: with no loop, since it may have one of its own, as by asyncio.run().
        self._outside = _OutsideLoop()
        #: The slot of the task that holds this thread.
        self._slot: int | None = None
        #: Whether this is a child that a task has forked: it ends with that task, and is no second worker of the pool.
        self._is_forked = False

    def service(self) -> Service:
        """What the pool calls."""
        service = Service(SERVICE)
        for endpoint in (
            self.prepare,
            self.initialize,
            self.define,
            self.run,
            self.run_timed,
            self.run_named,
            self.ready,
        ):
            service.endpoint(endpoint)
        for other in (self.chunk, self.run_async, self.forget, self.forget_file, self.works_on):
            service.endpoint(other)
        return service

    def prepare(self) -> Any:
        """Imports the program; the names that this process has of it."""
        try:
            with importing_program():
                self._prepare()
        except BaseException as error:
            return Failed.of(_not_imported(error))
        keep_standard_descriptors()  # Which it may have closed.
        return names_here()

    async def initialize(self, reference: Reference | None, args: Any, levels: logs.Levels) -> Any:
        """Calls the pool's initializer, if it has one; what it returns is awaited, if it can be.

        What is logged then goes to the pool's process, at its levels, unless either has arranged for it.
        """
        assert _here is not None
        self._outside.loop = _get_running_loop()
        try:
            with self._outside:
                if type(args) is LazyPickle:
                    args = args.read()
                if reference is not None:
                    _here.state = find(reference)(*args)
            if inspect.isawaitable(_here.state):
                _here.state = await _here.state
        except BaseException as error:
            return Failed.of(error)
        logs.forward(self._records, levels)
        self._last_calls = atexit._ncallbacks()
        return None

    def define(self, number: int, reference: Reference) -> None:
        """From now on a function has this number. If it cannot be had, its tasks fail with the reason."""
        try:
            self._functions[number] = find(reference)
        except BaseException as error:
            self._functions[number] = _raising(error)

    def forget(self, number: int) -> None:
        """No task of this function will come."""
        self._functions.pop(number, None)

    def forget_file(self, file: int) -> None:
        """Forgets the values of a file that its pool has shared, and shares no more."""
        shared_values.forget(file)

    def run(self, slot: int, number: int, args: Any) -> Any:
        """Runs one task, unless it was taken back. What was pickled is read once it has begun: that is part of it."""
        if not self._begin(slot):
            return None
        self._slot = slot
        try:
            _set_running_loop(None)  # As self._outside does.
            if type(args) is LazyPickle:
                args = self._read(number, args)
            result = self._functions[number](*args)
        except BaseException as error:
            result = self._failed(error)
        finally:
            self._slot = None
            _set_running_loop(self._outside.loop)
        if self._is_forked:
            _leave(None)
        return result

    def run_timed(self, slot: int, number: int, args: Any) -> Any:
        """The same, and notes how long it took."""
        began = time.monotonic_ns()
        result = self.run(slot, number, args)
        self._progress.took(slot, time.monotonic_ns() - began)
        return result

    def run_named(self, slot: int, number: int, both: Any) -> Any:
        """The same with arguments by name: a list of arguments, and a dict of others."""
        if not self._begin(slot):
            return None
        self._slot = slot
        try:
            _set_running_loop(None)
            args, kwargs = self._read(number, both) if type(both) is LazyPickle else both
            result = self._functions[number](*args, **kwargs)
        except BaseException as error:
            result = self._failed(error)
        finally:
            self._slot = None
            _set_running_loop(self._outside.loop)
        if self._is_forked:
            _leave(None)
        return result

    def _failed(self, error: BaseException) -> Failed:
        """What is told of a task that has raised."""
        self._slot = None  # Nothing is to be stopped any more.
        if self._is_forked:
            _leave(error)
        return Failed.of(error)

    def _read(self, number: int, pickled: LazyPickle) -> Any:
        """The arguments of a task. Raises DecodeError if they cannot be read."""
        try:
            return pickled.read()
        except (MemoryError, ShmrpcError):
            raise
        except Exception as error:
            function = self._functions[number]
            name = getattr(function, "__qualname__", None) or repr(function)
            raise DecodeError(f"{name}(): an argument cannot be read: {type(error).__name__}: {error}") from error

    def chunk(self, slot: int, number: int, single: bool, items: list[Any]) -> Iterator[Any]:
        """Runs tasks one after the other, as far as they are not taken back; at last, the seconds that this took.

        ``single``: each item is an argument, and not the arguments of a task.
        """
        return ContextSource(self._results(slot, number, single, items), self._outside)  # type: ignore[return-value]

    def _results(self, slot: int, number: int, single: bool, items: list[Any]) -> Generator[Any, None, None]:
        function, begin = self._functions[number], self._begin
        began = time.monotonic()
        for item in items:
            if not begin(slot):
                break
            self._slot = slot
            try:
                if type(item) is LazyPickle:
                    item = self._read(number, item)
                result = function(item) if single else function(*item)
            except BaseException as error:
                result = self._failed(error)
            finally:
                self._slot = None
            if self._is_forked:
                _leave(None)
            yield result
        yield time.monotonic() - began

    async def run_async(self, seat: int, number: int, both: Any) -> Any:
        """Runs a task of an async function, of which there may be many, unless it was taken back."""
        if not self._progress.claim(seat):
            return None
        try:
            args, kwargs = self._read(number, both) if type(both) is LazyPickle else both
            return await self._functions[number](*args, **kwargs)
        except asyncio.CancelledError:
            raise
        except BaseException as error:
            return Failed.of(error)

    def works_on(self) -> bool:
        """Return True if there are threads, processes or exit functions for which Python waits as this process ends."""
        if any(not each.daemon for each in threading.enumerate() if each is not threading.main_thread()):
            return True
        if atexit._ncallbacks() > self._last_calls:
            return True
        processes, util = map(sys.modules.get, ("multiprocessing.process", "multiprocessing.util"))
        if processes is not None and any(not each.daemon for each in processes.active_children()):
            return True
        return util is not None and bool(util._finalizer_registry)

    def ready(self) -> None:
        """Answers once nothing holds this thread."""

    def on_fork(self) -> None:
        """In a child that was forked here: it is to end with the task that has done so."""
        if self._slot is None:
            sys.setprofile(_leave_at_return)  # What costs nothing in the worker.
        else:
            self._is_forked = True

    def on_interrupt(self, number: int, frame: FrameType | None) -> None:
        """Ends the task that is to be stopped, if that is the one which holds this thread."""
        if self._slot is not None and self._progress.is_stopped(self._slot):
            self._slot = None  # Once: a second signal would be raised where the first one is handled.
            raise TaskStopped


def _leave(error: BaseException | None) -> NoReturn:
    """Ends a forked child as a program that has ended so would."""
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


def _leave_at_return(frame: FrameType, event: str, value: Any) -> None:
    """Ends a forked child once the coroutine that has forked it suspends, or ends."""
    if event == "return" and frame.f_code is _Tasks.run_async.__code__:
        _leave(None)


def _raising(error: BaseException) -> Callable[..., Any]:
    def fail(*args: Any, **kwargs: Any) -> Any:
        raise error

    return fail


def main(control: socket.socket, number: int, prepare: Callable[[], None]) -> None:
    """Works for the pool at the other end of ``control`` until that is closed.

    ``prepare`` makes the program's ``__main__`` a module of this process; tasks wait for it.
    """
    global _here
    _here = Worker(number)
    internal_services.add(SERVICE)
    # What a task cannot give back is told to who waits for it.
    logging.getLogger("shmrpc.server.failures").addFilter(
        lambda record: not record.getMessage().startswith(f"{SERVICE}.")
    )
    select.select([control], [], [])
    descriptors = _core.receive_packet(control.fileno(), 1)[1]
    if not descriptors:  # The pool has gone meanwhile.
        return
    page, records = descriptors
    with contextlib.closing(page), contextlib.closing(records):
        progress, sender = _core.Progress(page.fileno()), socket.socket(fileno=os.dup(records.fileno()))
    tasks = _Tasks(progress, sender, prepare)
    signal.signal(INTERRUPT, tasks.on_interrupt)
    os.register_at_fork(after_in_child=tasks.on_fork)
    with sender, contextlib.suppress(KeyboardInterrupt):
        uvloop.run(_serve(tasks.service(), control))


async def _serve(service: Service, control: socket.socket) -> None:
    changed = asyncio.Event()
    control.setblocking(False)
    server = serve(
        service,
        codec="pickle",
        adopting=True,
        max_in_flight=_IN_FLIGHT,
        max_per_connection=_IN_FLIGHT,
        max_waiting=_IN_FLIGHT,
        max_frame=MAX_MAX_FRAME,
        max_memory=MAX_MAX_MEMORY,
    )
    server.codec = identity_codec()
    server.tells_of_holds = False  # Tasks do so, and there is one client.
    # A pool that is closed while this worker connects knows that it is.
    logging.getLogger("shmrpc.server").addFilter(lambda record: bool(server.connections))
    async with server:
        server.watch(changed.set)
        server.adopt(control)
        while server.connections or server.arriving:
            await changed.wait()
            changed.clear()
