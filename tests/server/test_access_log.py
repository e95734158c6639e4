"""The access log: one line for each call, with how it ended and nothing secret."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
from collections.abc import AsyncIterator

import pytest

import shmrpc
from shmrpc import access_log
from tests.helpers.server_process import eventually_in_loop, forever_expires

service = shmrpc.Service("tested")


@service.endpoint
def echo(value: str) -> str:
    return value


@service.endpoint
async def ticks(count: int) -> AsyncIterator[int]:
    for number in range(count):
        await asyncio.sleep(0.001)
        yield number


@service.endpoint
def fail(text: str) -> None:
    raise KeyError(text)


@service.endpoint
async def fail_by_another(text: str) -> None:
    async with shmrpc.connect("tested") as client:
        await client.fail(text)


@service.endpoint
async def forever() -> None:
    _begun.append(True)
    await asyncio.Event().wait()


#: One for each call of ``forever`` that has ever begun.
_begun: list[bool] = []


@pytest.fixture
def log(caplog: pytest.LogCaptureFixture) -> pytest.LogCaptureFixture:
    caplog.set_level(logging.ERROR, "shmrpc.server")  # Without warnings of a held loop: a busy machine causes them.
    caplog.set_level(logging.CRITICAL, "shmrpc.server.failures")  # Without tracebacks of what handlers raise.
    caplog.set_level(logging.INFO, "shmrpc.access")  # The last level set is the level of the capturing handler, too.
    return caplog


def ended(log: pytest.LogCaptureFixture) -> list[tuple[str, str]]:
    """Return the endpoint and the outcome of each line."""
    return [(record.__dict__["rpc_endpoint"], record.__dict__["rpc_outcome"]) for record in log.records]


async def test_a_line_says_who_called_what_and_how_it_ended(log: pytest.LogCaptureFixture) -> None:
    async with shmrpc.serve(service, interceptors=[access_log.interceptor()]), shmrpc.connect("tested") as client:
        await client.echo("x")
    (record,) = log.records
    assert record.name == "shmrpc.access"
    assert record.levelno == logging.INFO
    duration = record.__dict__["rpc_duration"]
    assert duration > 0
    pid, uid = os.getpid(), os.getuid()
    assert record.getMessage() == f"tested.echo() pid={pid} uid={uid} {duration * 1e3:.3f} ms ok"
    fields = {key: value for key, value in record.__dict__.items() if key.startswith("rpc_")}
    assert fields == {
        "rpc_service": "tested",
        "rpc_endpoint": "echo",
        "rpc_peer_pid": pid,
        "rpc_peer_uid": uid,
        "rpc_duration": duration,
        "rpc_outcome": "ok",
    }


async def test_arguments_results_and_the_texts_of_exceptions_are_not_logged(log: pytest.LogCaptureFixture) -> None:
    both = [access_log.interceptor()]
    async with shmrpc.serve(service, interceptors=both), shmrpc.connect("tested", interceptors=both) as client:
        secret = client.with_options(metadata={"token": "hunter2"})
        await secret.echo("hunter2")
        for endpoint in ("fail", "fail_by_another"):
            with pytest.raises(KeyError):
                await secret.call(endpoint, "hunter2")
    assert len(log.records) == 7
    assert not any("hunter2" in str(record.__dict__) + log.handler.format(record) for record in log.records)


async def test_each_way_to_end_has_its_name_on_both_sides(log: pytest.LogCaptureFixture) -> None:
    async def lines(count: int) -> list[tuple[str, str]]:
        assert await eventually_in_loop(lambda: len(log.records) >= count)
        seen = ended(log)
        log.clear()
        return seen

    both = [access_log.interceptor()]
    server = shmrpc.serve(service, interceptors=both)
    async with server, shmrpc.connect("tested", interceptors=both) as client:
        with pytest.raises(KeyError):
            await client.fail("missing")
        assert await lines(2) == [("fail", "KeyError")] * 2

        def forget() -> None:
            log.clear()
            _begun.clear()

        await forever_expires(client, lambda: bool(_begun), forget)
        assert await lines(2) == [("forever", "deadline_exceeded")] * 2
        assert await eventually_in_loop(lambda: server.in_flight == 0)
        task = asyncio.create_task(client.forever())
        assert await eventually_in_loop(lambda: server.in_flight == 1)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert await lines(2) == [("forever", "cancelled")] * 2
        assert [item async for item in client.ticks(2)] == [0, 1]
        assert await lines(2) == [("ticks", "ok")] * 2
        async with contextlib.aclosing(client.ticks(1000)) as items:
            async for _ in items:
                break
        assert await lines(2) == [("ticks", "cancelled")] * 2
        with pytest.raises(shmrpc.InvalidArguments):
            await client.echo(1)
        assert await lines(1) == [("echo", "shmrpc.errors.InvalidArguments")]


async def test_a_client_without_a_loop_logs_alike(log: pytest.LogCaptureFixture) -> None:
    def work() -> None:
        with shmrpc.sync.connect("tested", interceptors=[access_log.interceptor()]) as client:
            client.echo("x")
            with pytest.raises(shmrpc.DeadlineExceeded):
                client.with_options(timeout=0.2).forever()
            items = client.ticks(1000)
            next(items)
            items.close()

    async with shmrpc.serve(service):
        await asyncio.to_thread(work)
    assert ended(log) == [("echo", "ok"), ("forever", "deadline_exceeded"), ("ticks", "cancelled")]


async def test_logger_and_level_are_the_users(log: pytest.LogCaptureFixture) -> None:
    log.set_level(logging.WARNING, "quiet")
    log.set_level(logging.DEBUG, "mine")
    interceptors = [
        access_log.interceptor("mine", logging.DEBUG),
        access_log.interceptor(logging.getLogger("quiet")),
    ]
    async with shmrpc.serve(service, interceptors=interceptors), shmrpc.connect("tested") as client:
        await client.echo("x")
    assert [(record.name, record.levelno) for record in log.records] == [("mine", logging.DEBUG)]
