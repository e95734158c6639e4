"""Every cell of the race table in docs/calls.md: who cancels when, and what the other side and the counters see."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest

import shmrpc
from shmrpc.client.threads.session import ThreadSession
from tests.helpers.server_process import ServerProcess, eventually, eventually_seen

TARGET = "tests.helpers.stream_service:service"


async def _cancelled(task: asyncio.Task[object]) -> bool:
    task.cancel()
    await asyncio.wait([task])
    return task.cancelled()


class Gate:
    """A service in this loop whose handler waits for us, and that counts its ends."""

    def __init__(self) -> None:
        self.service = shmrpc.Service("tested.gate")
        self.open = asyncio.Event()
        self.ends: list[str] = []
        self.service.endpoint(self.wait)
        self.service.endpoint(self.at_once)

    async def wait(self, answer: int) -> int:
        try:
            await self.open.wait()
        except asyncio.CancelledError:
            self.ends.append("cancelled")
            raise
        self.ends.append("finished")
        return answer

    async def at_once(self) -> str:
        self.ends.append("at once")
        return "at once"


async def _turns(n: int = 20) -> None:
    for _ in range(n):
        await asyncio.sleep(0.001)


async def test_before_the_first_step_nothing_is_sent() -> None:
    gate = Gate()
    async with shmrpc.serve(gate.service) as server, shmrpc.connect("tested.gate") as client:
        assert await _cancelled(asyncio.create_task(client.wait(1)))
        await _turns()
        assert gate.ends == [] and server.in_flight == 0


async def test_a_request_in_the_ring_begins_and_is_cancelled_at_its_first_await() -> None:
    gate = Gate()
    async with shmrpc.serve(gate.service) as server, shmrpc.connect("tested.gate") as client:
        call = asyncio.create_task(client.wait(1))
        await asyncio.sleep(0)  # The request is sent; the server, in this same loop, has not run since.
        assert server.in_flight == 0
        assert await _cancelled(call)
        await _turns()
        assert gate.ends == ["cancelled"] and server.in_flight == 0


async def test_a_handler_that_never_waits_runs_to_its_end_and_its_answer_is_dropped() -> None:
    gate = Gate()
    async with shmrpc.serve(gate.service) as server, shmrpc.connect("tested.gate") as client:
        call = asyncio.create_task(client.at_once())
        await asyncio.sleep(0)
        assert await _cancelled(call)
        await _turns()
        assert gate.ends == ["at once"] and server.in_flight == 0
        gate.open.set()
        assert await client.wait(5) == 5, "no other call gets the late reply"


async def test_a_suspended_handler_sees_the_cancellation_at_its_await(client: shmrpc.Client) -> None:
    call = asyncio.create_task(client.sleep(60))
    assert await eventually_seen(client, "sleep:began")
    assert await _cancelled(call)
    assert await eventually_seen(client, "sleep:cancelled")


async def test_many_at_a_time_are_cancelled_each_for_itself(client: shmrpc.Client) -> None:
    calls = [asyncio.create_task(client.sleep(60 if i % 2 else 0.1, f"n{i}")) for i in range(100)]
    assert await eventually_seen(client, "n99:began")
    for call in calls[1::2]:
        call.cancel()
    results = await asyncio.gather(*calls, return_exceptions=True)
    assert results[::2] == [f"n{i}" for i in range(0, 100, 2)]
    assert all(isinstance(result, asyncio.CancelledError) for result in results[1::2])
    assert await eventually_seen(client, "n99:cancelled")
    seen = await client.seen()
    assert sum(seen.get(f"n{i}:cancelled", 0) for i in range(100)) == 50
    assert sum(seen.get(f"n{i}:finished", 0) for i in range(100)) == 50


async def test_a_handler_that_ends_in_the_same_tick_has_finished_once() -> None:
    gate = Gate()
    async with shmrpc.serve(gate.service) as server, shmrpc.connect("tested.gate") as client:
        for _ in range(50):
            gate.open.clear()
            gate.ends.clear()
            call = asyncio.create_task(client.wait(1))
            while server.in_flight != 1:
                await asyncio.sleep(0)
            await _turns(2)  # Its task has begun too.
            gate.open.set()  # Its handler ends on the next turn,
            call.cancel()  # on which its cancellation goes out.
            await asyncio.wait([call])
            assert call.cancelled()
            await _turns(3)
            assert gate.ends == ["finished"] and server.in_flight == 0
        assert await client.wait(7) == 7


@pytest.mark.parametrize("turns", range(12))
async def test_at_any_turn_of_the_loop_it_either_finished_or_was_cancelled(turns: int) -> None:
    gate = Gate()
    async with shmrpc.serve(gate.service) as server, shmrpc.connect("tested.gate") as client:
        call = asyncio.create_task(client.wait(1))
        while server.in_flight != 1:
            await asyncio.sleep(0)
        await _turns(2)  # Its task has begun too.
        gate.open.set()
        for _ in range(turns):
            await asyncio.sleep(0)
        call.cancel()
        await asyncio.wait([call])
        assert call.cancelled() or call.result() == 1
        await _turns(5)
        assert gate.ends == ["finished"] and server.in_flight == 0
        assert await client.at_once() == "at once"


async def test_an_answer_that_is_there_already_is_dropped_and_no_cancellation_sent() -> None:
    gate = Gate()
    async with shmrpc.serve(gate.service), shmrpc.connect("tested.gate") as client:
        session = client._reconnector.session
        assert session is not None
        sent: list[int] = []
        session.cancel = sent.append  # type: ignore[assignment, method-assign]
        call = asyncio.create_task(client.wait(1))
        await _turns(3)
        future = next(iter(session.pending.values()))
        gate.open.set()
        while not future.done():
            await asyncio.sleep(0)
        call.cancel()  # The loop would wake the task with the reply on its next turn.
        await asyncio.wait([call])
        assert call.cancelled() and sent == []


async def test_a_handler_that_ignores_cancellation_finishes_without_a_caller(client: shmrpc.Client) -> None:
    call = asyncio.create_task(client.stubborn_until_released())
    assert await eventually_seen(client, "stubborn:began")
    assert await _cancelled(call)
    await client.release()
    assert await eventually_seen(client, "stubborn:finished")
    assert await client.add(1, 2) == 3


async def test_a_call_in_line_never_begins() -> None:
    gate = Gate()
    limited = shmrpc.serve(gate.service, max_in_flight=1)
    async with limited as server, shmrpc.connect("tested.gate") as client:
        first = asyncio.create_task(client.wait(1))
        second = asyncio.create_task(client.wait(2))
        third = asyncio.create_task(client.wait(3))
        while server.waiting != 2:
            await asyncio.sleep(0)
        assert await _cancelled(second)
        while server.waiting != 1:
            await asyncio.sleep(0)
        gate.open.set()
        assert [await first, await third] == [1, 3]
        assert gate.ends == ["finished", "finished"]


async def test_cancelled_by_a_timeout_of_asyncios(client: shmrpc.Client) -> None:
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.05):
            await client.sleep(60)
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(client.sleep(60, "waited"), 0.05)
    assert await eventually_seen(client, "sleep:cancelled")
    assert await eventually_seen(client, "waited:cancelled")
    async with asyncio.timeout(60):
        assert await client.sleep(0.001, "in time") == "in time"


async def test_a_task_group_that_fails_cancels_its_calls(client: shmrpc.Client) -> None:
    with pytest.raises(ExceptionGroup):
        async with asyncio.TaskGroup() as group:
            group.create_task(client.sleep(60))
            await client.sleep(0.01, "began")
            raise ValueError
    assert await eventually_seen(client, "sleep:cancelled")


async def test_in_a_thread_the_caller_goes_and_the_thread_runs_to_its_end(client: shmrpc.Client) -> None:
    call = asyncio.create_task(client.in_thread_until_released())
    assert await eventually_seen(client, "in_thread:began")
    assert await _cancelled(call)
    assert (await client.in_thread(0))[0].startswith("shmrpc-handler")
    await client.release()
    assert await eventually_seen(client, "in_thread:finished")


async def test_a_lost_connection_and_a_cancellation_at_once(server: ServerProcess, client: shmrpc.Client) -> None:
    calls = [asyncio.create_task(client.sleep(60)) for _ in range(10)]
    await client.add(1, 2)
    server.kill()
    for call in calls[:5]:
        call.cancel()
    results = await asyncio.gather(*calls, return_exceptions=True)
    assert all(isinstance(result, asyncio.CancelledError) for result in results[:5])
    assert all(isinstance(result, shmrpc.ConnectionLost) for result in results[5:])


async def test_a_client_that_is_lost_cancels_its_handlers_and_no_others(client: shmrpc.Client) -> None:
    async with shmrpc.connect("tested.flows") as other:
        lost = asyncio.create_task(other.sleep(60, "lost"))
        kept = asyncio.create_task(client.sleep(0.2, "kept"))
        assert await eventually_seen(client, "lost:began")
        await other.close()
        with pytest.raises(shmrpc.ConnectionLost):
            await lost
    assert await eventually_seen(client, "lost:cancelled")
    assert await kept == "kept"


async def test_a_handler_that_cancels_itself_is_an_error_of_its_caller() -> None:
    service = shmrpc.Service("tested.self")

    @service.endpoint
    async def give_up() -> None:
        raise asyncio.CancelledError

    async with shmrpc.serve(service), shmrpc.connect("tested.self") as client:
        with pytest.raises(shmrpc.RemoteError, match="cancelled at the server"):
            await client.give_up()


def _blocked(client: shmrpc.sync.Client, tag: str, outcome: list[object]) -> threading.Thread:
    def call() -> None:
        try:
            outcome.append(client.sleep(60, tag))
        except BaseException as error:
            outcome.append(error)

    thread = threading.Thread(target=call)
    thread.start()
    return thread


@pytest.mark.parametrize("threads", [1, 5])
def test_stop_ends_every_blocked_thread_and_resume_lets_them_call(
    sync_client: shmrpc.sync.Client, threads: int
) -> None:
    for round_number in range(3):
        outcome: list[object] = []
        blocked = [_blocked(sync_client, f"r{round_number}t{i}", outcome) for i in range(threads)]
        with shmrpc.sync.connect("tested.flows") as other:
            for i in range(threads):
                assert eventually(lambda name=f"r{round_number}t{i}:began": name in other.seen())  # type: ignore[misc]
            sync_client.stop()
            for thread in blocked:
                thread.join(60)
                assert not thread.is_alive()
            assert [type(result) for result in outcome] == [shmrpc.CallStopped] * threads
            with pytest.raises(shmrpc.CallStopped, match="resume"):
                sync_client.add(1, 2)
            with pytest.raises(shmrpc.CallStopped, match="resume"):
                sync_client.with_options(timeout=60).add(1, 2)
            sync_client.resume()
            assert sync_client.add(1, 2) == 3
            for i in range(threads):
                assert eventually(lambda name=f"r{round_number}t{i}:cancelled": name in other.seen())  # type: ignore[misc]


def test_stop_ends_a_stream(sync_client: shmrpc.sync.Client) -> None:
    ticks = sync_client.ticks(0.01)
    next(ticks)  # Its generator has begun.
    timer = threading.Timer(0.1, sync_client.stop)
    timer.start()
    with pytest.raises(shmrpc.CallStopped):
        for _ in ticks:
            pass
    timer.join()
    sync_client.resume()
    assert eventually(lambda: "ticks:left" in sync_client.seen())


def test_a_stream_between_two_items_ends_with_the_next_one_after_stop_and_resume(
    sync_client: shmrpc.sync.Client,
) -> None:
    ticks = sync_client.ticks(0.01)
    next(ticks)
    sync_client.stop()
    sync_client.resume()
    with pytest.raises(shmrpc.CallStopped):
        next(ticks)
    assert eventually(lambda: "ticks:left" in sync_client.seen())


def _seen_by_another() -> dict[str, int]:
    with shmrpc.sync.connect("tested.flows") as other:
        return dict(other.seen())


def test_close_ends_a_blocked_thread(sync_client: shmrpc.sync.Client) -> None:
    outcome: list[object] = []
    blocked = _blocked(sync_client, "closed", outcome)
    assert eventually(lambda: "closed:began" in sync_client.seen())
    sync_client.close()
    blocked.join(60)
    assert not blocked.is_alive()
    assert isinstance(outcome[0], shmrpc.ConnectionLost)


def test_ctrl_c_cancels_the_handler(sync_client: shmrpc.sync.Client) -> None:
    def interrupt() -> None:
        with shmrpc.sync.connect("tested.flows") as other:
            if eventually(lambda: "sleep:began" in other.seen()):  # Anywhere else it would end the tests.
                os.kill(os.getpid(), signal.SIGINT)

    thread = threading.Thread(target=interrupt)
    with pytest.raises(KeyboardInterrupt):
        thread.start()
        sync_client.sleep(60)
    thread.join()
    assert eventually(lambda: "sleep:cancelled" in sync_client.seen())


@pytest.mark.parametrize("timeout", [None, 60.0], ids=["fast path", "slow path"])
def test_ctrl_c_cancels_the_handler_also_before_its_answer_is_waited_for(
    monkeypatch: pytest.MonkeyPatch, sync_client: shmrpc.sync.Client, timeout: float | None
) -> None:
    def interrupted(*_: object) -> None:
        patched.undo()  # The patch concerns all clients, also the one that reads what has been seen.
        assert eventually(lambda: "sleep:began" in _seen_by_another())
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(ThreadSession, "complete", interrupted)
        caller = sync_client if timeout is None else sync_client.with_options(timeout=timeout)
        with pytest.raises(KeyboardInterrupt):
            caller.sleep(60)
    assert eventually(lambda: "sleep:cancelled" in sync_client.seen())


def test_stop_ends_what_is_under_way_even_if_resumed_at_once(sync_client: shmrpc.sync.Client) -> None:
    for round_number in range(3):
        outcome: list[object] = []
        tag = f"resumed{round_number}"
        blocked = [_blocked(sync_client, f"{tag}-{i}", outcome) for i in range(2)]
        with shmrpc.sync.connect("tested.flows") as other:
            assert eventually(lambda tag=tag: f"{tag}-0:began" in other.seen() and f"{tag}-1:began" in other.seen())  # type: ignore[misc]
        sync_client.stop()
        sync_client.resume()
        for thread in blocked:
            thread.join(60)
            assert not thread.is_alive()
        assert [type(result) for result in outcome] == [shmrpc.CallStopped] * 2
        assert sync_client.add(1, 2) == 3


@pytest.mark.parametrize("others", [False, True], ids=["it leads", "another one leads"])
def test_stop_ends_a_call_that_is_sent_and_about_to_wait(
    monkeypatch: pytest.MonkeyPatch, sync_client: shmrpc.sync.Client, others: bool
) -> None:
    outcome: list[object] = []
    threads = [_blocked(sync_client, "leads", outcome)] if others else []
    assert eventually(lambda: not others or "leads:began" in _seen_by_another())
    name = "next_frame" if others else "complete"
    really = getattr(ThreadSession, name)

    def after_stop(self: ThreadSession, *arguments: Any) -> Any:
        monkeypatch.setattr(ThreadSession, name, really)
        sync_client.stop()
        sync_client.resume()
        return really(self, *arguments)

    monkeypatch.setattr(ThreadSession, name, after_stop)
    with pytest.raises(shmrpc.CallStopped):
        sync_client.with_options(timeout=20).sleep(60)
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive()
    assert [type(result) for result in outcome] == [shmrpc.CallStopped] * len(threads)
    assert sync_client.add(1, 2) == 3


@pytest.mark.parametrize("what", ["stop", "kill"])
def test_a_call_that_feeds_slowly_hears_of_it(
    sync_client: shmrpc.sync.Client, server: ServerProcess, what: str
) -> None:
    def slowly() -> Iterator[int]:
        while True:
            time.sleep(0.005)
            yield 1

    timer = threading.Timer(0.2, sync_client.stop if what == "stop" else server.kill)
    timer.start()
    with pytest.raises(shmrpc.CallStopped if what == "stop" else shmrpc.ConnectionLost):
        sync_client.total(slowly())
    timer.join()
