"""The processes of a run: servers, and clients that do a load when they are told to."""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import multiprocessing
import os
import signal
import threading
import time
from collections.abc import AsyncIterator, Callable, Coroutine
from multiprocessing.connection import Connection
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Literal

import uvloop

import shmrpc
from benchmark import large_loads, loads, peer, unix_socket
from benchmark.rivals import large_socket
from benchmark.work import service
from shmrpc.options import DEFAULT_SPIN

#: The large ones have a service and a peer of their own.
Kind = Literal["direct", "large", "large socket", "shmrpc", "socket", "thread"]
Loop = Literal["asyncio", "uvloop", "sync"]

_spawn: Final = multiprocessing.get_context("spawn")


def _run(loop: Loop, main: Coroutine[Any, Any, None]) -> None:
    with contextlib.suppress(KeyboardInterrupt):
        uvloop.run(main) if loop == "uvloop" else asyncio.run(main)


class NotStarted(RuntimeError):
    """A process of the run did not get ready; says why."""


def _service(kind: Kind) -> shmrpc.Service:
    # NumPy and its threads stay out of the processes that have no use for them.
    return importlib.import_module("benchmark.large_work").service if kind == "large" else service


def _load(name: str) -> Any:
    return getattr(loads, name, None) or getattr(large_loads, name)


def socket_path() -> str:
    """Where the peer's server listens, beside our own sockets."""
    return str(Path(os.environ["XDG_RUNTIME_DIR"]) / "peer.sock")


@contextlib.asynccontextmanager
async def _serving(kind: Kind) -> AsyncIterator[None]:
    if kind == "socket":
        async with unix_socket.serve(peer.Server, socket_path()):
            yield
    elif kind == "large socket":
        async with unix_socket.serve(large_socket.Server, socket_path()):
            yield
    else:
        async with shmrpc.serve(_service(kind)):
            yield


async def _serve(kind: Kind, ready: Callable[[], None]) -> None:
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    async with _serving(kind):
        ready()
        await stop.wait()


def _server_main(kind: Kind, loop: Loop, place: str, connection: Connection) -> None:
    os.environ.update(XDG_RUNTIME_DIR=place, SHMRPC_DIRECTORY="")
    _run(loop, _serve(kind, lambda: connection.send("ready")))


@contextlib.asynccontextmanager
async def _connected(kind: Kind, connections: int, spin: float) -> AsyncIterator[Any]:
    """A client; with more than one connection the others idle beside it."""
    async with contextlib.AsyncExitStack() as stack:
        for _ in range(connections - 1):
            await stack.enter_async_context(shmrpc.connect("benchmark"))
        if kind == "direct":
            yield loads.Direct()
        elif kind == "socket":
            yield await stack.enter_async_context(unix_socket.connect(peer.Client, socket_path()))
        elif kind == "large socket":
            yield await stack.enter_async_context(unix_socket.connect(large_socket.Client, socket_path()))
        else:
            yield await stack.enter_async_context(shmrpc.connect(_service(kind).name, spin=spin))


def _answer(connection: Connection, result: loads.Result, before: float) -> None:
    result["cpu"] = time.process_time() - before
    os.set_blocking(connection.fileno(), True)  # A loop that watched it has made it the other way.
    connection.send(result)


async def _client(kind: Kind, connections: int, spin: float, connection: Connection) -> None:
    async with _connected(kind, connections, spin) as client:
        connection.send("ready")
        loop = asyncio.get_running_loop()
        told = asyncio.Event()
        loop.add_reader(connection.fileno(), told.set)
        while True:
            await told.wait()
            told.clear()
            if not connection.poll():
                continue
            order = connection.recv()
            if order is None:
                break
            name, parameters = order
            before = time.process_time()
            # Not read meanwhile: at the end of a parent that was killed it would be readable for ever.
            loop.remove_reader(connection.fileno())
            _answer(connection, await _load(name)(client, **parameters), before)
            loop.add_reader(connection.fileno(), told.set)
        loop.remove_reader(connection.fileno())


def _client_main(kind: Kind, loop: Loop, place: str, connections: int, spin: float, connection: Connection) -> None:
    os.environ.update(XDG_RUNTIME_DIR=place, SHMRPC_DIRECTORY="")
    if kind == "thread":
        _start_server_thread(loop)
    if loop == "sync":
        _sync_client(connection)
    else:
        _run(loop, _client(kind, connections, spin, connection))


def _sync_client(connection: Connection) -> None:
    with shmrpc.sync.connect("benchmark") as client:
        connection.send("ready")
        while (order := connection.recv()) is not None:
            name, parameters = order
            before = time.process_time()
            _answer(connection, _load(f"sync_{name}")(client, **parameters), before)


def _start_server_thread(loop: Loop) -> None:
    """The server in another thread of the client's process."""
    ready = threading.Event()

    async def serve() -> None:
        async with shmrpc.serve(service):
            ready.set()
            await asyncio.Event().wait()

    threading.Thread(target=_run, args=("uvloop" if loop == "uvloop" else "asyncio", serve()), daemon=True).start()
    ready.wait()


class Child:
    """A process that has said that it is ready."""

    def __init__(self, main: Callable[..., None], *arguments: Any) -> None:
        self._connection, theirs = _spawn.Pipe()
        self.process = _spawn.Process(target=main, args=(*arguments, theirs), daemon=True)
        self.process.start()
        theirs.close()
        said = self._first_word()
        if said != "ready":
            self.stop()
            raise NotStarted(said)

    def _first_word(self) -> str:
        try:
            return str(self._connection.recv()) if self._connection.poll(30) else "it said nothing for 30 seconds"
        except EOFError:
            return "it ended before it was ready"

    def __enter__(self) -> Child:
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

    def cpu(self) -> float:
        """Seconds of CPU that its threads have used."""
        stats = Path(f"/proc/{self.pid}/task").glob("*/schedstat")
        return sum(int(stat.read_text().split()[0]) for stat in stats) / 1e9

    def switches(self) -> int:
        """How often it has gone to sleep."""
        lines = Path(f"/proc/{self.pid}/status").read_text().splitlines()
        return sum(int(line.split()[1]) for line in lines if line.startswith("voluntary_ctxt_switches"))

    def anonymous(self) -> int:
        """Bytes of memory that are its own."""
        lines = Path(f"/proc/{self.pid}/smaps_rollup").read_text().splitlines()
        return sum(int(line.split()[1]) << 10 for line in lines if line.startswith("Anonymous:"))

    def order(self, load: str, **parameters: Any) -> None:
        """Tells a client to do a load."""
        self._connection.send((load, parameters))

    def result(self) -> loads.Result:
        """Waits until it has done it."""
        result: loads.Result = self._connection.recv()
        return result

    def do(self, load: str, **parameters: Any) -> loads.Result:
        """Both."""
        self.order(load, **parameters)
        return self.result()

    def stop(self) -> None:
        """Ends it."""
        with contextlib.suppress(OSError):
            self._connection.send(None)
        if self.process.pid is not None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.process.pid, signal.SIGTERM)
        self.process.join(5)
        if self.process.is_alive():
            self.process.kill()
            self.process.join()


def server(kind: Kind, loop: Loop, place: str) -> Child:
    """A server process; ``place`` is the directory where it meets its clients."""
    return Child(_server_main, kind, loop, place)


def client(kind: Kind, loop: Loop, place: str, connections: int = 1, spin: float = DEFAULT_SPIN) -> Child:
    """A client process; connections beyond the first idle."""
    return Child(_client_main, kind, loop, place, connections, spin)
