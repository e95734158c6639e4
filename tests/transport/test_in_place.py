"""Values built in shared memory are never copied, other values once: both sides read the same bytes."""

from __future__ import annotations

import gc
import itertools
from typing import Any

import numpy as np
import pytest

import shmrpc
import shmrpc.testing
from shmrpc import _core
from shmrpc.values import block_of
from tests.helpers import array_service
from tests.helpers.array_service import address_of, memory_of, numbered, sum_of
from tests.helpers.loops import one_loop
from tests.helpers.server_process import ServerProcess

TARGET = "tests.helpers.array_service:service"
SHARED_SERVER = True

SIZE = 300_000

Client = Any


def built_at(client: Client, seed: int = 1, size: int = SIZE) -> array_service.Bytes:
    """Return an array in the client's shared memory."""
    array: array_service.Bytes = client.empty(size, "uint8")
    array[:] = numbered(seed, size)
    return array


async def test_an_array_built_in_place_comes_back_in_the_very_same_memory(client: shmrpc.Client) -> None:
    array = built_at(client)
    used = memory_of(client)
    for send in (client.echo, client.echo_later, client.echo_in_thread, client.with_options(timeout=30).echo):
        back = await send(array)
        assert address_of(back) == address_of(array)
        assert memory_of(client) == used, "nothing was allocated for it"
        assert (back == array).all() and not back.flags.writeable
    async for back in client.echo_each([array] * 5):
        assert address_of(back) == address_of(array)
    async for back in client.map("echo", [array] * 5, chunk=2):
        assert address_of(back) == address_of(array)
    async with client.batch() as batch:
        futures = [batch.echo(array), batch.echo([array])]
    assert address_of(await futures[0]) == address_of((await futures[1])[0]) == address_of(array)
    assert (await client.memory())[0] == 0, "the server needed no memory of its own"


@one_loop
async def test_parts_of_it_come_back_in_the_same_memory(client: shmrpc.Client) -> None:
    image = built_at(client).reshape(300, 1000)
    used = memory_of(client)
    parts = {
        "rows": image[100:200],
        "columns": image[:, 100:900],
        "one of three": image[::3, ::1],
        "backwards": image[::-1, ::-1],
        "transposed": image.T,
        "other dtype": image.view("uint32")[:, 1:],
        "some rows backwards": image[160:150:-1],
        "window": image[7:290, 3:997],
    }
    for name, part in parts.items():
        back = await client.echo(part)
        assert address_of(back) == address_of(part), name
        assert back.strides == part.strides and back.dtype == part.dtype and (back == part).all(), name
        assert memory_of(client) == used, name
    both = await client.echo({"a": image[:150], "b": [image[150:]]})
    assert [address_of(both["a"]), address_of(both["b"][0])] == [address_of(image), address_of(image[150:])]


@one_loop
async def test_few_elements_with_wide_gaps_are_not_copied_either(client: shmrpc.Client) -> None:
    image = built_at(client).reshape(300, 1000)
    back = await client.echo(image[:, ::20])
    assert address_of(back) == address_of(image[:, ::20])
    assert (back == image[:, ::20]).all()


@one_loop
async def test_a_buffer_is_built_in_place_too(client: shmrpc.Client) -> None:
    view = client.buffer(SIZE)
    assert (len(view), view.format, view.readonly) == (SIZE, "B", False)
    view[:] = numbered(3, SIZE).tobytes()
    back = await client.echo(view)
    assert isinstance(back, memoryview) and back.readonly and back == view
    view[0] ^= 255
    assert back == view, "it is the same memory"
    part = await client.echo(view[5000:100_000])
    assert part == view[5000:100_000]
    view[6000] ^= 255
    assert part == view[5000:100_000]
    assert len(client.buffer(0)) == 0
    array = client.empty((), "float64")
    array[()] = 1.5
    assert await client.echo(array) == 1.5
    assert client.empty((0, 7)).shape == (0, 7)


def test_the_same_without_a_loop(sync_client: shmrpc.sync.Client) -> None:
    array = built_at(sync_client)
    back = sync_client.echo(array)
    assert address_of(back) == address_of(array) and (back == array).all()
    part = array.reshape(300, 1000)[:, 100:900]
    assert address_of(sync_client.echo(part)) == address_of(part)
    for item in sync_client.echo_each([array, part]):
        assert address_of(item) in (address_of(array), address_of(part))
    view = sync_client.buffer(SIZE)
    back = sync_client.echo(view)
    view[-1] ^= 255
    assert back == view
    assert sync_client.memory()[0] == 0


def test_a_result_built_in_place_is_not_copied(sync_client: shmrpc.sync.Client) -> None:
    array = sync_client.built(1, SIZE, "mine")
    assert isinstance(block_of(array), _core.Buffer)
    assert (array == numbered(1, SIZE)).all()
    sync_client.overwrite("mine", 7)
    assert (array == 7).all(), "what the server writes in its array is seen here"
    sync_client.let_go()
    assert (array == 7).all()
    view = sync_client.built_in_thread(2, SIZE)
    assert view == numbered(2, SIZE).tobytes() and view.readonly
    assert memory_of(sync_client) == (0, 0), "a client that only receives needs no memory of its own"
    again = sync_client.kept("mine"), sync_client.echo(array)
    assert again[0] is None and address_of(again[1]) == address_of(array)


def test_later_writes_of_the_sender_show_in_arrays_built_in_place_and_in_no_copy(
    sync_client: shmrpc.sync.Client,
) -> None:
    array = built_at(sync_client)
    sync_client.keep("view", array)
    sync_client.keep_copy("copy", array)
    before = sum_of(array)
    array[:] = numbered(9, SIZE)
    assert sync_client.sum_of_kept("view") == sum_of(array) != before
    assert sync_client.sum_of_kept("copy") == before


def test_an_ordinary_array_is_copied_once(sync_client: shmrpc.sync.Client) -> None:
    array = numbered(1, SIZE)
    sync_client.keep("view", array)
    before = sum_of(array)
    array[:] = 0
    assert sync_client.sum_of_kept("view") == before, "the sender's array is its own"
    first, second = sync_client.kept("view"), sync_client.kept("view")
    assert isinstance(block_of(first), _core.Buffer)
    assert address_of(first) == address_of(second), "both are the block that it was copied into"
    assert memory_of(sync_client)[1] == -(-SIZE // 4096) * 4096
    assert sync_client.memory()[0] == 0


def test_a_received_array_is_sent_on_to_another_server_as_a_copy(sync_client: shmrpc.sync.Client) -> None:
    with ServerProcess("tests.helpers.services:service") as other, shmrpc.sync.connect(other.name) as elsewhere:
        array = built_at(sync_client)
        received = sync_client.built(5, SIZE)
        for value in (array, received, [array[::2], received[5:]]):
            back = elsewhere.echo(value)
            for one, source in zip(*(([x] if not isinstance(x, list) else x) for x in (back, value)), strict=True):
                assert (one == source).all() and address_of(one) != address_of(source)


@one_loop
async def test_two_clients_of_one_server_have_each_their_own_memory(server: ServerProcess) -> None:
    async with shmrpc.connect(server.name) as one, shmrpc.connect(server.name) as other:
        array = built_at(one)
        back = await other.echo(array)
        assert address_of(back) != address_of(array) and (back == array).all()
        await one.keep("of one", array)
        of_one = await other.kept("of one")
        assert (of_one == array).all()
        before = sum_of(of_one)
        array[:] = 3
        assert await one.sum_of_kept("of one") == sum_of(array)
        assert sum_of(of_one) == before, "by way of the server it is a copy"
        assert address_of(await one.kept("of one")) == address_of(array)


@one_loop
async def test_arrays_built_within_one_loop_are_ordinary_ones() -> None:
    async with shmrpc.testing.connect(array_service.service) as client:
        array = built_at(client)
        back = await client.echo(array)
        assert (back == array).all() and not back.flags.writeable
        array[:] = 0
        assert (back == numbered(1, SIZE)).all()
        assert (await client.built(4, SIZE) == numbered(4, SIZE)).all()
        view = client.buffer(100_000)
        view[:] = bytes(range(250)) * 400
        assert await client.checksum(view) == sum_of(view)
        assert len(client.buffer(0)) == 0


def test_an_empty_array_says_nothing_of_its_contents_but_has_its_shape(sync_client: shmrpc.sync.Client) -> None:
    for shape, dtype in (((10, 20, 3), "uint8"), (7, "complex128"), ((2, 0), "int32"), ((), ">f8"), ((5,), "S3")):
        array = sync_client.empty(shape, dtype)
        assert array.shape == (shape if isinstance(shape, tuple) else (shape,))
        assert array.dtype == np.dtype(dtype) and array.flags.writeable and array.flags.c_contiguous
        array[...] = np.ones(array.shape, "u1").astype(dtype)
        assert (sync_client.echo(array) == array).all()
    assert sync_client.empty(3).dtype == np.dtype("float64")
    with pytest.raises(TypeError):
        sync_client.empty(3, "no such dtype")


def test_arrays_in_use_never_share_memory(sync_client: shmrpc.sync.Client) -> None:
    held = [built_at(sync_client, seed, size) for seed, size in enumerate([1, 4096, 4097, 100_000, 1_000_000] * 4)]
    held += [sync_client.built(seed, 50_000) for seed in range(100, 110)]
    spans = sorted((address_of(array), address_of(array) + array.nbytes) for array in held)
    assert all(end <= begin for (_, end), (begin, _) in itertools.pairwise(spans))
    for seed, array in enumerate(held[:20]):
        assert (array == numbered(seed, len(array))).all()
    for seed, array in enumerate(held[20:], 100):
        assert (array == numbered(seed, len(array))).all()
    del held, array
    gc.collect()
    assert memory_of(sync_client)[1] == 0
