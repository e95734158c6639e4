"""An exception at any line of a loop's client, as a signal handler raises one; and a cancellation at any turn.

Whatever it hit, the call fails that it hit, and every other one is exact, or reads that the connection is over. Nothing
waits for what was lost.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import sys
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

import shmrpc
from tests.helpers.interruptions import is_deleting
from tests.helpers.scale import scaled
from tests.helpers.server_process import PATIENCE, ServerProcess

TARGET = "tests.helpers.stream_service:service"
SHARED_SERVER = True

_PACKAGE = str(Path(shmrpc.__file__).parent)


class Interrupting:
    """Raises KeyboardInterrupt at one line of the package's Python, counted from where it is entered."""

    def __init__(self, line: int) -> None:
        self._line = line
        #: Lines so far.
        self.lines = 0
        #: Where it was raised.
        self.where = ""

    def __enter__(self) -> None:
        sys.settrace(self._trace)

    def __exit__(self, *_: object) -> None:
        sys.settrace(None)

    def _trace(self, frame: FrameType, event: str, argument: object) -> Any:
        if not frame.f_code.co_filename.startswith(_PACKAGE):
            return None
        if event == "line":
            self.lines += 1
            if self.lines == self._line and not is_deleting(frame):
                sys.settrace(None)
                self.where = f"{frame.f_code.co_filename}:{frame.f_lineno}"
                raise KeyboardInterrupt
        return self._trace


def numbers() -> Iterator[int]:
    yield from range(30)


async def _reads(client: shmrpc.Client) -> object:
    return [item async for item in client.count(400)]


async def _doubles(client: shmrpc.Client) -> object:
    return [item async for item in client.doubled(numbers())]


async def _maps(client: shmrpc.Client) -> object:
    return [item async for item in client.map("add", range(20), range(20), chunk=5)]


async def _batches(client: shmrpc.Client) -> object:
    async with client.batch() as batch:
        added = batch.add(1, 2)
    return await added


async def _opens(client: shmrpc.Client) -> object:
    async with client.open("doubled") as call:
        for number in numbers():
            await call.write(number)
        await call.done_writing()
        return [item async for item in call]


async def _describes(client: shmrpc.Client) -> object:
    return "count" in {endpoint.name for endpoint in (await client.describe()).endpoints}


#: Each with its result.
OPERATIONS: dict[str, tuple[Callable[[shmrpc.Client], Awaitable[object]], object]] = {
    "add": (lambda client: client.add(1, 2), 3),
    "sleep": (lambda client: client.sleep(0.001), "sleep"),
    "under a deadline": (lambda client: client.with_options(timeout=PATIENCE).sleep(0.001), "sleep"),
    "stream": (_reads, list(range(400))),
    "upload": (lambda client: client.total(numbers()), sum(range(30))),
    "both": (_doubles, [2 * n for n in range(30)]),
    "map": (_maps, [2 * n for n in range(20)]),
    "batch": (_batches, 3),
    "open": (_opens, [2 * n for n in range(30)]),
    "describe": (_describes, True),
    "notify": (lambda client: client.notify("add", 1, 2), None),
}
#: Errors that may end an operation. RemoteError: the interruption hit the source, so that the handler failed.
_SAID = (KeyboardInterrupt, shmrpc.ConnectionLost, shmrpc.RemoteError)
_STREAM = list(range(500))
#: Lines that are tried of each operation, evenly spread; the long form tries each.
_LINES = scaled(60, 1_000_000)


async def _connected(name: str) -> shmrpc.Client:
    return await shmrpc.connect(name, timeout=PATIENCE)


async def _both(
    client: shmrpc.Client, perform: Callable[[shmrpc.Client], Awaitable[object]]
) -> tuple[asyncio.Task[Any], asyncio.Task[Any]]:
    """Start a stream and, beside it, an operation."""

    async def stream() -> object:
        return [item async for item in client.count(len(_STREAM))]

    return asyncio.ensure_future(stream()), asyncio.ensure_future(_awaited(perform, client))


def _settled(runner: asyncio.Runner, tasks: tuple[asyncio.Task[Any], ...], where: str = "nowhere") -> list[Any]:
    """Return the results and exceptions of the tasks. An interruption leaves the loop at each task that awaits it."""

    async def wait() -> None:
        _, waiting = await asyncio.wait(tasks, timeout=PATIENCE)
        assert not waiting, f"{where}: {waiting} wait for what was lost"

    while True:
        # RuntimeError: an interruption left the loop after a request to stop, with which the loop complies now.
        with contextlib.suppress(KeyboardInterrupt, RuntimeError):
            runner.run(wait())
            return [task.exception() or task.result() for task in tasks]


@pytest.mark.parametrize("operation", OPERATIONS)
def test_an_interruption_at_any_line(server: ServerProcess, operation: str) -> None:
    perform, result = OPERATIONS[operation]
    with asyncio.Runner() as runner:
        client = runner.run(_connected(server.name))
        counting = Interrupting(0)
        tasks = runner.run(_both(client, perform))
        with counting:
            runner.get_loop().run_until_complete(tasks[1])
        assert _settled(runner, tasks) == [_STREAM, result]
        for line in range(1, counting.lines, max(1, counting.lines // _LINES)):
            tasks = runner.run(_both(client, perform))
            interrupting = Interrupting(line)
            with contextlib.suppress(*_SAID), interrupting:
                runner.get_loop().run_until_complete(tasks[1])
            stream, outcome = _settled(runner, tasks, interrupting.where)
            assert stream == _STREAM or isinstance(stream, _SAID), interrupting.where
            assert outcome == result or isinstance(outcome, _SAID), interrupting.where
            try:
                assert runner.run(client.add(1, 2)) == 3, interrupting.where
            except shmrpc.ConnectionLost:
                runner.run(client.close())
                client = runner.run(_connected(server.name))
        runner.run(client.close())


@pytest.mark.parametrize("operation", sorted(OPERATIONS.keys() - {"add"}))  # add() is over in the core.
def test_an_interruption_with_a_frame_in_hand_reaches_the_waiting_tasks(server: ServerProcess, operation: str) -> None:
    perform, result = OPERATIONS[operation]
    with asyncio.Runner() as runner:
        client = runner.run(_connected(server.name))
        session = client._reconnector.session
        assert session is not None

        async def begin() -> asyncio.Task[Any]:
            task = asyncio.ensure_future(_awaited(lambda client: client.sleep(PATIENCE), client))
            await client.add(1, 2)
            await asyncio.sleep(0)
            client._unbind()
            return task

        waiting = runner.run(begin())
        interruptions = [KeyboardInterrupt]

        def then_interrupted(function: Callable[..., Any]) -> Callable[..., Any]:
            def call(*args: Any) -> Any:
                result = function(*args)
                for interruption in interruptions[:1]:
                    interruptions.clear()
                    if asyncio.iscoroutine(result):
                        result.close()
                    raise interruption
                return result

            return call

        for way in ("exchange", "begin", "send", "wait_reply"):
            setattr(session, way, then_interrupted(getattr(session, way)))
        loop = runner.get_loop()
        while True:
            task = loop.create_task(_awaited(perform, client))
            with contextlib.suppress(*_SAID):
                loop.run_until_complete(task)
            if not interruptions:
                break  # Else it was over in the core, since this process has waited for a CPU meanwhile.
        heard, outcome = _settled(runner, (waiting, task))
        assert isinstance(heard, shmrpc.ConnectionLost)
        assert outcome == result or isinstance(outcome, _SAID)
        runner.run(client.close())


async def _awaited(perform: Callable[[shmrpc.Client], Awaitable[object]], client: shmrpc.Client) -> object:
    return await perform(client)


@pytest.mark.parametrize("operation", OPERATIONS)
async def test_a_cancellation_at_any_turn(client: shmrpc.Client, operation: str) -> None:
    perform, result = OPERATIONS[operation]
    for turns in itertools.count():
        stream = asyncio.ensure_future(_awaited(_reads, client))
        task = asyncio.ensure_future(_awaited(perform, client))
        for _ in range(turns):
            await asyncio.sleep(0)
        was_there = task.done()
        task.cancel()
        outcome = (await asyncio.gather(task, return_exceptions=True))[0]
        assert outcome == result or isinstance(outcome, asyncio.CancelledError), turns
        assert await stream == list(range(400)), turns
        assert await client.add(1, 2) == 3, turns
        if was_there:
            break
