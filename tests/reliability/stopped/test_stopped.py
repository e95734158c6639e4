"""A stopped peer: calls end at their deadline and name it, memory is bounded, and SIGCONT heals it."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

import shmrpc
from shmrpc import _core
from shmrpc.client.common.deadline_error import ReadProgress
from tests.helpers.scale import scaled
from tests.helpers.server_process import Script, ServerProcess, eventually_in_loop
from tests.helpers.stopped_processes import is_stopped, stopped
from tests.helpers.time_bound import bounded
from tests.reliability import figures
from tests.reliability.watched_service import as_new, held_by

TARGET = "tests.reliability.watched_service:service"

#: Seconds after which a call counts as hung.
HANGS = 30.0
#: Seconds of the deadlines. No test asserts how long they take.
SOON = 0.2
#: More calls than the ring has room for.
MANY = 40
BALLAST = bytes(8_000)


@pytest.fixture
def server(shared_server: ServerProcess) -> ServerProcess:
    return as_new(shared_server)


@pytest.fixture(autouse=True)
def in_time() -> Iterator[None]:
    with bounded():
        yield


def unread(server: ServerProcess, endpoint: str = "mark") -> str:
    """Return a pattern for the error of a call that the server has not read from the ring."""
    pid = server.pid
    return (
        rf"{endpoint}\(\) was not answered by its deadline: it waited [0-9.e-]+ s; the server of 'tested.watched' "
        rf"\(process {pid}\) has read nothing for [0-9.e-]+ s: it is stopped; to continue it: kill -CONT {pid}$"
    )


def unsent(server: ServerProcess, endpoint: str = "mark") -> str:
    """Return a pattern for the error of a call that did not fit into the ring."""
    pid = server.pid
    return (
        rf"{endpoint}\(\) was not sent by its deadline, and is not executed: it waited [0-9.e-]+ s for room, with "
        rf"\d+ other frames of [\d,]+ bytes; the server of 'tested.watched' \(process {pid}\) has read nothing for "
        rf"[0-9.e-]+ s: it is stopped; to continue it: kill -CONT {pid}$"
    )


def kept_of(client: shmrpc.Client | shmrpc.sync.Client) -> tuple[int, int]:
    """Return the number of frames that wait for room, and their bytes."""
    session = client._reconnector.session
    assert session is not None
    _, _, count, size = session._read_progress._untaken()
    return count, size


async def until_idle(client: shmrpc.Client) -> None:
    """Wait until the server has read all frames."""
    await asyncio.wait_for(client.add(1, 2), HANGS)


async def test_calls_to_a_stopped_server_end_at_their_deadline_and_name_it(
    client: shmrpc.Client, server: ServerProcess
) -> None:
    timed = client.with_options(timeout=SOON)
    late: list[float] = []
    with stopped(server.pid):
        for i in range(3):
            start = time.monotonic()
            with pytest.raises(shmrpc.DeadlineExceeded, match=unread(server)):
                await asyncio.wait_for(timed.mark(i), HANGS)
            late.append(time.monotonic() - start - SOON)
        with pytest.raises(shmrpc.DeadlineExceeded, match=unread(server, "flood")):
            await asyncio.wait_for(anext(timed.flood(1)), HANGS)
        with pytest.raises(shmrpc.DeadlineExceeded, match=unread(server, "batch")):
            async with timed.batch() as batch:
                batch.add(1, 2)
    assert await asyncio.wait_for(client.marks(), HANGS) == [], "a call past its deadline was executed"
    assert await client.add(1, 2) == 3
    figures.note("a stopped server, calls in a loop", beyond_the_deadline=figures.times(late))


async def test_a_full_ring_names_the_peer_and_unsent_calls_are_never_executed(
    client: shmrpc.Client, server: ServerProcess
) -> None:
    timed = client.with_options(timeout=SOON)
    with stopped(server.pid):
        calls = (timed.mark(i, BALLAST) for i in range(MANY))
        errors = await asyncio.wait_for(asyncio.gather(*calls, return_exceptions=True), HANGS)
        texts = [str(error) for error in errors]
        assert {type(error) for error in errors} == {shmrpc.DeadlineExceeded}
        waited = [text for text in texts if re.match(unsent(server), text)]
        assert 0 < len(waited) < MANY
        assert all(re.match(unread(server), text) for text in texts if text not in waited)
        sent = MANY - len(waited)
        assert kept_of(client)[0] <= sent, "unsent calls are buffered"
    assert await client.add(1, 2) == 3
    assert await client.marks() == []
    assert kept_of(client) == (0, 0)


async def test_without_a_deadline_calls_go_through_when_the_peer_goes_on(
    client: shmrpc.Client, server: ServerProcess
) -> None:
    with stopped(server.pid):
        calls = [asyncio.create_task(client.mark(i, BALLAST)) for i in range(MANY)]
        done, _ = await asyncio.wait(calls, timeout=SOON)
        assert not done
        for call in calls[1::2]:
            call.cancel()
        await asyncio.wait(calls[1::2], timeout=HANGS)
        assert kept_of(client)[0] < MANY
    assert await asyncio.wait_for(asyncio.gather(*calls[::2]), HANGS) == list(range(0, MANY, 2))
    marks = await client.marks()
    assert [n for n in marks if n % 2 == 0] == list(range(0, MANY, 2)), "calls were lost, repeated or reordered"
    assert len(marks) < MANY, "cancelled calls that did not fit were executed"


@pytest.mark.slow
async def test_a_client_that_tries_again_and_again_buffers_nothing(
    client: shmrpc.Client, server: ServerProcess
) -> None:
    """The memory of a client under deadlines depends only on its concurrent calls while the server is stopped."""
    timed = client.with_options(timeout=SOON / 4)
    array = np.arange(100_000, dtype=np.uint8)
    resident: list[int] = []
    await client.echo(array)
    session = client._reconnector.session
    assert session is not None
    with stopped(server.pid):
        for _ in range(scaled(10, 60)):
            calls = [timed.length(bytes(20_000)) for _ in range(100)] + [timed.echo(array) for _ in range(20)]
            errors = await asyncio.wait_for(asyncio.gather(*calls, return_exceptions=True), HANGS)
            assert {type(error) for error in errors} == {shmrpc.DeadlineExceeded}
            count, size = kept_of(client)
            assert count <= 16 and size <= 1000, "more than the CANCELs of sent calls is buffered"
            resident.append(held_by("self")["kilobytes"])
    await until_idle(client)
    channel: _core.Channel = session.connection.channel  # type: ignore[attr-defined]
    assert await eventually_in_loop(lambda: channel.memory()[1] == 0, HANGS), "loans of unsent arrays are not returned"
    assert await client.add(1, 2) == 3
    rounds = f"{len(resident)} rounds of 120 calls"
    figures.note("a stopped server, tried again and again", rounds=rounds, kilobytes=f"{resident[1]} to {resident[-1]}")


async def test_a_one_way_call_ends_at_its_deadline_too(client: shmrpc.Client, server: ServerProcess) -> None:
    timed = client.with_options(timeout=SOON)
    with stopped(server.pid):
        sent = 0
        with pytest.raises(shmrpc.DeadlineExceeded, match=unsent(server)):
            for i in range(MANY):
                await asyncio.wait_for(timed.notify("mark", i, BALLAST), HANGS)
                sent += 1
        assert sent < MANY
        assert kept_of(client) == (0, 0)
        waiting = asyncio.create_task(client.notify("mark", -1, BALLAST))
        await asyncio.wait([waiting], timeout=SOON)
        assert not waiting.done(), "a call without a deadline has not waited for room"
    await asyncio.wait_for(waiting, HANGS)
    assert [n for n in await client.marks() if n == -1] == [-1]


async def test_streams_wait_while_the_peer_is_stopped(client: shmrpc.Client, server: ServerProcess) -> None:
    """A source is not read beyond the credit of the server; a reader reads the items that have arrived."""
    taken = 0
    end = asyncio.Event()

    async def items() -> AsyncIterator[bytes]:
        nonlocal taken
        while not end.is_set():
            taken += 1
            yield bytes(1000)

    adding = asyncio.create_task(client.total(items()))
    assert await eventually_in_loop(lambda: taken > 200, HANGS)
    with stopped(server.pid):
        before = -1
        while before != taken:
            before = taken
            await asyncio.sleep(SOON)
        assert kept_of(client)[1] < 1 << 20
    assert await eventually_in_loop(lambda: taken > before, HANGS)
    end.set()
    assert await asyncio.wait_for(adding, HANGS) == 1000 * taken


async def test_other_connections_go_on_beside_a_stopped_server(client: shmrpc.Client, server: ServerProcess) -> None:
    with ServerProcess() as other:
        async with shmrpc.connect(other.name) as near:
            with stopped(server.pid):
                waiting = [asyncio.create_task(client.mark(i, BALLAST)) for i in range(MANY)]
                for i in range(scaled(500, 5000)):
                    assert await asyncio.wait_for(near.add(i, 1), HANGS) == i + 1
                assert not any(call.done() for call in waiting)
            assert await asyncio.wait_for(asyncio.gather(*waiting), HANGS) == list(range(MANY))


async def test_a_server_with_a_blocked_loop_is_not_reported_as_stopped(
    client: shmrpc.Client, server: ServerProcess, tmp_path: Path
) -> None:
    began, until = tmp_path / "began", tmp_path / "until"
    holding = asyncio.create_task(client.hold_loop(str(began), str(until)))
    assert await eventually_in_loop(began.exists, HANGS)
    said = rf"process {server.pid}\) has read nothing for .*: its event loop is blocked"
    with pytest.raises(shmrpc.DeadlineExceeded, match=said):
        await client.with_options(timeout=SOON).add(1, 2)
    until.touch()
    await asyncio.wait_for(holding, HANGS)
    assert await client.add(1, 2) == 3


def test_the_error_distinguishes_a_slow_reader_from_a_blocked_one() -> None:
    untaken = (0, 100, 0, 0)
    progress = ReadProgress("tested", 1, lambda: untaken)
    since = progress.sample()
    assert (
        str(progress.deadline_error("add", since, taken_back=False)) == "add() was not answered by its deadline"
    )  # Too soon.
    progress._stalled_since -= 1_000_000_000
    text = str(progress.deadline_error("add", since, taken_back=False))
    assert re.search(r"has read nothing for 1(\.\d+)? s: its event loop is blocked", text)
    untaken = (50, 100, 7, 5_000)
    text = str(progress.deadline_error("add", since, taken_back=True))
    assert "with 7 other frames of 5,000 bytes; the server of 'tested' (process 1) reads more slowly" in text
    assert str(progress.deadline_error("add", since, taken_back=False)) == "add() was not answered by its deadline"
    progress.sample()
    untaken = (150, 0, 0, 0)  # All earlier frames are read: a new period begins.
    progress.sample()
    assert str(progress.deadline_error("add", since, taken_back=False)) == "add() was not answered by its deadline"


@pytest.fixture
def threads_client(server: ServerProcess) -> Iterator[shmrpc.sync.Client]:
    with shmrpc.sync.connect(server.name) as client:
        yield client


def outcomes_in_threads(call: Callable[[int], object], count: int) -> list[object]:
    """Call in that many threads; return their results or exceptions."""
    outcomes: list[object] = [None] * count

    def run(i: int) -> None:
        try:
            outcomes[i] = call(i)
        except BaseException as error:
            outcomes[i] = error

    threads = [threading.Thread(target=run, args=(i,), daemon=True) for i in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(HANGS)
        assert not thread.is_alive()
    return outcomes


def test_calls_of_threads_end_at_their_deadline_too(threads_client: shmrpc.sync.Client, server: ServerProcess) -> None:
    timed = threads_client.with_options(timeout=SOON)
    with stopped(server.pid):
        with pytest.raises(shmrpc.DeadlineExceeded, match=unread(server)):
            timed.mark(0)
        with pytest.raises(shmrpc.DeadlineExceeded, match=unread(server, "flood")):
            next(timed.flood(1))
        errors = outcomes_in_threads(lambda i: timed.mark(i, BALLAST), MANY)
        assert {type(error) for error in errors} == {shmrpc.DeadlineExceeded}
        texts = [str(error) for error in errors]
        waited = [text for text in texts if re.match(unsent(server), text)]
        assert 0 < len(waited) < MANY
        assert kept_of(threads_client)[0] <= MANY - len(waited) + 2
        with pytest.raises(shmrpc.DeadlineExceeded, match=unsent(server)):
            timed.notify("mark", 1, BALLAST)
    assert threads_client.add(1, 2) == 3
    assert threads_client.marks() == []


def test_calls_of_threads_without_a_deadline_go_on_when_the_peer_does(
    threads_client: shmrpc.sync.Client, server: ServerProcess
) -> None:
    with stopped(server.pid):
        outcomes: list[object] = []
        calling = threading.Thread(
            target=lambda: outcomes.extend(outcomes_in_threads(lambda i: threads_client.mark(i, BALLAST), MANY)),
            daemon=True,
        )
        calling.start()
        calling.join(SOON)
        assert not outcomes
    calling.join(HANGS)
    assert outcomes == list(range(MANY))
    assert sorted(threads_client.marks()) == list(range(MANY))


def test_threads_that_try_again_and_again_buffer_nothing(
    threads_client: shmrpc.sync.Client, server: ServerProcess
) -> None:
    timed = threads_client.with_options(timeout=0.01)
    with stopped(server.pid):
        for i in range(scaled(60, 600)):
            with pytest.raises(shmrpc.DeadlineExceeded):
                timed.mark(i, BALLAST)
        assert kept_of(threads_client)[1] < 1000
    assert threads_client.add(1, 2) == 3
    session = threads_client._reconnector.session
    assert session is not None and len(session.calls) == 0


CLIENT = """
    import asyncio, os, shmrpc, signal
    async def main():
        async with shmrpc.connect("tested.watched") as client:
            stream = client.flood(1000)
            answers = [asyncio.ensure_future(client.sleep(0.1, bytes(30_000))) for _ in range(50)]
            for _ in range(1000):
                await anext(stream)
            os.kill(os.getpid(), signal.SIGSTOP)
            print(sum(map(len, await asyncio.gather(*answers))), flush=True)
            for _ in range(1000):
                await anext(stream)
            await stream.aclose()
            print("through", flush=True)
    asyncio.run(main())
"""


@pytest.mark.slow
async def test_a_stopped_client_delays_only_its_own_calls(client: shmrpc.Client, server: ServerProcess) -> None:
    """The client's stream waits for credit, its answers wait for room, and the server goes on in bounded memory."""
    with Script(CLIENT) as other:
        assert await eventually_in_loop(lambda: is_stopped(other.process.pid), HANGS)
        for _ in range(3):
            before, resident = await client.produced(), (await client.holds())["kilobytes"]
            for i in range(scaled(300, 3000)):
                assert await asyncio.wait_for(client.add(i, 1), HANGS) == i + 1
            await asyncio.sleep(SOON)
        assert await client.produced() == before, "the server has produced items without credit"
        grown = (await client.holds())["kilobytes"] - resident
        os.kill(other.process.pid, signal.SIGCONT)
        assert await asyncio.to_thread(other.line) == "1500000"
        assert await asyncio.to_thread(other.line) == "through"
    figures.note("a stopped client", kilobytes_that_the_server_grew=grown)
