"""A server and callers that put it under load, each in a process that is killed and started again.

``python -m tests.reliability.deaths.kill_load FOLDER`` forks them. It reads orders, ``start ROLE SEED`` and
``reap PID``, and answers each: with the process id, and with the exit status. The folder has the callers' books and
a file of faults.
"""

from __future__ import annotations

import asyncio
import gc
import os
import random
import signal
import sys
import threading
import time
import traceback
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, Final

import numpy as np
import uvloop

import shmrpc
from tests.helpers.array_service import Bytes, numbered
from tests.reliability.deaths.ledger import Book, CallOutcome, Kind

NAME: Final = "tested.killed"
service = shmrpc.Service(NAME)

#: Callers: a process with clients in a loop, and a process with a client that threads use.
CALLERS: Final = ("loop", "threads")
#: Callers that are never killed.
SURVIVORS: Final = ("surviving_loop", "surviving_threads")
#: Clients of a process in its loop, and tasks or threads of each client.
_CLIENTS: Final = 2
_AT_ONCE: Final = 3
#: Bytes of an array, items of a stream.
_ARRAY: Final = 50_000
_ITEMS: Final = 40
#: Seconds after which a call counts as hung.
_HANGS: Final = 60.0
#: Seconds after which a process is killed, longer than any process lives.
_LIFE: Final = 300

_books: dict[str, Book] = {}


@service.endpoint
def plain(caller: str, number: int) -> int:
    _books[caller].execute(number)
    return number


@service.endpoint
async def later(caller: str, number: int) -> int:
    await asyncio.sleep(0.001)
    _books[caller].execute(number)
    await asyncio.sleep(0.001)
    return number


@service.endpoint
def array(caller: str, number: int, value: Bytes) -> Bytes:
    _books[caller].execute(number)
    assert np.array_equal(value, numbered(number, _ARRAY))
    made: Bytes = shmrpc.current_call().empty(_ARRAY, "uint8")
    made[:] = numbered(number + 1, _ARRAY)
    return made


@service.endpoint
async def stream(caller: str, number: int) -> AsyncIterator[int]:
    _books[caller].execute(number)
    for item in range(_ITEMS):
        yield number + item


@service.endpoint
async def upload(caller: str, number: int, items: AsyncIterator[int]) -> int:
    _books[caller].execute(number)
    return sum([item async for item in items])


_TOTAL: Final = sum(range(_ITEMS))


class Calls:
    """The calls of a caller, and their outcomes."""

    def __init__(self, caller: str, folder: Path, seed: int) -> None:
        self.caller = caller
        self.book = Book(folder / caller)
        self.folder = folder
        #: Times at which calls failed with their connection.
        self.lost: list[float] = []
        self._dice = random.Random(seed)
        self._lock = threading.Lock()

    def begin(self) -> tuple[Kind, int]:
        """Begin the next call; return its kind and number."""
        with self._lock:
            kind = self._dice.choice(list(Kind))
            return kind, self.book.begin(kind)

    def failed(self, number: int, error: Exception) -> None:
        """Record the outcome that an error implies; errors that no call should raise are faults."""
        if isinstance(error, shmrpc.ConnectionLost):
            self.lost.append(time.monotonic())
        match error:
            case shmrpc.ConnectionLost(maybe_executed=True):
                self.book.record(number, CallOutcome.MAYBE_EXECUTED)
            case shmrpc.ConnectionLost() | shmrpc.ServiceUnavailable():
                self.book.record(number, CallOutcome.NOT_EXECUTED)
            case _:
                fault(self.folder, f"{self.caller}, call {number}")


def fault(folder: Path, where: str) -> None:
    """Append the current exception to the file of faults."""
    with open(folder / "faults", "a") as faults:
        faults.write(f"{where}:\n{traceback.format_exc()}\n")


async def _call(client: shmrpc.Client, calls: Calls, kind: Kind, number: int) -> bool:
    """Make a call and check the answer. Return False if it has none."""
    caller = calls.caller
    match kind:
        case Kind.PLAIN:
            assert await client.plain(caller, number) == number
        case Kind.LATER:
            assert await client.later(caller, number) == number
        case Kind.ARRAY:
            made = await client.array(caller, number, numbered(number, _ARRAY))
            assert np.array_equal(made, numbered(number + 1, _ARRAY))
        case Kind.STREAM:
            items = [item async for item in client.stream(caller, number)]
            assert items == list(range(number, number + _ITEMS))
        case Kind.UPLOAD:
            assert await client.upload(caller, number, range(_ITEMS)) == _TOTAL
        case Kind.ONE_WAY:
            await client.notify("plain", caller, number)
            return False
        case Kind.BATCH:
            async with client.batch() as batch:
                result = batch.later(caller, number)
            assert await result == number
    return True


async def _call_for_ever(client: shmrpc.Client, calls: Calls) -> None:
    while not calls.book.is_closed:
        kind, number = calls.begin()
        try:
            if await _call(client, calls, kind, number):
                calls.book.record(number, CallOutcome.ANSWERED)
        except Exception as error:
            calls.failed(number, error)
        await asyncio.sleep(0)


async def call_in_loop(calls: Calls) -> None:
    """Call from a loop until the book is closed."""
    async with asyncio.TaskGroup() as group:
        for _ in range(_CLIENTS):
            group.create_task(_client(calls))


async def _client(calls: Calls) -> None:
    async with shmrpc.connect(NAME, reconnect=True, timeout=_HANGS) as client:
        limited = client.with_options(timeout=_HANGS)
        async with asyncio.TaskGroup() as group:
            for _ in range(_AT_ONCE):
                group.create_task(_call_for_ever(limited, calls))


def _call_in_thread(client: shmrpc.sync.Client, calls: Calls, kind: Kind, number: int) -> bool:
    """Make a call without a loop and check the answer. Return False if it has none."""
    caller = calls.caller
    match kind:
        case Kind.PLAIN:
            assert client.plain(caller, number) == number
        case Kind.LATER:
            assert client.later(caller, number) == number
        case Kind.ARRAY:
            made = client.array(caller, number, numbered(number, _ARRAY))
            assert np.array_equal(made, numbered(number + 1, _ARRAY))
        case Kind.STREAM:
            assert list(client.stream(caller, number)) == list(range(number, number + _ITEMS))
        case Kind.UPLOAD:
            assert client.upload(caller, number, range(_ITEMS)) == _TOTAL
        case Kind.ONE_WAY:
            client.notify("plain", caller, number)
            return False
        case Kind.BATCH:
            with client.batch() as batch:
                result = batch.later(caller, number)
            assert result.result(_HANGS) == number
    return True


def _call_in_thread_for_ever(client: shmrpc.sync.Client, calls: Calls) -> None:
    while not calls.book.is_closed:
        kind, number = calls.begin()
        try:
            if _call_in_thread(client, calls, kind, number):
                calls.book.record(number, CallOutcome.ANSWERED)
        except Exception as error:
            calls.failed(number, error)


def call_in_threads(calls: Calls) -> None:
    """Call from threads until the book is closed."""
    with shmrpc.sync.connect(NAME, reconnect=True, timeout=_HANGS) as client:
        limited = client.with_options(timeout=_HANGS)
        threads = [threading.Thread(target=_call_in_thread_for_ever, args=(limited, calls)) for _ in range(_AT_ONCE)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()


async def _serve() -> None:
    async with shmrpc.serve(service):
        await asyncio.Event().wait()


def follow(role: str, seed: int, folder: Path) -> None:
    """Serve or call until the process is killed, or until its caller's book is closed."""
    try:
        if role == "server":
            _books.update({caller: Book(folder / caller) for caller in (*CALLERS, *SURVIVORS)})
            uvloop.run(_serve())
        elif role == "loop":
            uvloop.run(call_in_loop(Calls(role, folder, seed)))
        else:
            call_in_threads(Calls(role, folder, seed))
    except BaseException:
        fault(folder, role)
        os._exit(1)


def main(folder: Path) -> None:
    """Fork processes on request, and answer with their exit statuses."""
    gc.freeze()
    for line in sys.stdin:
        answer: Any
        match line.split():
            case ["start", role, seed]:
                answer = os.fork()
                if answer == 0:
                    signal.alarm(_LIFE)
                    follow(role, int(seed), folder)
                    os._exit(0)
            case ["reap", pid]:
                answer = os.waitstatus_to_exitcode(os.waitpid(int(pid), 0)[1])
            case _:
                raise ValueError(line)
        os.write(1, b"%d\n" % answer)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
