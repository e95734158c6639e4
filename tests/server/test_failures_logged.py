"""Calls that fail leave a trace at the server: unexpected ones, each once, and a storm of them as a number."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest

import shmrpc
import shmrpc.testing
from shmrpc.server import failure_log
from tests.helpers.failing_service import OutOfStock
from tests.helpers.server_process import eventually_in_loop

service = shmrpc.Service("tested.logged")


class Mistake(Exception):
    """Not registered."""


@service.endpoint
def plain(kind: str = "") -> None:
    match kind:
        case "application":
            raise shmrpc.ApplicationError("not_found")
        case "registered":
            raise OutOfStock("ball", 0)
        case "arguments":
            raise shmrpc.InvalidArguments("odd")
        case "unformattable":
            raise SyntaxError("odd", ("file", 1, 2, 123))  # type: ignore[arg-type]
        case "large":
            raise Mistake("x" * 10_000_000)
    raise Mistake(f"of kind {kind!r}")


@service.endpoint
async def at_once(kind: str = "") -> None:
    plain(kind)


@service.endpoint
async def later(kind: str = "") -> None:
    await asyncio.sleep(0)
    plain(kind)


@service.endpoint(run_in="thread")
def in_thread(kind: str = "") -> None:
    plain(kind)


@service.endpoint
async def stream(kind: str = "") -> AsyncIterator[int]:
    yield 1
    plain(kind)


@service.endpoint
def unsendable() -> Any:
    return object()


@service.endpoint
async def total(numbers: AsyncIterator[int]) -> int:
    return sum([number async for number in numbers])


@service.endpoint
async def when_cancelled() -> None:
    try:
        await asyncio.sleep(3600)
    finally:
        raise Mistake("while it was cancelled")


@pytest.fixture
async def client(caplog: pytest.LogCaptureFixture) -> AsyncIterator[shmrpc.Client]:
    caplog.set_level(logging.ERROR, "shmrpc.server")
    async with shmrpc.serve(service), shmrpc.connect(service.name) as client:
        yield client


def logged(caplog: pytest.LogCaptureFixture) -> list[str]:
    """Return the messages so far."""
    assert all(record.name == "shmrpc.server.failures" for record in caplog.records)
    return [record.getMessage() for record in caplog.records]


async def fails(client: shmrpc.Client, endpoint: str, *args: Any) -> None:
    with pytest.raises(shmrpc.CallError):
        if endpoint == "stream":
            async for _ in client.stream(*args):
                pass
        else:
            await client.call(endpoint, *args)


FORMS = ["plain", "at_once", "later", "in_thread", "stream"]


@pytest.mark.parametrize("form", FORMS)
async def test_an_unexpected_failure_is_logged_once_with_its_traceback(
    client: shmrpc.Client, caplog: pytest.LogCaptureFixture, form: str
) -> None:
    await fails(client, form, "odd")
    assert logged(caplog) == [f"tested.logged.{form}() failed"]
    assert "Mistake: of kind 'odd'" in caplog.text and ", in plain" in caplog.text
    assert "shmrpc/server/server.py" not in caplog.text and "shmrpc/server/calls.py" not in caplog.text


async def test_a_failure_with_an_unformattable_traceback_is_logged_and_answered(
    client: shmrpc.Client, caplog: pytest.LogCaptureFixture
) -> None:
    await fails(client, "plain", "unformattable")
    assert "SyntaxError <to format it raised AttributeError>" in caplog.text and ", in plain" in caplog.text
    assert logged(caplog) == ["tested.logged.plain() failed"]


async def test_a_message_of_megabytes_is_cut(client: shmrpc.Client, caplog: pytest.LogCaptureFixture) -> None:
    await fails(client, "plain", "large")
    assert "characters left out" in caplog.text and len(caplog.text) < 20_000


async def test_a_filter_of_the_log_that_fails_costs_no_answer(
    client: shmrpc.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(record: logging.LogRecord) -> bool:
        raise RuntimeError(record.getMessage())

    monkeypatch.setattr(failure_log.logger, "filters", [broken])
    await fails(client, "plain")
    await fails(client, "unsendable")


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("kind", ["application", "registered", "arguments"])
async def test_an_expected_failure_is_not(
    client: shmrpc.Client, caplog: pytest.LogCaptureFixture, form: str, kind: str
) -> None:
    await fails(client, form, kind)
    assert logged(caplog) == []


async def test_arguments_that_do_not_fit_deadlines_and_cancellations_are_not(
    client: shmrpc.Client, caplog: pytest.LogCaptureFixture
) -> None:
    await fails(client, "plain", 5)
    await fails(client, "total", 5)
    await fails(client.with_options(timeout=0), "plain")
    await fails(client, "total", ["no number"])
    assert logged(caplog) == []


async def test_a_result_that_cannot_be_sent_is(client: shmrpc.Client, caplog: pytest.LogCaptureFixture) -> None:
    await fails(client, "unsendable")
    (message,) = logged(caplog)
    assert message.startswith("tested.logged.unsendable() failed: unsendable() returned object, which cannot be sent")


async def test_an_error_of_the_callers_own_source_is_not_logged(
    client: shmrpc.Client, caplog: pytest.LogCaptureFixture
) -> None:
    def source() -> Iterator[int]:
        yield 1
        raise Mistake("of the caller's")

    with pytest.raises(Mistake):
        await client.total(source())
    assert logged(caplog) == []


async def test_an_error_of_a_handler_after_its_caller_left_is_logged(
    client: shmrpc.Client, caplog: pytest.LogCaptureFixture
) -> None:
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.05):
            await client.when_cancelled()
    assert await eventually_in_loop(lambda: bool(caplog.records))
    assert logged(caplog) == ["tested.logged.when_cancelled() failed"]


@pytest.mark.parametrize("endpoint", ["plain", "later"])
async def test_in_batches(client: shmrpc.Client, caplog: pytest.LogCaptureFixture, endpoint: str) -> None:
    async with client.batch() as batch:
        outcomes = [batch.call(endpoint, kind) for kind in ("", "application", "registered")]
        outcomes.append(batch.unsendable())
    assert all(outcome.exception() for outcome in outcomes)
    first, second = logged(caplog)
    assert first == f"tested.logged.{endpoint}() failed"
    assert "cannot be sent" in second
    caplog.clear()
    with pytest.raises(shmrpc.RemoteError):
        [_ async for _ in client.map("in_thread", ["x", "y"])]
    assert logged(caplog) == ["tested.logged.in_thread() failed"]


@pytest.mark.parametrize("form", FORMS)
async def test_a_storm_is_one_traceback_and_a_number(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch, form: str
) -> None:
    monkeypatch.setattr(failure_log, "QUIET_PERIOD", 3600.0)
    caplog.set_level(logging.ERROR, "shmrpc.server")
    async with shmrpc.testing.connect(service) as client:
        for number in range(100):
            await fails(client, form, str(number))
        assert logged(caplog) == [f"tested.logged.{form}() failed"]
        await fails(client, "plain" if form != "plain" else "later")
        assert len(logged(caplog)) == 2, "another endpoint's is another one"
    *_, last = logged(caplog)
    assert last.startswith(
        f"tested.logged.{form}() failed 99 more times: tests.server.test_failures_logged.Mistake in "
    )


async def test_a_storm_that_goes_on_is_logged_in_numbers(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(failure_log, "QUIET_PERIOD", 0.001)
    caplog.set_level(logging.ERROR, "shmrpc.server")
    async with shmrpc.serve(service), shmrpc.connect(service.name) as client:
        async with asyncio.timeout(30):
            while not any("more time" in message for message in logged(caplog)):
                async with client.batch() as batch:
                    wrong = [batch.plain() for _ in range(100)]
                assert all(each.exception() for each in wrong)
    counted = [record for record in caplog.records if "more time" in record.getMessage()]
    assert all(record.exc_info is None for record in counted)


@pytest.mark.parametrize("form", ["plain", "later", "in_thread"])
async def test_a_one_way_call_is_logged_once(
    client: shmrpc.Client, caplog: pytest.LogCaptureFixture, form: str
) -> None:
    await client.notify(form, "odd")
    assert await eventually_in_loop(lambda: bool(caplog.records))
    await fails(client, "plain", "application")
    await asyncio.sleep(0)
    assert logged(caplog) == [f"tested.logged.{form}(), called one way, failed"]
    for _ in range(50):
        await client.notify(form, "odd")
    await fails(client, "plain", "application")
    assert len(logged(caplog)) == 1


async def test_a_failure_that_is_passed_on_is_logged_by_each_server(caplog: pytest.LogCaptureFixture) -> None:
    relay = shmrpc.Service("tested.relay")
    caplog.set_level(logging.ERROR, "shmrpc.server")

    @relay.endpoint
    async def through(kind: str) -> None:
        async with shmrpc.connect(service.name) as inner:
            await inner.plain(kind)

    async with shmrpc.serve(service), shmrpc.serve(relay), shmrpc.connect("tested.relay") as client:
        for kind in ("", "application", "registered"):
            await fails(client, "through", kind)
    assert logged(caplog) == ["tested.logged.plain() failed", "tested.relay.through() failed"]
