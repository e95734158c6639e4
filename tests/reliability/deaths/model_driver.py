"""The real counterparts of the model: clients, a server and their loop."""

from __future__ import annotations

import asyncio
import concurrent.futures
import gc
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable, Coroutine
from pathlib import Path
from types import TracebackType
from typing import Any, Final

import numpy as np

import shmrpc
from shmrpc import _core
from tests.helpers.array_service import sum_of

#: Seconds after which an operation counts as hung.
PATIENCE: Final = 60.0
#: The end of a call: a word, and details.
Outcome = tuple[Any, ...]


def outcome_of(error: BaseException) -> Outcome:
    """Return an exception as the model names it."""
    match error:
        case shmrpc.ConnectionLost():
            return ("lost", error.maybe_executed)
        case shmrpc.RemoteError():
            builtin = next(c for c in type(error).__mro__[1:] if c.__module__ == "builtins").__name__
            return ("raised", error.type_name, builtin, str(error.args[0]))
        case asyncio.CancelledError():
            return ("cancelled",)
        case shmrpc.ShmrpcError():
            return (type(error).__name__,)
        case _:
            return ("odd", repr(error))


def seen(value: Any) -> Any:
    """Return a value as the model names it: an array by its contents."""
    return ("array", len(value), sum_of(value)) if isinstance(value, np.ndarray) else value


class Nursery:
    """The process that forks servers, and the journal of their handlers."""

    def __init__(self, directory: Path) -> None:
        self._path = directory / "journal"
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        journal = os.open(self._path, os.O_CREAT | os.O_APPEND | os.O_WRONLY)
        command = [sys.executable, "-m", "tests.reliability.deaths.model_server", str(theirs.fileno()), str(journal)]
        self._process = subprocess.Popen(command, pass_fds=[theirs.fileno(), journal])
        theirs.close()
        os.close(journal)
        self._socket = ours
        self._socket.settimeout(PATIENCE)
        self._journal = self._path.open()
        self._unfinished = ""
        # The end of each example looks for remaining objects, which is faster among those that it created.
        gc.collect()
        gc.freeze()

    def __enter__(self) -> Nursery:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        gc.unfreeze()
        self._socket.close()
        self._journal.close()
        self._process.wait(PATIENCE)

    def start(self, loop: str) -> RealServer:
        """Start a new server; return it once it serves."""
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            socket.send_fds(self._socket, [f"start {loop}".encode()], [theirs.fileno()])
        return RealServer(ours, self)

    def reap(self, pid: int) -> int:
        """Return how a server has ended."""
        self._socket.send(f"reap {pid}".encode())
        return int(self._socket.recv(100))

    def new_events(self) -> list[tuple[int, str]]:
        """Return the journal's new entries: the tickets of calls, and their events."""
        # A line across the border of two pages may be incomplete while it is written.
        *lines, self._unfinished = (self._unfinished + self._journal.read()).split("\n")
        return [(int(ticket), event) for ticket, event in map(str.split, lines)]


class RealServer:
    """A server in another process."""

    def __init__(self, side: socket.socket, nursery: Nursery) -> None:
        self._side = side
        self._nursery = nursery
        side.settimeout(PATIENCE)
        self.pid = int(json.loads(side.recv(1000))["pid"])
        self.code: int | None = None

    def state(self) -> dict[str, Any] | None:
        """Return the server's state; None if it has ended."""
        return self._ask({"do": "state"})

    def open(self, gate: str) -> None:
        """Open a gate, so that the handlers behind it go on."""
        self._ask({"do": "open", "gate": gate})

    def _ask(self, what: dict[str, Any]) -> dict[str, Any] | None:
        if self.code is not None:
            return None
        try:
            self._side.send(json.dumps(what).encode())
            answer = self._side.recv(1 << 18)
        except (BrokenPipeError, ConnectionResetError):
            answer = b""
        if not answer:
            self._end()
            return None
        return json.loads(answer)  # type: ignore[no-any-return]

    def command(self, what: str) -> None:
        """Send ``drain`` or ``stop``, after which the server ends by itself."""
        self._side.send(json.dumps({"do": what}).encode())

    def kill(self) -> None:
        """Kill the server with SIGKILL."""
        if self.code is None:
            os.kill(self.pid, signal.SIGKILL)
            self._end()

    def _end(self) -> None:
        self.code = self._nursery.reap(self.pid)
        self._side.close()


class Handle:
    """A call in flight."""

    def __init__(self, future: asyncio.Task[Any] | concurrent.futures.Future[Any]) -> None:
        self._future = future

    def done(self) -> bool:
        """Return True if the call has ended."""
        return self._future.done()

    def outcome(self) -> tuple[Outcome, Any]:
        """Return how the call ended, and the value itself.

        Raises nothing: a traceback would hold the frames of the test, and all their variables.
        """
        if self._future.cancelled():
            return ("cancelled",), None
        error = self._future.exception()
        if error is not None:
            return outcome_of(error), None
        value = self._future.result()
        return ("value", seen(value)), value

    def cancel(self) -> None:
        """Cancel the call as its caller would."""
        self._future.cancel()


class Source:
    """A stream to the server whose items the test supplies."""

    def __init__(self) -> None:
        self.queue: asyncio.Queue[int | BaseException | None] = asyncio.Queue()
        self.begun = self.closed = False

    async def items(self) -> AsyncIterator[int]:
        """Yield the numbers in the queue; raise an exception in it; end at None."""
        self.begun = True
        try:
            while (item := await self.queue.get()) is not None:
                if isinstance(item, BaseException):
                    raise item
                yield item
        finally:
            self.closed = True


class AsyncReal:
    """A client in the machine's loop."""

    def __init__(self, driver: Driver, reconnect: bool) -> None:
        self._driver = driver
        self.client = shmrpc.connect("tested.model", timeout=0 if not reconnect else PATIENCE * 2, reconnect=reconnect)

    def connect(self) -> Outcome:
        return self._driver.result(self._driver.task(self.client.__aenter__()))

    def begin(self, way: str, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Handle:
        """Begin a call, and run it until it suspends."""
        handle = self._driver.task(self._perform(way, name, args, kwargs))
        self._driver.turn()
        return handle

    async def _perform(self, way: str, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        client = self.client
        if way.startswith("deadline"):
            return await client.with_options(timeout=float(way.split()[1])).call(name, *args, **kwargs)
        match way:
            case "call":
                return await client.call(name, *args, **kwargs)
            case "attribute":
                return await getattr(client, name)(*args, **kwargs)
            case "metadata":
                return await client.with_options(metadata={"a": "b"}).call(name, *args, **kwargs)
            case "notify":
                return await client.notify(name, *args, **kwargs)
            case "batch":
                async with client.batch() as batch:
                    futures = [batch.call(name, *each) for each in args]
                return [seen_future(future) for future in futures]
            case "map":
                return [result async for result in client.map(name, *zip(*args, strict=True), chunk=2)]
            case "fails":
                return await client.call(name, *args, fails=True)
            case "collect":
                return [item async for item in client.call(name, *args, **kwargs)]
        raise AssertionError(way)

    def stream(self, name: str, args: tuple[Any, ...]) -> Any:
        return self.client.call(name, *args)

    def take(self, stream: Any, n: int) -> tuple[list[Any], Outcome | None]:
        """Take at most n items; return them, and how the stream ended if it did."""
        items: list[Any] = []

        async def take() -> None:
            while len(items) < n:
                items.append(await anext(stream))

        return items, _end_of(self._driver.result(self._driver.task(take())))

    def leave(self, stream: Any) -> Outcome:
        return self._driver.result(self._driver.task(stream.aclose()))

    def stop(self, handles: list[Handle]) -> None:
        """Cancel the calls in flight."""
        for handle in handles:
            handle.cancel()

    def notice(self) -> Outcome:
        """Wait until the client has a server, or knows that there will be none."""
        return self._driver.result(self._driver.task(self.client.wait_for_ready(PATIENCE)))

    def hears_of_the_end(self) -> bool:
        """Return True if the client knows that its server is gone."""
        return not repr(self.client).endswith(", connected>")

    def is_ready(self) -> bool:
        """Return True if the client would send a call now."""
        return repr(self.client).endswith(", connected>")

    def memory(self) -> tuple[int, bool]:
        """Return the bytes of the client's own memory in use, and True if it has unread frames."""
        return _memory_of(self.client)

    def close(self) -> None:
        self._driver.result(self._driver.task(self.client.close()))


class SyncReal:
    """A client for threads; each of its calls is in a thread of its own."""

    def __init__(self, driver: Driver, reconnect: bool) -> None:
        self._driver = driver
        self.client = shmrpc.sync.connect(
            "tested.model", timeout=0 if not reconnect else PATIENCE * 2, reconnect=reconnect
        )

    def connect(self) -> Outcome:
        return self._driver.result(self._in_thread(self.client.__enter__))

    def _in_thread(self, work: Callable[[], Any]) -> Handle:
        return Handle(self._driver.threads.submit(work))

    def begin(self, way: str, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Handle:
        return self._in_thread(lambda: self._perform(way, name, args, kwargs))

    def _perform(self, way: str, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        client = self.client
        if way.startswith("deadline"):
            return client.with_options(timeout=float(way.split()[1])).call(name, *args, **kwargs)
        match way:
            case "call":
                return client.call(name, *args, **kwargs)
            case "attribute":
                return getattr(client, name)(*args, **kwargs)
            case "metadata":
                return client.with_options(metadata={"a": "b"}).call(name, *args, **kwargs)
            case "notify":
                return client.notify(name, *args, **kwargs)
            case "batch":
                with client.batch() as batch:
                    futures = [batch.call(name, *each) for each in args]
                return [seen_future(future) for future in futures]
            case "map":
                return list(client.map(name, *zip(*args, strict=True), chunk=2))
            case "fails":
                return client.call(name, *args, fails=True)
            case "collect":
                return list(client.call(name, *args, **kwargs))
        raise AssertionError(way)

    def stream(self, name: str, args: tuple[Any, ...]) -> Any:
        return self.client.call(name, *args)

    def take(self, stream: Any, n: int) -> tuple[list[Any], Outcome | None]:
        items: list[Any] = []

        def take() -> None:
            while len(items) < n:
                try:
                    items.append(next(stream))
                except StopIteration:
                    raise StopAsyncIteration from None

        return items, _end_of(self._driver.result(self._in_thread(take)))

    def leave(self, stream: Any) -> Outcome:
        return self._driver.result(self._in_thread(stream.close))

    def stop(self, handles: list[Handle]) -> None:
        self.client.stop()
        for handle in handles:
            self._driver.until(handle.done)
        self.client.resume()

    def notice(self) -> Outcome:
        return self._driver.result(self._in_thread(lambda: self.client.wait_for_ready(PATIENCE)))

    def hears_of_the_end(self) -> bool:
        """Return True if the client knows that its server is gone, which it checks on request."""
        self.is_ready()
        return not repr(self.client).endswith(", connected>")

    def is_ready(self) -> bool:
        try:
            self.client.wait_for_ready(0)
        except (shmrpc.ConnectionLost, shmrpc.ServiceUnavailable):
            return False
        return True

    def memory(self) -> tuple[int, bool]:
        return _memory_of(self.client)

    def close(self) -> None:
        self._driver.result(self._in_thread(self.client.close))


Real = AsyncReal | SyncReal


def _memory_of(client: shmrpc.Client | shmrpc.sync.Client) -> tuple[int, bool]:
    reconnector: Any = client._reconnector
    channel: _core.Channel = reconnector.session.connection.channel
    unread = channel.has_frame()  # This call processes returned loans, up to the first other frame.
    return channel.memory()[1], unread


def _end_of(outcome: Outcome) -> Outcome | None:
    if outcome == ("value", None):
        return None
    return ("end",) if outcome[0] == "odd" and "StopAsyncIteration" in outcome[1] else outcome


def seen_future(future: asyncio.Future[Any] | concurrent.futures.Future[Any]) -> Outcome:
    """Return the outcome of one call of a batch."""
    error = future.exception()
    return outcome_of(error) if error is not None else ("value", future.result())


class Driver:
    """A loop that runs only on request, and threads for clients without a loop."""

    def __init__(self, nursery: Nursery, loop_factory: Callable[[], asyncio.AbstractEventLoop]) -> None:
        self.nursery = nursery
        self.loop = loop_factory()
        self.complaints: list[str] = []
        self.loop.set_exception_handler(lambda _, context: self.complaints.append(str(context)))
        self.threads = concurrent.futures.ThreadPoolExecutor(64)

    def task(self, coroutine: Coroutine[Any, Any, Any]) -> Handle:
        """Run a coroutine in the loop."""
        return Handle(self.loop.create_task(coroutine))

    def turn(self, seconds: float = 0) -> None:
        """Run the loop for some time."""
        self.loop.run_until_complete(asyncio.sleep(seconds))

    def until(self, true: Callable[[], bool], seconds: float = PATIENCE) -> bool:
        """Run the loop until the condition is true; return False if it stays false."""
        end = time.monotonic() + seconds
        pause = 0.0
        while not true():
            if time.monotonic() > end:
                return False
            self.turn(pause)
            pause = 0.0002 if pause == 0 else min(pause * 2, 0.01)
        return True

    def result(self, handle: Handle) -> Outcome:
        """Wait for a call that ends by itself; return its outcome."""
        if not self.until(handle.done):
            return ("hangs",)
        return handle.outcome()[0]

    def real(self, kind: str, *, reconnect: bool) -> Real:
        """Create a client that is not connected."""
        return AsyncReal(self, reconnect) if kind == "async" else SyncReal(self, reconnect)

    def close(self) -> list[str]:
        """End the loop and the threads; return remaining tasks and complaints."""
        self.turn()
        left = [f"a task is left: {task}" for task in asyncio.all_tasks(self.loop)]
        self.loop.run_until_complete(self.loop.shutdown_asyncgens())
        self.loop.close()
        self.threads.shutdown(wait=False)
        return left + self.complaints
