"""Results of another type than declared: sent unchanged, with a warning in debug mode, or refused on request."""

from __future__ import annotations

import asyncio
import dataclasses
import logging
from collections.abc import AsyncIterator, Iterator
from typing import Any

import numpy as np
import pytest

import shmrpc
import shmrpc.testing
from tests.helpers.server_process import ServerProcess

service = shmrpc.Service("tested.declared")


@dataclasses.dataclass
class Item:
    name: str
    count: int


@dataclasses.dataclass
class Dear(Item):
    price: float = 0.0


@service.endpoint
def plain(value: Any) -> list[Item]:
    return value  # type: ignore[no-any-return]


@service.endpoint
async def at_once(value: Any) -> list[Item]:
    return value  # type: ignore[no-any-return]


@service.endpoint
async def later(value: Any) -> list[Item]:
    await asyncio.sleep(0)
    return value  # type: ignore[no-any-return]


@service.endpoint(run_in="thread")
def in_thread(value: Any) -> list[Item]:
    return value  # type: ignore[no-any-return]


@service.endpoint(run_in="process")
def in_process(value: Any) -> list[Item]:
    return value  # type: ignore[no-any-return]


@service.endpoint
async def stream(values: list[Any]) -> AsyncIterator[int]:
    for value in values:
        yield value


@service.endpoint
def plain_stream(values: list[Any]) -> Iterator[int]:
    yield from values


@service.endpoint(run_in="thread")
def thread_stream(values: list[Any]) -> Iterator[int]:
    yield from values


@service.endpoint
def fitting(which: str) -> dict[str, Item | None]:
    item = Item("a", 1)
    return {"a": Dear("a", 1, 2.5), "b": None} if which == "subclass" else {"a": item}


@service.endpoint
def named(which: str) -> Any:
    return 5 if which == "int" else object()


@service.endpoint
def array(size: int, kind: str) -> np.ndarray[tuple[int, int], np.dtype[np.float64]]:
    return np.zeros((size, size), kind)


@service.endpoint
def unsendable() -> int:
    return object()  # type: ignore[return-value]


FORMS = ["plain", "at_once", "later", "in_thread", "in_process"]
STREAMS = ["stream", "plain_stream", "thread_stream"]
WRONG = [{"name": "a", "count": 1}, {"name": "b", "count": "two"}]
WORDS = (
    "the result: expected `int`, got `str` - at `$[1].count` ([{'count': 1, 'name': 'a'}, {'count': 'two', 'name': "
    "'b'}]); it is declared as list[Item]"
)


@pytest.mark.parametrize("form", FORMS)
async def test_a_result_that_is_validated_says_what_was_declared_what_came_and_where(
    caplog: pytest.LogCaptureFixture, form: str
) -> None:
    network = shmrpc.testing.Network()
    async with network.serve(service, validate_results=True), network.connect(service.name) as client:
        assert await client.call(form, [{"name": "a", "count": 1}]) == [{"name": "a", "count": 1}]
        for call in (client, client.with_options(timeout=60), client.with_options(metadata={"a": "b"})):
            with pytest.raises(shmrpc.EncodeError) as caught:
                await call.call(form, WRONG)
            assert str(caught.value) == f"tested.declared.{form}(): {WORDS}"
        mapped = client.map(form, [[], WRONG])
        assert await anext(mapped) == []
        with pytest.raises(shmrpc.EncodeError, match="it is declared as"):
            await anext(mapped)
        async with client.batch() as batch:
            fine, wrong = getattr(batch, form)([]), getattr(batch, form)(WRONG)
        assert await fine == []
        with pytest.raises(shmrpc.EncodeError, match="it is declared as"):
            await wrong
    assert f"tested.declared.{form}() failed: tested.declared.{form}(): {WORDS}" in caplog.text


@pytest.mark.parametrize("form", STREAMS)
async def test_an_item_that_is_validated_ends_its_stream(form: str) -> None:
    network = shmrpc.testing.Network()
    async with network.serve(service, validate_results=True), network.connect(service.name) as client:
        assert [item async for item in getattr(client, form)([1, 2])] == [1, 2]
        seen = []
        with pytest.raises(shmrpc.EncodeError) as caught:
            async for item in getattr(client, form)([1, "two", 3]):
                seen.append(item)
        assert seen == [1]
        assert str(caught.value) == (
            f"tested.declared.{form}(): an item: expected `int`, got `str` ('two'); it is declared as int"
        )


async def test_results_are_validated_in_the_form_in_which_they_would_arrive() -> None:
    network = shmrpc.testing.Network()
    async with network.serve(service, validate_results=True), network.connect(service.name) as client:
        assert (await client.fitting("subclass"))["b"] is None
        assert await client.fitting("same") == {"a": {"name": "a", "count": 1}}
        assert await client.named("int") == 5
        with pytest.raises(shmrpc.EncodeError, match=r"unsendable\(\) returned object, which cannot be sent"):
            await client.unsendable()


@pytest.mark.parametrize("size", [2, 500])
async def test_arrays_are_validated_small_and_large(size: int) -> None:
    async with shmrpc.serve(service, validate_results=True), shmrpc.connect(service.name) as client:
        assert (await client.array(size, "f8")).shape == (size, size)
        with pytest.raises(shmrpc.EncodeError, match="expected an array of `float64`, got one of `int32`"):
            await client.array(size, "i4")


@pytest.mark.parametrize("form", [*FORMS, *STREAMS])
async def test_debug_mode_warns_once_for_each_endpoint(caplog: pytest.LogCaptureFixture, form: str) -> None:
    asyncio.get_running_loop().set_debug(True)
    caplog.set_level(logging.WARNING, "shmrpc.server")
    network = shmrpc.testing.Network()
    async with network.serve(service), network.connect(service.name) as client:
        for _ in range(2):
            if form in STREAMS:
                assert [item async for item in getattr(client, form)([1, "two", "three"])] == [1, "two", "three"]
            else:
                assert await client.call(form, WRONG) == WRONG
        await client.named("int")
    told = [record.getMessage() for record in caplog.records if record.name == "shmrpc.server"]
    told = [message for message in told if "it is declared as" in message]
    assert len(told) == 1
    assert told[0].startswith(f"tested.declared.{form}(): ")
    assert told[0].endswith("It is sent as it is; serve(validate_results=True) fails the call")


async def test_without_debug_mode_results_are_not_checked(caplog: pytest.LogCaptureFixture) -> None:
    network = shmrpc.testing.Network()
    async with network.serve(service), network.connect(service.name) as client:
        for form in FORMS[:-1]:
            assert await client.call(form, WRONG) == WRONG
    assert not caplog.records


def test_the_command_validates_results() -> None:
    with (
        ServerProcess("tests.server.test_validated_results:service", "--validate-results") as server,
        shmrpc.sync.connect(server.name) as client,
        pytest.raises(shmrpc.EncodeError, match="it is declared as"),
    ):
        client.plain(1)
