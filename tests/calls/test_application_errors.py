"""Exceptions that both sides know: registered classes, and ApplicationError."""

from __future__ import annotations

import asyncio
import copy
import decimal
import json
import pickle
import subprocess
import sys
import traceback
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import pytest

import shmrpc
import shmrpc.testing
from shmrpc.values import registry
from tests.helpers import failing_service
from tests.helpers.failing_service import ByFunctions, Coded, LostFile, OutOfStock, Refused, Slotted
from tests.helpers.server_process import ServerProcess

SHARED_SERVER = True
TARGET = "tests.helpers.failing_service:service"


@pytest.fixture(params=["shared memory", "reference codec", "in memory", "threads"])
async def call(request: pytest.FixtureRequest, server: ServerProcess) -> AsyncIterator[Callable[..., Any]]:
    """Make a call in each possible way."""
    if request.param == "threads":
        with shmrpc.sync.connect("failing") as threads:
            yield lambda name, *args: asyncio.to_thread(getattr(threads, name), *args)
    elif request.param == "in memory":
        async with shmrpc.testing.connect(failing_service.service) as client:
            yield client.call
    else:
        async with shmrpc.connect("failing", codec="msgpack" if "codec" in request.param else "msgspec") as client:
            yield client.call


def check_stock(error: BaseException) -> None:
    assert isinstance(error, OutOfStock) and isinstance(error, shmrpc.RemoteError)
    assert (error.item, error.left, error.tags) == ("ball", 0, ("a", decimal.Decimal("1.50")))
    assert (str(error), error.args) == ("ball: 0 left", ("ball: 0 left",))
    assert error.type_name == "tests.helpers.failing_service.OutOfStock"
    assert type(error).__qualname__ == "OutOfStock"


async def test_a_registered_exception_arrives_as_itself(call: Callable[..., Any]) -> None:
    with pytest.raises(OutOfStock) as caught:
        await call("fail", "stock")
    check_stock(caught.value)
    assert isinstance(caught.value, shmrpc.CallError)
    printed = "".join(traceback.format_exception(caught.value))
    assert "tests.helpers.failing_service.OutOfStock: ball: 0 left" in printed
    assert 'failing_service.py", line' in printed
    assert "Raised remotely as" not in printed


async def test_every_form_of_a_registered_exception(call: Callable[..., Any]) -> None:
    with pytest.raises(Refused) as refused:
        await call("fail", "refused")
    assert (refused.value.reason, refused.value.codes) == ("no", frozenset({1, 2}))
    with pytest.raises(LostFile) as lost:
        await call("fail", "file")
    assert (lost.value.errno, lost.value.strerror, lost.value.filename) == (2, "No such file", "/nowhere")
    assert isinstance(lost.value, FileNotFoundError)
    with pytest.raises(Slotted) as slotted:
        await call("fail", "slotted")
    assert slotted.value.place == 5
    with pytest.raises(ByFunctions) as functions:
        await call("fail", "functions")
    assert functions.value.temperature == 1.5
    with pytest.raises(Coded) as coded:
        await call("fail", "coded")
    assert type(coded.value) is Coded
    assert (coded.value.code, coded.value.details) == ("not_found", {"order": 7})


async def test_an_application_error_arrives_with_code_message_and_details(call: Callable[..., Any]) -> None:
    with pytest.raises(shmrpc.ApplicationError) as caught:
        await call("fail", "application")
    error = caught.value
    assert type(error) is shmrpc.ApplicationError
    assert (error.code, error.message, error.details) == ("exhausted", "no more", {"left": {1, 2}, "at": (1, 2)})
    assert str(error) == "exhausted: no more"
    assert isinstance(error, shmrpc.RemoteError) and "in fail" in error.remote_traceback


@pytest.mark.parametrize("endpoint", ["fail_in_thread", "pass_on_in_thread", "fail_in_process"])
async def test_from_threads_and_processes(client: shmrpc.Client, endpoint: str) -> None:
    with pytest.raises(OutOfStock) as caught:
        await client.call(endpoint, "stock")
    check_stock(caught.value)
    with pytest.raises(shmrpc.ApplicationError) as application:
        await client.call(endpoint, "application")
    assert application.value.details == {"left": {1, 2}, "at": (1, 2)}
    with pytest.raises(Coded) as coded:
        await client.call(endpoint, "coded")
    assert coded.value.details == {"order": 7}


@pytest.mark.parametrize("endpoint", ["stream", "plain_stream", "pass_stream"])
async def test_at_the_end_of_a_stream(client: shmrpc.Client, endpoint: str) -> None:
    got = []
    with pytest.raises(OutOfStock) as caught:
        async for item in client.call(endpoint, "stock"):
            got.append(item)
    assert got == [1]
    check_stock(caught.value)
    with pytest.raises(shmrpc.ApplicationError, match="exhausted: no more"):
        async for _ in client.call(endpoint, "application"):
            pass


def test_at_the_end_of_a_stream_of_a_thread(server: ServerProcess) -> None:
    with shmrpc.sync.connect("failing") as threads:
        with pytest.raises(OutOfStock) as caught:
            list(threads.stream("stock"))
        check_stock(caught.value)


def source(kind: str) -> Iterator[int]:
    yield 1
    raise failing_service.make(kind)


async def test_from_a_source_to_the_handler(client: shmrpc.Client) -> None:
    for kind, seen in [
        ("stock", ["OutOfStock", True, {"item": "ball", "left": 0, "tags": ("a", decimal.Decimal("1.50"))}]),
        ("application", ["ApplicationError", False, {"code": "exhausted", "details": {"left": {1, 2}, "at": (1, 2)}}]),
    ]:
        assert await client.caught(source(kind)) == seen
        with shmrpc.sync.connect("failing") as threads:
            assert await asyncio.to_thread(threads.caught, source(kind)) == seen


async def test_in_batches_and_maps(client: shmrpc.Client) -> None:
    async with client.batch() as batch:
        stock, good, application = batch.fail("stock"), batch.give_back("key"), batch.fail("application")
        unknown = batch.fail("lookup")
    check_stock(stock.exception())  # type: ignore[arg-type]
    assert isinstance(application.exception(), shmrpc.ApplicationError)
    assert isinstance(unknown.exception(), LookupError)
    with pytest.raises(shmrpc.CallError):
        good.result()  # A KeyError is not a value that can be sent.
    with pytest.raises(OutOfStock) as caught:
        [_ async for _ in client.map("fail", ["stock"])]
    check_stock(caught.value)
    with shmrpc.sync.connect("failing") as threads:
        with pytest.raises(OutOfStock) as mapped:
            list(threads.map("fail", ["stock"]))
        check_stock(mapped.value)
        with threads.batch() as collected:
            one = collected.fail("coded")
        assert isinstance(one.exception(), Coded)


@pytest.mark.parametrize("hops", [1, 3])
async def test_over_several_hops(client: shmrpc.Client, hops: int) -> None:
    with pytest.raises(OutOfStock) as caught:
        await client.pass_on("stock", hops)
    check_stock(caught.value)
    assert "RemoteError" not in str(caught.value)
    with pytest.raises(shmrpc.ApplicationError) as application:
        await client.pass_on("application", hops)
    assert application.value.details == {"left": {1, 2}, "at": (1, 2)}


async def test_an_error_of_an_unregistered_class_says_how_to_register_it(
    client: shmrpc.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delitem(registry._by_name, "tests.helpers.failing_service.OutOfStock")
    monkeypatch.delitem(registry._by_name, "tests.helpers.failing_service.ByFunctions")
    monkeypatch.delitem(registry._by_name, "tests.helpers.failing_service.Coded")
    for kind, name, text in [("stock", "OutOfStock", "ball: 0 left"), ("functions", "ByFunctions", "1.5 degrees")]:
        with pytest.raises(shmrpc.RemoteError) as caught:
            await client.fail(kind)
        assert type(caught.value) is shmrpc.RemoteError
        assert str(caught.value) == text
        assert (
            f"shmrpc.register(its class, name='tests.helpers.failing_service.{name}') here too"
            in caught.value.__notes__[0]
        )
    with pytest.raises(shmrpc.ApplicationError) as coded:
        await client.fail("coded")
    assert type(coded.value) is shmrpc.ApplicationError
    assert (coded.value.code, coded.value.message, coded.value.details) == ("not_found", "no order 7", {"order": 7})


async def test_a_relay_that_has_not_registered_a_class_passes_it_on_whole(server: ServerProcess) -> None:
    relay = shmrpc.Service("relay")

    @relay.endpoint
    async def through(kind: str) -> None:
        with pytest.MonkeyPatch.context() as patch:
            for name in ("OutOfStock", "ByFunctions", "Coded"):
                patch.delitem(registry._by_name, f"tests.helpers.failing_service.{name}")
            async with shmrpc.connect("failing") as client:
                await client.fail(kind)

    async with shmrpc.serve(relay), shmrpc.connect("relay") as client:
        with pytest.raises(OutOfStock) as caught:
            await client.through("stock")
        check_stock(caught.value)
        with pytest.raises(ByFunctions) as functions:
            await client.through("functions")
        assert functions.value.temperature == 1.5
        with pytest.raises(Coded) as coded:
            await client.through("coded")
        assert coded.value.details == {"order": 7}


async def test_a_detail_that_cannot_be_sent_is_left_out_with_a_note(client: shmrpc.Client) -> None:
    with pytest.raises(shmrpc.ApplicationError) as caught:
        await client.fail("unsendable detail")
    assert (caught.value.code, caught.value.details) == ("odd", {"good": 1})
    assert "detail 'bad' was left out" in caught.value.remote_traceback
    with pytest.raises(shmrpc.RemoteError) as field:
        await client.fail("unsendable field")
    assert not isinstance(field.value, OutOfStock)
    assert "OutOfStock is registered, but this one cannot be sent" in field.value.remote_traceback


async def test_a_large_detail_and_a_small_frame(client: shmrpc.Client) -> None:
    with pytest.raises(shmrpc.ApplicationError) as caught:
        await client.fail("large detail")
    assert caught.value.details == {"data": bytes(100_000)}
    async with shmrpc.connect("failing", max_frame=1024) as small:
        with pytest.raises(shmrpc.ApplicationError) as cut:
            await small.fail("large detail")
        assert (cut.value.code, cut.value.details) == ("large", {})


async def test_a_derived_application_error_that_is_not_registered(client: shmrpc.Client) -> None:
    with pytest.raises(shmrpc.ApplicationError) as caught:
        await client.fail("derived")
    assert type(caught.value) is shmrpc.ApplicationError
    assert (caught.value.code, caught.value.details) == ("derived", {"size": 3})
    assert caught.value.type_name == "tests.helpers.failing_service.Derived"


async def test_a_registered_exception_is_a_value_too(client: shmrpc.Client) -> None:
    (value,) = await client.give_back("stock")
    assert type(value) is OutOfStock and value.item == "ball"
    try:
        await client.fail("stock")
    except OutOfStock as error:
        caught = error
    assert isinstance(caught, shmrpc.RemoteError)


@pytest.mark.parametrize("kind", ["stock", "slotted", "coded", "application", "derived", "key", "os", "overloaded"])
async def test_a_received_error_can_be_pickled_and_copied(client: shmrpc.Client, kind: str) -> None:
    with pytest.raises(shmrpc.RemoteError) as caught:
        await client.fail(kind)
    error = caught.value
    for again in (pickle.loads(pickle.dumps(error)), copy.copy(error)):
        assert type(again) is type(error)
        assert (str(again), again.args, vars(again)) == (str(error), error.args, vars(error))
        assert (again.type_name, again.remote_traceback) == (error.type_name, error.remote_traceback)


def test_an_application_error_says_what_it_wants() -> None:
    error = shmrpc.ApplicationError("not_found", "no order 7", order=7)
    assert (str(error), repr(error)) == (
        "not_found: no order 7",
        "ApplicationError('not_found', 'no order 7', order=7)",
    )
    assert (str(shmrpc.ApplicationError("gone")), repr(shmrpc.ApplicationError("gone"))) == (
        "gone",
        "ApplicationError('gone')",
    )
    with pytest.raises(TypeError, match=r"code: expected a str, as in 'not_found', got 404"):
        shmrpc.ApplicationError(404)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="code: expected a word"):
        shmrpc.ApplicationError("")
    with pytest.raises(TypeError, match="message: expected a str"):
        shmrpc.ApplicationError("odd", 5)  # type: ignore[arg-type]


def test_a_class_is_not_told_of_the_one_that_is_made_of_it() -> None:
    made = []

    class Base(Exception):
        def __init_subclass__(cls) -> None:
            made.append(cls)

    class Once(Base):
        pass

    from shmrpc import errors

    assert issubclass(errors.join_remote_error(Once), Once)
    assert made == [Once]


@pytest.mark.parametrize(
    ("kind", "words"),
    [("application", ["exhausted: no more", "left: {1, 2}"]), ("deadline", ["shmrpc.errors.DeadlineExceeded: late"])],
)
def test_the_command_line_shows_them_as_the_calls_failure(server: ServerProcess, kind: str, words: list[str]) -> None:
    command = [sys.executable, "-m", "shmrpc", "call", "failing", "fail", json.dumps(kind)]
    calling = subprocess.run(command, capture_output=True, text=True, check=False)
    assert calling.returncode == 4
    assert all(word in calling.stderr for word in words), calling.stderr
