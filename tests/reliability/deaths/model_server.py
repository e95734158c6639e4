"""The service that the model is compared with, and the process that forks its servers.

Handlers record their events in a journal, which outlives the server. A side channel without shmrpc shows the
server's state, and opens the gates that handlers wait at.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import json
import logging
import os
import socket
import sys
import time
import traceback
from collections.abc import AsyncIterator, Iterator
from typing import Any, Final

import numpy as np
import uvloop

import shmrpc
from shmrpc.server import failure_log
from tests.helpers.array_service import Bytes, numbered, sum_of

service = shmrpc.Service("tested.model")

#: Concurrent calls of one client: further calls wait.
MAX_PER_CONNECTION: Final = 4
#: Seconds that a drain may take: longer than the steps that end it.
DRAINS: Final = 3600.0
#: Items of a stream without end.
ENDLESS: Final = 1 << 40
#: Expected log texts: errors of handlers and one-way calls, delays of a slow machine, and the end.
_EXPECTED: Final = ("() failed", "called one way, failed", "blocked the server's event loop", "stopping: waiting up to")

_journal = -1
_store: dict[str, int] = {}
_kept: dict[str, Any] = {}
_sums: dict[str, list[int]] = {}
_gates: dict[str, asyncio.Event] = {}
#: Gates of handlers that ignore cancellation.
_stubborn: set[str] = set()


def _note(ticket: int, event: str) -> None:
    os.write(_journal, f"{ticket} {event}\n".encode())


def _gate(name: str) -> asyncio.Event:
    return _gates.setdefault(name, asyncio.Event())


@contextlib.contextmanager
def _noted(ticket: int) -> Iterator[None]:
    """Record how a handler begins and ends: finished, cancelled, closed, or with an error."""
    _note(ticket, "b")
    try:
        yield
    except asyncio.CancelledError:
        _note(ticket, "c")
        raise
    except GeneratorExit:
        _note(ticket, "x")
        raise
    except BaseException:
        _note(ticket, "e")
        raise
    else:
        _note(ticket, "f")


def payload_of(place: int, size: int) -> bytes:
    """Return the payload of a stream's item."""
    return bytes([place % 251]) * size


@service.endpoint
def add(ticket: int, key: str, by: int = 1, *, twice: bool = False) -> int:
    with _noted(ticket):
        _store[key] = _store.get(key, 0) + by * (2 if twice else 1)
        return _store[key]


@service.endpoint
def fail(ticket: int, kind: str, text: str) -> None:
    with _noted(ticket):
        raise {"ValueError": ValueError, "KeyError": KeyError, "LookupError": LookupError}[kind](text)


@service.endpoint
def odd(ticket: int) -> Any:
    """Return an object that cannot be encoded."""
    with _noted(ticket):
        return object()


@service.endpoint
async def wait(ticket: int, gate: str, payload: Any = None, *, fails: bool = False) -> Any:
    """Wait until the gate opens."""
    with _noted(ticket):
        await _gate(gate).wait()
        if fails:
            raise ValueError(f"behind {gate}")
        return payload


@service.endpoint
async def stubborn(ticket: int, gate: str) -> str:
    """Wait until the gate opens, in spite of cancellation."""
    _stubborn.add(gate)
    with _noted(ticket):
        while not _gate(gate).is_set():
            try:
                await _gate(gate).wait()
            except asyncio.CancelledError:
                _note(ticket, "s")
        return gate


@service.endpoint
async def stream(ticket: int, n: int, size: int, gate: str | None, more: int) -> AsyncIterator[list[Any]]:
    """Yield some items and, if there is a gate, some more behind it."""
    with _noted(ticket):
        for place in range(n):
            yield [place, payload_of(place, size)]
        if gate is not None:
            await _gate(gate).wait()
            for place in range(n, n + more):
                yield [place, payload_of(place, size)]


@service.endpoint
def plain_stream(ticket: int, n: int, size: int, gate: str | None, more: int) -> Iterator[list[Any]]:
    """Yield some items from a plain generator, without a gate."""
    with _noted(ticket):
        for place in range(n):
            yield [place, payload_of(place, size)]


@service.endpoint
async def total(ticket: int, numbers: AsyncIterator[int]) -> int:
    """Return the sum of a stream from the caller; the intermediate sum is visible."""
    with _noted(ticket):
        sums = _sums[str(ticket)] = [0, 0]
        try:
            async for number in numbers:
                sums[0] += 1
                sums[1] += number
            return sums[1]
        finally:
            del _sums[str(ticket)]


@service.endpoint
async def first(ticket: int, n: int, numbers: AsyncIterator[int]) -> list[int]:
    """Return the first items of a stream, and close it."""
    taken: list[int] = []
    with _noted(ticket):
        async for number in numbers:
            taken.append(number)
            if len(taken) == n:
                break
        return taken


@service.endpoint
async def doubled(ticket: int, numbers: AsyncIterator[int]) -> AsyncIterator[int]:
    with _noted(ticket):
        async for number in numbers:
            yield number * 2


@service.endpoint
def make(ticket: int, seed: int, size: int, built: bool) -> Bytes:
    """Return an array, built in shared memory or not."""
    with _noted(ticket):
        if not built:
            return numbered(seed, size)
        array: Bytes = shmrpc.current_call().empty(size, "uint8")
        array[:] = numbered(seed, size)
        return array


@service.endpoint
def keep(ticket: int, name: str, array: np.ndarray[Any, Any]) -> int:
    with _noted(ticket):
        _kept[name] = array
        return sum_of(array)


@service.endpoint
def give(ticket: int, name: str) -> Any:
    with _noted(ticket):
        return _kept[name]


@service.endpoint
def forget(ticket: int, name: str) -> None:
    with _noted(ticket):
        del _kept[name]


@service.endpoint
def invert(ticket: int, array: shmrpc.Writable[np.ndarray[Any, Any]]) -> None:
    with _noted(ticket):
        np.invert(array, out=array)


class _Complaints(logging.Handler):
    """A log handler that collects unexpected warnings."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.texts: list[str] = []
        #: The number of one-way calls that failed, which only the log reports.
        self.failed_one_way = 0

    def emit(self, record: logging.LogRecord) -> None:
        text = record.getMessage()
        self.failed_one_way += "one way, failed" in text
        if not any(expected in text for expected in _EXPECTED):
            self.texts.append(text)


def _descriptors() -> list[str]:
    """Return the paths of this process's open descriptors."""
    with os.scandir("/proc/self/fd") as entries:
        ours = [os.readlink(entry.path) for entry in entries if os.path.lexists(entry.path)]
    return sorted(path.split(":")[0] for path in ours if not path.endswith("/fd"))


class _Child:
    """A server that takes commands from its side channel."""

    def __init__(self, side: socket.socket) -> None:
        self._side = side
        self._complaints = _Complaints()
        self._server = shmrpc.serve(service, max_per_connection=MAX_PER_CONNECTION)
        self._end_command: asyncio.Future[str]

    async def run(self) -> None:
        """Serve until a command ends the server."""
        logging.getLogger().addHandler(self._complaints)
        vars(failure_log)["QUIET_PERIOD"] = 0  # Each failure is logged, so that it is counted.
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(lambda _, context: self._complaints.texts.append(str(context)))
        self._end_command = loop.create_future()
        async with self._server as server:
            loop.add_reader(self._side, self._on_command)
            self._answer({"pid": os.getpid()})
            if await self._end_command == "drain":
                await server.drain(DRAINS)
            else:
                closing = asyncio.create_task(server.close())
                for _ in range(5):  # By then all handlers have been cancelled.
                    await asyncio.sleep(0)
                for gate in _stubborn:
                    _gate(gate).set()
                await closing
        loop.remove_reader(self._side)
        _kept.clear()
        for _ in range(3):  # Cancelled tasks end here.
            await asyncio.sleep(0)
        left = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
        if left or self._complaints.texts:
            raise AssertionError(f"left at the end: {left}, {self._complaints.texts}")

    def _answer(self, what: dict[str, Any]) -> None:
        self._side.send(json.dumps(what).encode())

    def _on_command(self) -> None:
        packet = self._side.recv(1 << 16)
        if not packet:  # The test process has ended.
            os._exit(4)
        command = json.loads(packet)
        match command["do"]:
            case "state":
                self._answer(self._state())
            case "open":
                _gate(command["gate"]).set()
                self._answer({})
            case end:
                self._end_command.set_result(end)

    def _state(self) -> dict[str, Any]:
        server: Any = self._server
        callers = [caller for dispatcher in server._dispatchers for caller in dispatcher.clients]
        for caller in callers:
            with contextlib.suppress(Exception):
                caller.channel.has_frame()  # This call processes returned loans.
        return {
            "health": server.health,
            "in flight": server.in_flight,
            "waiting": server.waiting,
            "connections": server.connections,
            "unsent": any(caller.channel.is_stalled() for caller in callers),
            "store": _store,
            "sums": _sums,
            "kept": {name: sum_of(array) for name, array in _kept.items()},
            "lent": sum(caller.channel.memory()[1] for caller in callers),
            "failed one way": self._complaints.failed_one_way,
            "complaints": self._complaints.texts,
        }


def _serve(side: socket.socket, loop_factory: Any) -> None:
    """Serve in a forked child, and check at the end that no descriptor is left."""
    code = 1
    try:
        loop_factory().close()  # The first loop of a process opens descriptors that stay.
        before = _descriptors()
        with asyncio.Runner(loop_factory=loop_factory) as runner:
            runner.run(_Child(side).run())
        gc.collect()
        end = time.monotonic() + 20
        # The sweeper's thread may still refer to a closed channel, whose descriptors close when it is done.
        while (after := _descriptors()) != before and time.monotonic() < end:
            time.sleep(0.001)
        assert after == before, f"{before} before, {after} after"
        code = 0
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(code)


def main(nursery: socket.socket, journal: int) -> None:
    """Fork a server for each ``start`` with a side channel, and answer each ``reap`` with an exit status."""
    global _journal
    _journal = journal
    gc.freeze()
    while packet := (received := socket.recv_fds(nursery, 100, 1))[0]:
        command, _, what = packet.decode().partition(" ")
        if command == "reap":
            _, status = os.waitpid(int(what), 0)
            nursery.send(str(os.waitstatus_to_exitcode(status)).encode())
            continue
        side = socket.socket(fileno=received[1][0])
        child = os.fork()
        if child == 0:
            nursery.close()
            side.setblocking(False)
            _serve(side, uvloop.new_event_loop if what == "uvloop" else asyncio.new_event_loop)
        side.close()


if __name__ == "__main__":
    main(socket.socket(fileno=int(sys.argv[1])), int(sys.argv[2]))
