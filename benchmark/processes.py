"""The processes of a subject: a server, and a client that runs loads on request."""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import dataclasses
import importlib
import multiprocessing
import os
import signal
import sys
import traceback
from collections.abc import Callable, Coroutine, Iterator
from multiprocessing.connection import Connection
from pathlib import Path
from types import FrameType, TracebackType
from typing import Any, Final

import uvloop

from benchmark.results import Result
from benchmark.subjects import Loop

_spawn: Final = multiprocessing.get_context("spawn")
#: A load whose name ends so measures the connecting, and is given no client.
CONNECTING: Final = "_connecting"
_PR_SET_PDEATHSIG: Final = 1
#: Seconds that a process has to get ready.
_START: Final = 30.0


@dataclasses.dataclass(frozen=True)
class Rendezvous:
    """Where both sides of a subject meet."""

    #: A directory of their own.
    directory: str
    #: An object that both sides inherit, for subjects that need one.
    shared: Any = None

    def socket(self, name: str = "socket") -> str:
        """Return the path of a UNIX socket in it."""
        return str(Path(self.directory) / name)


class NotStarted(RuntimeError):
    """A process did not get ready; says why."""


class Failed(RuntimeError):
    """Error of a process that could not run a load, with the reason."""


def function(name: str) -> Any:
    """Return the function that is called ``module:function``."""
    module, _, attribute = name.partition(":")
    return getattr(importlib.import_module(module), attribute)


@dataclasses.dataclass
class Caller:
    """The arguments of a load: a client, and functions that open further clients as context managers."""

    client: Any
    connect: Callable[[], Any]


def run(loop: Loop, main: Coroutine[Any, Any, None]) -> None:
    """Run it to its end on that loop."""
    with contextlib.suppress(KeyboardInterrupt):
        uvloop.run(main) if loop == "uvloop" else asyncio.run(main)


def prepare(place: Rendezvous, cpu: int | None) -> None:
    """Prepare a process of a subject, so that it ends with the process that started it."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the one that started it, which ends it then.
    os.environ.update(XDG_RUNTIME_DIR=place.directory, SHMRPC_DIRECTORY="")
    if cpu is not None:
        os.sched_setaffinity(0, {cpu})


def _end(number: int, frame: FrameType | None) -> None:
    sys.exit(0)


def _serve(name: str, loop: Loop, place: Rendezvous, cpu: int | None, connection: Connection) -> None:
    """Run a server."""
    prepare(place, cpu)

    def ready() -> None:
        connection.send("ready")

    async def serve() -> None:
        stop = asyncio.Event()
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
        async with function(name)(place):
            ready()
            await stop.wait()

    with _telling(connection):
        if loop == "none":
            signal.signal(signal.SIGTERM, _end)
            function(name)(place, ready)
        else:
            run(loop, serve())


@contextlib.contextmanager
def _telling(connection: Connection) -> Iterator[None]:
    """Send an exception of the block to the parent."""
    try:
        yield
    except Exception as error:
        traceback.print_exc()
        with contextlib.suppress(OSError):
            connection.send(NotStarted(f"{type(error).__name__}: {error}"))


def _call(name: str, loop: Loop, place: Rendezvous, cpu: int | None, connection: Connection) -> None:
    """Run a client, which connects at its first order."""
    prepare(place, cpu)

    def connect() -> Any:
        return function(name)(place)

    with _telling(connection):
        function(name)  # Its imports belong to no load.
        connection.send("ready")
        if loop == "none":
            signal.signal(signal.SIGTERM, _end)
            _call_blocking(connect, connection)
        else:
            run(loop, _call_in_loop(connect, connection))


async def _call_in_loop(connect: Callable[[], Any], connection: Connection) -> None:
    async with contextlib.AsyncExitStack() as stack:
        caller: Caller | None = None
        while (order := await _next_order(connection)) is not None:
            name, parameters = order
            try:
                if caller is None and not name.endswith(CONNECTING):
                    caller = Caller(await stack.enter_async_context(connect()), connect)
                result: Result | Failed = await function(name)(caller or Caller(None, connect), **parameters)
            except Exception as error:
                result = _failure(error)
            os.set_blocking(connection.fileno(), True)  # A loop that watched it has made it the other way.
            connection.send(result)


async def _next_order(connection: Connection) -> Any:
    """Wait for it. The connection is watched only meanwhile."""
    loop, told = asyncio.get_running_loop(), asyncio.Event()
    loop.add_reader(connection.fileno(), told.set)
    try:
        await told.wait()
    finally:
        loop.remove_reader(connection.fileno())
    return connection.recv()


def _call_blocking(connect: Callable[[], Any], connection: Connection) -> None:
    with contextlib.ExitStack() as stack:
        caller: Caller | None = None
        while (order := connection.recv()) is not None:
            name, parameters = order
            try:
                if caller is None and not name.endswith(CONNECTING):
                    caller = Caller(stack.enter_context(connect()), connect)
                result: Result | Failed = function(name)(caller or Caller(None, connect), **parameters)
            except Exception as error:
                result = _failure(error)
            connection.send(result)
        signal.signal(signal.SIGTERM, signal.SIG_IGN)  # Nothing may interrupt the clean-up of a process that ends.


def _failure(error: Exception) -> Failed:
    traceback.print_exc()
    return Failed(f"{type(error).__name__}: {error}".splitlines()[0][:200])


class Child:
    """A process that has been started; within its block it has said that it is ready."""

    def __init__(self, main: Callable[..., None], *arguments: Any) -> None:
        self._connection, theirs = _spawn.Pipe()
        # Not a daemon: those may have no children, and some rivals start their own.
        self.process = _spawn.Process(target=main, args=(*arguments, theirs))
        self._listens = main is _call
        self.process.start()
        theirs.close()

    def _first_word(self) -> Any:
        try:
            return self._connection.recv() if self._connection.poll(_START) else f"said nothing for {_START:g} s"
        except (EOFError, OSError):
            return "it ended before it was ready"

    def __enter__(self) -> Child:
        try:
            said = self._first_word()
        except BaseException:  # An interruption leaves nothing behind either.
            self.stop()
            raise
        if said != "ready":
            self.stop()
            raise NotStarted(str(said))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    @property
    def pid(self) -> int:
        """Its process id."""
        assert self.process.pid is not None
        return self.process.pid

    def order(self, load: str, **parameters: Any) -> None:
        """Report a client to do a load, which is written as ``module:function``."""
        try:
            self._connection.send((load, parameters))
        except OSError as error:
            raise Failed("its process is gone") from error

    def result(self, patience: float) -> Any:
        """Wait at most these seconds until it is done."""
        try:
            if not self._connection.poll(patience):
                raise Failed(f"no result after {patience:g} s")
            result = self._connection.recv()
        except (EOFError, OSError) as error:
            raise Failed("its process ended") from error
        if isinstance(result, Exception):
            raise Failed(str(result))
        return result

    def stop(self) -> None:
        """End it, and what it has started."""
        with contextlib.suppress(OSError):
            self._connection.send(None)
        children = list(descendants(self.pid))
        if self._listens:
            self.process.join(2)  # The process ends by itself, and with it the processes that it uses.
        self.process.terminate()  # Unless it has been waited for: its id may be another's by now.
        self.process.join(3)
        if self.process.is_alive():
            self.process.kill()
            self.process.join()
        for child in children:
            with contextlib.suppress(ProcessLookupError):
                os.kill(child, signal.SIGKILL)
        self._connection.close()


def _of_threads(pid: int, file: str) -> Iterator[str]:
    """Yield the contents of a /proc file of each thread of a process; the process and its threads may end meanwhile."""
    with contextlib.suppress(OSError):
        for thread in os.listdir(f"/proc/{pid}/task"):
            with contextlib.suppress(OSError):
                yield Path(f"/proc/{pid}/task/{thread}/{file}").read_text()


def descendants(pid: int) -> Iterator[int]:
    """Yield the processes that a process has started, and those that they have."""
    for children in _of_threads(pid, "children"):
        for child in map(int, children.split()):
            yield child
            yield from descendants(child)


def cpu_of(pid: int) -> float:
    """Seconds of CPU that the threads of a process and of its descendants have used."""
    processes = (pid, *descendants(pid))
    return sum(int(stat.split()[0]) for each in processes for stat in _of_threads(each, "schedstat")) / 1e9


def switches_of(pid: int) -> int:
    """Return the number of voluntary context switches of a process."""
    lines = [line for status in _of_threads(pid, "status") for line in status.splitlines()]
    return sum(int(line.split()[1]) for line in lines if line.startswith("voluntary_ctxt_switches"))


def anonymous_of(pid: int) -> int:
    """Bytes of memory that are a process's own."""
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    return sum(int(line.split()[1]) << 10 for line in lines if line.startswith("Anonymous:"))


def pss_of(pid: int) -> int:
    """Bytes of memory of a process and of its descendants, of what they share each one's share."""
    found = 0
    for each in (pid, *descendants(pid)):
        with contextlib.suppress(OSError):  # The process may end meanwhile.
            lines = Path(f"/proc/{each}/smaps_rollup").read_text().splitlines()
            found += sum(int(line.split()[1]) << 10 for line in lines if line.startswith("Pss:"))
    return found


def server(name: str, loop: Loop, place: Rendezvous, cpu: int | None = None) -> Child:
    """Return a server process."""
    return Child(_serve, name, loop, place, cpu)


def client(name: str, loop: Loop, place: Rendezvous, cpu: int | None = None) -> Child:
    """Return a client process."""
    return Child(_call, name, loop, place, cpu)
