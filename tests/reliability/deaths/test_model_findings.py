"""Regression tests of the defects that the model has found."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import shmrpc
from tests.helpers.array_service import memory_of
from tests.helpers.server_process import ServerProcess, eventually_in_loop

TARGET = "tests.helpers.stream_service:service"


def outcome_of_a_call_without_a_server(
    server: ServerProcess, end: Callable[[shmrpc.sync.Client], None]
) -> BaseException | None:
    """Return the error of a thread that waits for the next server, when ``end`` ends the wait."""
    with shmrpc.sync.connect("tested.flows", reconnect=True, timeout=60) as client:
        server.kill()
        with pytest.raises(shmrpc.ServiceUnavailable):
            client.wait_for_ready(0)
        outcomes: list[BaseException] = []

        def call() -> None:
            try:
                client.add(1, 2)
            except BaseException as error:
                outcomes.append(error)

        thread = threading.Thread(target=call, daemon=True)
        thread.start()
        while (
            turn := client._reconnector._connecting.try_acquire()
        ) is not None:  # This thread has the lock: the other has not begun to wait.
            turn.release()
        end(client)
        thread.join(20)
        assert not thread.is_alive(), "the thread still waits"
        return outcomes[0] if outcomes else None


def test_a_thread_that_waits_for_a_server_is_freed_by_close(server: ServerProcess) -> None:
    error = outcome_of_a_call_without_a_server(server, lambda client: client.close())
    assert isinstance(error, shmrpc.ConnectionLost)
    assert "was closed" in str(error) and not error.maybe_executed


def test_a_thread_that_waits_for_a_server_is_freed_by_stop(server: ServerProcess) -> None:
    def stop(client: shmrpc.sync.Client) -> None:
        client.stop()
        client.resume()

    assert isinstance(outcome_of_a_call_without_a_server(server, stop), shmrpc.CallStopped)


def test_closing_a_client_ends_its_first_connection_attempt() -> None:
    client = shmrpc.sync.connect("tested.flows", timeout=60)
    outcomes: list[BaseException] = []

    def connect() -> None:
        try:
            client.__enter__()
        except BaseException as error:
            outcomes.append(error)

    thread = threading.Thread(target=connect, daemon=True)
    thread.start()
    client.close()
    thread.join(20)
    assert not thread.is_alive(), "the thread still waits"
    # If the close comes first, connecting raises that the client is closed.
    assert isinstance(outcomes[0], (shmrpc.ConnectionLost, shmrpc.LocalProtocolError))


def test_items_that_arrived_are_read_although_another_call_learns_of_the_servers_end(server: ServerProcess) -> None:
    with shmrpc.sync.connect("tested.flows") as client:
        items = client.count(5)
        assert next(items) == 0
        while client.seen().get("count:finished") != 1:
            pass
        client.sleep(0.01)  # The end is sent after the generator has ended, in another iteration of the server's loop.
        server.kill()
        with pytest.raises(shmrpc.ConnectionLost):
            client.wait_for_ready(0)
        assert list(items) == [1, 2, 3, 4]


def test_a_begun_stream_may_have_been_executed(server: ServerProcess) -> None:
    """The client owes the dead server credit before it reaches the end."""
    with shmrpc.sync.connect("tested.flows") as client:
        items = client.flood()
        assert next(items) == 0
        server.kill()
        with pytest.raises(shmrpc.ConnectionLost):
            client.wait_for_ready(0)
        with pytest.raises(shmrpc.ConnectionLost) as caught:
            assert list(items) == []
        assert caught.value.maybe_executed


async def test_the_result_of_a_call_that_had_to_wait_is_released() -> None:
    """The call ends as soon as it begins: without a task of its own, and not by the server's pump."""
    service, gate = shmrpc.Service("tested.gate"), asyncio.Event()

    @service.endpoint
    async def echo(value: Any) -> Any:
        await gate.wait()
        return value

    async with shmrpc.serve(service, max_in_flight=1) as server, shmrpc.connect("tested.gate") as client:
        calls = [asyncio.create_task(client.echo(np.zeros(100_000, np.uint8))) for _ in range(2)]
        assert await eventually_in_loop(lambda: (server.in_flight, server.waiting) == (1, 1), 30)
        gate.set()
        await asyncio.wait(calls)
        assert all((call.result() == 0).all() for call in calls)
        calls.clear()
        assert await eventually_in_loop(lambda: memory_of(client)[1] == 0, 30)
