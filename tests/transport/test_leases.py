"""Received memory stays unchanged while any view refers to it, cannot be written, and is returned afterwards."""

from __future__ import annotations

import asyncio
import gc
import signal
from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import shmrpc
from shmrpc.values import block_of
from tests.helpers import array_service
from tests.helpers.array_service import memory_of, numbered, sum_of
from tests.helpers.loops import one_loop
from tests.helpers.server_process import Script, ServerProcess, eventually_in_loop
from tests.helpers.stopped_processes import stopped, wait_for_answer

TARGET = "tests.helpers.array_service:service"
SHARED_SERVER = True

SIZE = 300_000
#: The size of the block for so many bytes.
TAKEN = 303_104


async def unused_by_server(client: shmrpc.Client) -> bool:
    """Return True once the client has returned all blocks that the server lent it, within a generous time."""
    for _ in range(500):
        if (await client.memory())[1] == 0:
            return True
        await client.echo_later(None, 0.01)
    return False


async def unused_by_client(client: shmrpc.Client) -> bool:
    """Return True once the server has returned all blocks that the client lent it."""
    return await eventually_in_loop(lambda: memory_of(client)[1] == 0)


async def churn(client: shmrpc.Client) -> None:
    """Lets the server use all memory that it takes for free, and this side too."""
    for seed in range(50, 60):
        assert (await client.built(seed, SIZE) == numbered(seed, SIZE)).all()
        array = client.empty(SIZE, "uint8")
        array[:] = numbered(seed, SIZE)
        assert await client.checksum(array) == sum_of(array)


@one_loop
async def test_received_memory_cannot_be_written(client: shmrpc.Client) -> None:
    sent = client.empty(SIZE, "uint8")
    sent[:] = numbered(1, SIZE)
    for array in (await client.built(1, SIZE), await client.numbers(1, SIZE), await client.echo(sent)):
        before = sum_of(array)
        assert not array.flags.writeable
        with pytest.raises(ValueError, match="read-only"):
            array[0] = 1
        with pytest.raises(ValueError, match="WRITEABLE"):
            array.flags.writeable = True
        with pytest.raises(ValueError, match="read-only"):
            np.add(array, 1, out=array)
        with pytest.raises(ValueError, match="WRITEABLE"):
            array[5:].view("uint8").flags.writeable = True
        with pytest.raises(TypeError, match="read-only"):
            memoryview(block_of(array))[0] = 1  # type: ignore[arg-type]
        assert sum_of(array) == before
    view = await client.echo(memoryview(bytes(SIZE)))
    with pytest.raises(TypeError, match="read-only"):
        view[0] = 1
    copy = (await client.built(1, SIZE)).copy()
    copy[0] += 1
    assert isinstance(await client.echo(bytearray(SIZE)), bytearray), "which is a copy, and can"


@one_loop
async def test_a_process_that_writes_through_an_address_all_the_same_dies_alone(client: shmrpc.Client) -> None:
    with Script("""
        import ctypes, resource, shmrpc
        from tests.helpers.array_service import address_of
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        with shmrpc.sync.connect("tested.large") as client:
            array = client.built(1, 300_000, "mine")
            print("writing", flush=True)
            ctypes.memset(address_of(array), 0, 1)
            print("wrote", flush=True)
    """) as writing:
        assert writing.line() == "writing"
        assert writing.line() == ""
        assert writing.process.wait(60) == -signal.SIGSEGV
    assert await client.sum_of_kept("mine") == sum_of(numbered(1, SIZE))


VIEWS: dict[str, Callable[[Any], Any]] = {
    "itself": lambda array: array,
    "a slice": lambda array: array[1000:5000],
    "a slice of a strided slice": lambda array: array[10:][::2][5:100],
    "one element as an array": lambda array: array[7:8].reshape(()),
    "another shape": lambda array: array.reshape(300, 1000)[::-1].T,
    "another dtype": lambda array: array.view("uint32")[1:],
    "a memoryview": lambda array: memoryview(array)[100:],
    "an array over a memoryview": lambda array: np.frombuffer(memoryview(array)[8:], "uint64"),
    "an Arrow buffer": lambda array: pa.py_buffer(array).slice(100),
    "in a list": lambda array: [array[3:9]],
    "broadcast": lambda array: np.broadcast_to(array[:9], (5, 9)),
}


def sum_of_view(view: Any) -> int:
    return sum_of(np.array(view[0]) if isinstance(view, list) else view)


@pytest.mark.own_server
async def test_any_view_keeps_the_memory_and_the_last_one_gives_it_back(client: shmrpc.Client) -> None:
    assert await client.memory() == (0, 0), "there is none before it is needed"
    for name, look in VIEWS.items():
        array = await client.built(1, SIZE)
        view = look(array)
        before = sum_of_view(view)
        del array
        gc.collect()
        await churn(client)
        assert (await client.memory())[1] == TAKEN, name
        assert sum_of_view(view) == before, name
        del view
        assert await unused_by_server(client), name
    assert await unused_by_client(client)


@one_loop
async def test_arrays_that_the_server_keeps_stay_lent_too(client: shmrpc.Client) -> None:
    array = client.empty(SIZE, "uint8")
    array[:] = numbered(1, SIZE)
    before, part = sum_of(array), sum_of(array[10:][::2])
    await client.keep("whole", array)
    await client.keep_part("part", array)
    await client.keep("ordinary", numbered(2, SIZE))
    del array
    await churn(client)
    assert await eventually_in_loop(lambda: memory_of(client)[1] == 2 * TAKEN)
    sums = [await client.sum_of_kept(name) for name in ("whole", "part", "ordinary")]
    assert sums == [before, part, sum_of(numbered(2, SIZE))]
    await client.keep("whole", None)
    await churn(client)
    assert memory_of(client)[1] == 2 * TAKEN, "a part of it is still kept"
    assert await client.sum_of_kept("part") == part
    await client.let_go()
    assert await unused_by_client(client)


@one_loop
async def test_memory_that_goes_to_and_fro_is_free_when_neither_side_has_it(client: shmrpc.Client) -> None:
    array: Any = client.empty(SIZE, "uint8")
    array[:] = numbered(1, SIZE)
    for _ in range(20):
        array = await client.echo(array)
        await client.keep("theirs", array)
        array = await client.kept("theirs")
    assert memory_of(client)[1] == TAKEN
    await client.let_go()
    await churn(client)
    assert sum_of(array) == sum_of(numbered(1, SIZE)), "the server has let go of it, this side has not"
    await client.keep("theirs", array)
    del array
    await churn(client)
    assert await client.sum_of_kept("theirs") == sum_of(numbered(1, SIZE)), "and the other way round"
    assert memory_of(client)[1] == TAKEN
    await client.let_go()
    assert await unused_by_client(client)
    assert await unused_by_server(client)


@one_loop
async def test_results_of_handlers_that_were_suspended_are_let_go_of(client: shmrpc.Client) -> None:
    for _ in range(5):
        await client.echo_later(numbered(1, SIZE))
        await client.echo_in_thread(numbered(1, SIZE))
        await client.built_in_thread(1, SIZE)
    assert await unused_by_client(client), "without a garbage collection at the server"
    assert await unused_by_server(client)


async def test_replies_without_a_waiting_caller_return_their_memory(
    server: ServerProcess, client: shmrpc.Client
) -> None:
    for _ in range(10):
        with pytest.raises(shmrpc.DeadlineExceeded):
            await client.with_options(timeout=0.01).echo_later(numbered(1, SIZE), 0.05)
        call = asyncio.create_task(client.echo_later(numbered(1, SIZE), 600))
        await asyncio.sleep(0.01)
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        with stopped(server.pid):  # The server does not answer before the call waits.
            answered = asyncio.create_task(client.echo_later(numbered(1, SIZE)))
            await asyncio.sleep(0)
        wait_for_answer(client)
        assert answered.cancel()
        with pytest.raises(asyncio.CancelledError):
            await answered
        with pytest.raises(TypeError):
            await client.sums([numbered(1, SIZE), 5])
    await client.echo_later(None, 0.1)
    assert await unused_by_client(client)
    assert await unused_by_server(client)


@one_loop
async def test_requests_that_fail_give_their_memory_back(client: shmrpc.Client) -> None:
    for _ in range(5):
        with pytest.raises(shmrpc.InvalidArguments):
            await client.add(numbered(1, SIZE), 1)
        with pytest.raises(shmrpc.InvalidArguments):
            await client.inverted(np.zeros(SIZE))
        with pytest.raises(TypeError):
            await client.checksum([numbered(1, SIZE)])
        with pytest.raises(shmrpc.EncodeError):
            await client.echo([numbered(1, SIZE), object()])
    await client.notify("add", numbered(1, SIZE), 1)
    gc.collect()
    assert await unused_by_client(client)
    assert await unused_by_server(client)


@one_loop
async def test_a_lease_is_ended_early(client: shmrpc.Client) -> None:
    array = await client.built(1, SIZE)
    lease = shmrpc.leased(array)
    assert (await client.memory())[1] == TAKEN
    lease.release()
    assert await unused_by_server(client), "though the array is still there"
    lease.release()
    shmrpc.leased(array).release()
    assert (await client.memory())[1] == 0, "it is given back once"
    assert len(array[5:].tolist()) == SIZE - 5, "what it shows is unknown, but looking does no harm"
    del array
    gc.collect()
    await churn(client)
    assert await unused_by_server(client)


@one_loop
async def test_a_lease_is_ended_at_the_end_of_a_block(client: shmrpc.Client) -> None:
    with shmrpc.leased(await client.built(1, SIZE)) as array:
        assert (await client.memory())[1] == TAKEN
        assert sum_of(array) == sum_of(numbered(1, SIZE))
    assert await unused_by_server(client)
    with pytest.raises(ZeroDivisionError):
        with shmrpc.leased(array := await client.built(2, SIZE)):
            _ = 1 // (int(array[0]) * 0)
    assert await unused_by_server(client)
    for seed in range(20):
        with shmrpc.leased(await client.built(seed, SIZE)) as array:
            assert (array == numbered(seed, SIZE)).all()
    assert (await client.memory())[0] <= 1 << 20, "each took the place of the last one"


@one_loop
async def test_a_lease_of_each_kind_and_of_what_lies_in_no_shared_memory(client: shmrpc.Client) -> None:
    received = {
        "a part": (await client.built(1, SIZE))[100:][::3],
        "memoryview": await client.built_in_thread(1, SIZE),
        "Arrow buffer": await client.keep("arrow", pa.py_buffer(bytes(SIZE))) or await client.kept("arrow"),
    }
    await client.let_go()
    used = (await client.memory())[1]
    for name, value in received.items():
        with shmrpc.leased(value) as same:
            assert same is value, name
    assert used > 0
    assert await unused_by_server(client)
    for small in (await client.built(1, 100), await client.echo(memoryview(b"small")), numbered(1, SIZE)):
        before = sum_of(small)
        with shmrpc.leased(small) as same:
            assert same is small
        assert sum_of(small) == before


@pytest.mark.parametrize("wrong", [5, "text", None, [1], object()], ids=lambda value: type(value).__name__)
def test_only_memory_can_be_leased(wrong: object) -> None:
    with pytest.raises(TypeError, match=f"expected an array.*, got {type(wrong).__name__}"):
        shmrpc.leased(wrong)


@one_loop
async def test_one_of_two_leases_of_a_block_keeps_it(client: shmrpc.Client) -> None:
    await client.built(1, SIZE, "mine")
    one, other = await client.kept("mine"), await client.kept("mine")
    assert array_service.address_of(one) == array_service.address_of(other)
    await client.let_go()
    shmrpc.leased(one).release()
    del one
    await churn(client)
    assert (other == numbered(1, SIZE)).all()
    assert (await client.memory())[1] == TAKEN
    del other
    assert await unused_by_server(client)


@one_loop
async def test_more_leases_end_at_once_than_the_ring_has_room_for(client: shmrpc.Client) -> None:
    number, size = 3000, 4096
    await client.keep("them", [numbered(seed, size) for seed in range(number)])
    assert await eventually_in_loop(lambda: memory_of(client)[1] == number * size)
    held = [item async for item in client.arrays(number, size)]
    assert (await client.memory())[1] == number * size
    await client.let_go()
    assert await client.add(1, 2) == 3
    assert await unused_by_client(client)
    held.clear()
    assert await client.add(1, 2) == 3
    assert await unused_by_server(client)


async def test_leases_end_while_the_server_does_not_look(client: shmrpc.Client, server: ServerProcess) -> None:
    held = [item async for item in client.arrays(3000, 4096)]
    kept = held[::600]
    with stopped(server.pid):
        held.clear()
        calls = [asyncio.create_task(client.echo(array)) for array in kept]
        await asyncio.sleep(0.05)
    assert [sum_of(array) for array in await asyncio.gather(*calls)] == [sum_of(array) for array in kept]
    calls.clear()
    assert (await client.memory())[1] == len(kept) * 4096
    kept.clear()
    gc.collect()
    assert await unused_by_server(client)


def test_leases_end_while_the_server_does_not_look_and_there_is_no_loop(
    sync_client: shmrpc.sync.Client, server: ServerProcess
) -> None:
    held = list(sync_client.arrays(3000, 4096))
    with stopped(server.pid):
        held.clear()
    assert sync_client.add(1, 2) == 3
    sync_client.echo_later(None, 0.01)
    assert sync_client.memory()[1] == 0
