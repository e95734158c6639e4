"""Writable arguments: the caller sees the writes of the endpoint, for the time of the call and no longer."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import AsyncIterator, Callable
from typing import Any

import numpy as np
import pytest

import shmrpc
import shmrpc.testing
from tests.helpers import array_service
from tests.helpers.array_service import memory_of, numbered, sum_of
from tests.helpers.loops import one_loop
from tests.helpers.server_process import ServerProcess, eventually, eventually_in_loop

TARGET = "tests.helpers.array_service:service"
SHARED_SERVER = True

SIZE = 300_000
SOURCE = numbered(1, SIZE)


#: Ways to have an array inverted in place.
WAYS: dict[str, Callable[[Any, Any], Any]] = {
    "plain": lambda client, image: client.invert(image),
    "by keyword": lambda client, image: client.invert(image=image),
    "by function": lambda client, image: client.call(array_service.invert, image),
    "suspended": lambda client, image: client.invert_later(image),
    "in a thread": lambda client, image: client.invert_in_thread(image),
    "under a deadline": lambda client, image: client.with_options(timeout=30).invert(image),
    "with metadata": lambda client, image: client.with_options(metadata={"a": "b"}, reply_metadata={}).invert(image),
}


def built_at(client: Any, source: Any = SOURCE) -> Any:
    """Return a copy of an array in the client's shared memory."""
    array = client.empty(source.shape, source.dtype)
    array[...] = source
    return array


async def test_the_caller_sees_the_writes_of_a_call(client: shmrpc.Client) -> None:
    image = built_at(client)
    for name, send in WAYS.items():
        before = image.copy()
        await send(client, image)
        assert (image == ~before).all(), name
    assert await client.invert(image) == sum_of(~image), "the endpoint sees what is there"
    assert (await client.memory())[0] == 0


def test_the_same_without_a_loop(sync_client: shmrpc.sync.Client) -> None:
    image = built_at(sync_client)
    for name, send in WAYS.items():
        before = image.copy()
        send(sync_client, image)
        assert (image == ~before).all(), name


@one_loop
async def test_many_in_one_frame_and_one_way(client: shmrpc.Client) -> None:
    images = [built_at(client, numbered(seed, SIZE)) for seed in range(6)]
    async with client.batch() as batch:
        futures = [batch.invert(images[0]), batch.add(1, 2), batch.invert_later(images[1])]
    assert [await future for future in futures] == [sum_of(numbered(0, SIZE)), 3, None]
    sums = [result async for result in client.map("invert", images[2:4], chunk=2)]
    assert sums == [sum_of(numbered(seed, SIZE)) for seed in (2, 3)]
    await client.notify("invert", images[4])
    await client.notify("invert_later", images[5], 0.01)
    assert await eventually_in_loop(lambda: (images[5] == ~numbered(5, SIZE)).all())
    for seed, image in enumerate(images):
        assert (image == ~numbered(seed, SIZE)).all(), seed


@one_loop
async def test_parts_are_written_and_nothing_beside_them(client: shmrpc.Client) -> None:
    parts: dict[str, Callable[[Any], Any]] = {
        "rows": lambda image: image[100:200],
        "columns": lambda image: image[:, 100:900],
        "one of three": lambda image: image[::3],
        "backwards": lambda image: image[::-1, ::-1],
        "transposed": lambda image: image.T,
        "window": lambda image: image[7:290, 3:997],
    }
    for name, part_of in parts.items():
        image, expected = built_at(client).reshape(300, 1000), SOURCE.reshape(300, 1000).copy()
        np.invert(part_of(expected), out=part_of(expected))
        await client.invert(part_of(image))
        assert (image == expected).all(), name
    floats = built_at(client, np.arange(10_000.0))
    await client.invert_in_thread(floats.view("int64"))
    assert (floats.view("int64") == ~np.arange(10_000.0).view("int64")).all()


def test_memoryviews_and_arguments_that_may_be_none(sync_client: shmrpc.sync.Client) -> None:
    view = sync_client.buffer(SIZE)
    view[:] = SOURCE.tobytes()
    sync_client.put(view, 7, b"written")
    sync_client.put(view[100_000:], 1, b"and this")
    expected = bytearray(SOURCE)
    expected[7:14], expected[100_001:100_009] = b"written", b"and this"
    assert view == expected
    target = built_at(sync_client)
    source = ~SOURCE[:50_000]
    assert sync_client.copy_into(source, target) is True
    assert (target[:50_000] == source).all() and (target[50_000:] == SOURCE[50_000:]).all()
    assert sync_client.copy_into(target=target, source=SOURCE[:9]) is True
    assert (target[:9] == SOURCE[:9]).all()
    assert sync_client.copy_into(source) is sync_client.copy_into(source, None) is False


async def test_the_caller_sees_writes_while_the_endpoint_runs(client: shmrpc.Client) -> None:
    image = built_at(client)
    call = asyncio.create_task(client.invert_when_kept(image, "go"))
    half = SIZE // 2
    assert await eventually_in_loop(lambda: (image[:half] == ~SOURCE[:half]).all())
    assert (image[half:] == SOURCE[half:]).all() and not call.done()
    image[half] = 77
    await client.keep("go", True)
    await call
    assert image[half] == 255 - 77, "either side sees what the other writes"
    assert (image[half + 1 :] == ~SOURCE[half + 1 :]).all()
    places = []
    async for place in client.invert_each(image, [9, 8, 7]):
        places.append((place, image[place]))
    assert places == [(0, 9), (1, 8), (2, 7)]


@one_loop
async def test_writes_of_a_failing_endpoint_remain(client: shmrpc.Client) -> None:
    image = built_at(client)
    with pytest.raises(ValueError, match="after it was written"):
        await client.invert(image, fail=True)
    assert (image == ~SOURCE).all()
    with pytest.raises(shmrpc.DeadlineExceeded):
        await client.with_options(timeout=3).invert_later(image, 600)  # The endpoint must begin before the deadline.
    half = SIZE // 2
    assert (image[:half] == SOURCE[:half]).all() and (image[half:] == ~SOURCE[half:]).all()
    with pytest.raises(shmrpc.InvalidArguments, match="parameter 'image'"):
        await client.invert(built_at(client, np.arange(10_000.0)))


@one_loop
async def test_writes_after_the_call_are_invisible_to_the_caller(client: shmrpc.Client) -> None:
    image = built_at(client)
    back = await client.invert_and_keep(image)
    assert (image == ~SOURCE).all()
    assert (back == image).all()
    kept = await client.sum_of_kept("written")
    assert kept == sum_of(image), "it keeps what was there at the end of the call"
    await client.overwrite("written", 7)
    assert (image == ~SOURCE).all(), "the caller does not see writes after the call"
    assert (await client.kept("written") == 7).all()
    assert (await client.echo(image) == ~SOURCE).all()
    with pytest.raises(ValueError, match="read-only"):
        (await client.echo(image))[0] = 1
    await client.let_go()


def test_an_ordinary_array_is_the_callers_own(sync_client: shmrpc.sync.Client) -> None:
    for size in (10, 5000, SIZE):
        image = numbered(2, size)
        assert sync_client.invert(image) == sum_of(image)
        assert (image == numbered(2, size)).all(), "it was copied, and the endpoint wrote into the copy"
        back = sync_client.invert_and_keep(image)
        assert (back == ~image).all()
    small = built_at(sync_client, SOURCE[:100])
    assert sync_client.invert(small) == sum_of(SOURCE[:100])
    view = bytearray(b"small")
    sync_client.put(memoryview(view), 0, b"S")
    assert view == b"small"


@one_loop
async def test_memory_goes_back_after_it_was_written(client: shmrpc.Client) -> None:
    for seed in range(5):
        image = built_at(client, numbered(seed, SIZE))
        await client.invert(image)
        await client.invert_in_thread(image)
        assert (image == numbered(seed, SIZE)).all()
    del image
    gc.collect()
    await client.add(1, 2)
    assert await eventually_in_loop(lambda: memory_of(client)[1] == 0)


@one_loop
async def test_wrong_uses_of_writable_are_rejected() -> None:
    service = shmrpc.Service("tested.wrong")
    with pytest.raises(TypeError, match="Writable is for parameters"):

        @service.endpoint
        def result() -> shmrpc.Writable[np.ndarray[Any, Any]]:
            return np.zeros(3)

    with pytest.raises(TypeError, match="Writable is for parameters"):

        @service.endpoint
        async def items(images: AsyncIterator[shmrpc.Writable[np.ndarray[Any, Any]]]) -> None: ...

    with pytest.raises(TypeError, match="parameter 'images' cannot be Writable: name each one"):

        @service.endpoint
        def rest(*images: shmrpc.Writable[np.ndarray[Any, Any]]) -> None: ...


@one_loop
async def test_within_one_loop_an_endpoint_writes_into_a_copy() -> None:
    async with shmrpc.testing.connect(array_service.service) as client:
        for image in (built_at(client), numbered(1, 10)):
            before = image.copy()
            assert await client.invert(image) == sum_of(before)
            await client.invert_later(image)
            assert (await client.invert_and_keep(image) == ~before).all()
            assert (image == before).all()
        await client.let_go()


def test_one_server_writes_for_several_clients(server: ServerProcess) -> None:
    with shmrpc.sync.connect(server.name) as one, shmrpc.sync.connect(server.name) as other:
        images = [built_at(one), built_at(other)]
        one.invert(images[0])
        assert (images[0] == ~SOURCE).all() and (images[1] == SOURCE).all()
        other.invert(images[0])
        assert (images[0] == ~SOURCE).all(), "to another connection's server it is an ordinary array"
        one.echo_later(None, 0.01)
        assert eventually(lambda: memory_of(other)[1] == images[1].nbytes // 4096 * 4096 + 4096)
