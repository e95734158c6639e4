"""Shared memory grows with what is in use, up to max_memory, and goes back to the host when it is not."""

from __future__ import annotations

import errno
import gc
import re
import time
from typing import Any, cast

import numpy as np
import pytest

import shmrpc
from shmrpc import _core
from shmrpc.values import block_of
from tests.helpers.array_service import extents_open, extents_taken, memory_of, numbered, sum_of
from tests.helpers.loops import one_loop
from tests.helpers.server_process import ServerProcess, eventually

MIB = 1 << 20
LIMIT = 4 * MIB
MAX_FRAME = MIB

#: A server with little memory and small frames; so are its clients here.
OPTIONS = ("--max-memory", str(LIMIT), "--max-frame", str(MAX_FRAME))

#: Seconds after which memory that is free is given back: core/src/connection/sweeper.rs.
IDLE = 5.0


def unpolled_memory_of(client: shmrpc.sync.Client) -> tuple[int, int]:
    """Return the sizes of a client's memory, without polling for returned blocks."""
    reconnector: Any = client._reconnector
    return cast("tuple[int, int]", reconnector.session.connection.channel.memory())


def fill_up(client: shmrpc.Client | shmrpc.sync.Client, size: int = 256 << 10) -> list[Any]:
    """Arrays that take all of a client's memory."""
    held = []
    with pytest.raises(shmrpc.SharedMemoryError):
        while True:
            held.append(client.empty(size, "uint8"))
    return held


def test_memory_is_taken_as_it_is_needed_and_up_to_the_limit() -> None:
    with (
        ServerProcess("tests.helpers.array_service:service", *OPTIONS),
        shmrpc.sync.connect("tested.large", max_memory=LIMIT) as client,
    ):
        assert memory_of(client) == client.memory() == (0, 0)
        client.checksum(numbered(1, 3000))
        client.echo("no array " * 1000)
        assert memory_of(client) == client.memory() == (0, 0), "what is small needs none"
        client.checksum(numbered(1, 5000))
        assert memory_of(client)[0] == MIB
        sizes, held = [], []
        for _ in range(16):
            held.append(client.empty(256 << 10, "uint8"))
            sizes.append(memory_of(client))
        assert [size for size, _ in sizes] == [MIB] * 4 + [2 * MIB] * 4 + [4 * MIB] * 8
        assert [used for _, used in sizes] == [256 * 1024 * n for n in range(1, 17)]
        with pytest.raises(shmrpc.SharedMemoryError):
            client.empty(1, "uint8")
        held.clear()
        assert memory_of(client) == (LIMIT, 0)
        whole = client.empty(2 * MIB, "uint8")
        with pytest.raises(shmrpc.SharedMemoryError):
            client.buffer(2 * MIB + 1)
        del whole
        assert client.memory() == (0, 0), "the server has sent nothing large"


def test_an_error_says_what_was_asked_for_what_is_in_use_and_what_to_do() -> None:
    with (
        ServerProcess("tests.helpers.array_service:service", *OPTIONS),
        shmrpc.sync.connect("tested.large", max_memory=LIMIT) as client,
    ):
        held = client.empty(MIB, "uint8")
        with pytest.raises(shmrpc.SharedMemoryError) as caught:
            client.empty((1000, 1000, 4), "float64")
        text = str(caught.value)
        assert "cannot allocate 32000000 bytes" in text
        assert f"{held.nbytes} of the {LIMIT} bytes of this connection's max_memory are in use" in text
        assert re.search(r"[\d,]+ bytes of this host's memory are free", text)
        assert "release arrays that were sent or received, or raise max_memory= on both sides" in text
        assert "the size of /dev/shm does not limit them" in text
        assert caught.value.errno == errno.ENOMEM
        assert isinstance(caught.value, OSError)
        for name in ("built", "built_in_thread"):
            with pytest.raises(
                OSError, match=f"cannot allocate {LIMIT + 1} bytes: 0 of the {LIMIT} bytes .* are in use"
            ):
                client.call(name, 1, LIMIT + 1)
        with pytest.raises(shmrpc.SharedMemoryError):
            client.empty(1 << 61, "uint8")
        assert client.add(1, 2) == 3


@pytest.mark.parametrize("wrong", [0, -1, MIB - 1, (1 << 42) + 1])
def test_limits_that_cannot_be(wrong: int) -> None:
    with pytest.raises(ValueError, match=rf"max_memory: expected 1048576 to \d+ bytes, got {wrong}"):
        shmrpc.connect("tested.large", max_memory=wrong)
    with pytest.raises(ValueError, match="max_memory"):
        shmrpc.sync.connect("tested.large", max_memory=wrong)
    with pytest.raises(ValueError, match="max_memory"):
        shmrpc.serve(shmrpc.Service("tested.large"), max_memory=wrong)
    with pytest.raises(TypeError, match="max_memory: expected a number of bytes, got '1G'"):
        shmrpc.connect("tested.large", max_memory="1G")  # type: ignore[arg-type]


def test_each_connection_has_the_smaller_limit_of_its_sides() -> None:
    with ServerProcess("tests.helpers.array_service:service", *OPTIONS):
        with (
            shmrpc.sync.connect("tested.large", max_memory=LIMIT // 2) as one,
            shmrpc.sync.connect("tested.large", max_memory=2 * LIMIT) as other,
        ):
            full = fill_up(one), fill_up(other)
            assert (memory_of(one), memory_of(other)) == ((LIMIT // 2, LIMIT // 2), (LIMIT, LIMIT))
            held = [client.built(seed, MIB) for client, count in ((one, 2), (other, 4)) for seed in range(count)]
            assert (one.memory(), other.memory()) == ((LIMIT // 2, LIMIT // 2), (LIMIT, LIMIT))
            sums = [sum_of(numbered(seed, MIB)) for seed in range(4)]
            assert [sum_of(array) for array in held] == sums[:2] + sums
            del full


@one_loop
async def test_a_value_for_which_there_is_no_memory_travels_in_the_frame() -> None:
    with ServerProcess("tests.helpers.array_service:service", *OPTIONS):
        async with shmrpc.connect("tested.large", max_memory=LIMIT) as client:
            held = fill_up(client)
            for size in (5000, 100_000, 1_000_000):
                array = numbered(size, size)
                assert await client.checksum(array) == sum_of(array)
                assert await client.echo(array.tobytes()) == array.tobytes()
                assert await client.echo([array[::2].tobytes(), size]) == [array[::2].tobytes(), size]
                back = await client.echo(array)
                assert (back == array).all() and not back.flags.writeable
                del back
            assert memory_of(client) == (LIMIT, LIMIT)
            lent = [await client.built(seed, MIB) for seed in range(4)]
            assert (await client.memory())[1] == LIMIT
            copied = [await client.numbers(seed, 1_000_000) for seed in range(4)]
            assert not any(isinstance(block_of(array), _core.Buffer) for array in copied)
            assert await client.echo("text " * 150_000) == "text " * 150_000, "a large body, in pieces"
            for seed in range(4):
                assert (copied[seed] == numbered(seed, 1_000_000)).all()
                assert (lent[seed] == numbered(seed, MIB)).all()
            del held[0]
            held.append(client.empty(256 << 10, "uint8"))
            lent.pop()
            gc.collect()
            anew = await client.numbers(9, 1_000_000)
            assert isinstance(block_of(anew), _core.Buffer), "there is memory again"
            assert (anew == numbered(9, 1_000_000)).all()


@one_loop
async def test_a_value_that_fits_neither_the_memory_nor_a_frame_is_refused() -> None:
    with ServerProcess("tests.helpers.array_service:service", *OPTIONS):
        async with shmrpc.connect("tested.large", max_memory=LIMIT) as client:
            held = fill_up(client)
            large = numbered(1, MAX_FRAME)
            for value in (large, large.tobytes(), [large[: MAX_FRAME // 2], large[MAX_FRAME // 2 :]]):
                with pytest.raises(shmrpc.FrameTooLarge, match=rf"echo\(\): .* {MAX_FRAME}; .*max_frame="):
                    await client.echo(value)
                with pytest.raises(shmrpc.FrameTooLarge, match="max_frame="):
                    await client.notify("keep", "name", value)
                with pytest.raises(shmrpc.FrameTooLarge, match="max_frame="):
                    await client.sums([b"small", value])
                assert await client.add(1, 2) == 3
            with pytest.raises(shmrpc.FrameTooLarge, match=f"the result is too large: .* {MAX_FRAME}; .*max_frame="):
                await client.numbers(1, LIMIT + 1)
            with pytest.raises(shmrpc.FrameTooLarge, match="max_frame="):
                _ = [item async for item in client.arrays(2, LIMIT + 1)]
            del held
            gc.collect()
            back = await client.echo(large)
            assert (back == large).all()
            assert (await client.numbers(1, LIMIT) == numbered(1, LIMIT)).all()
            for body in ("text" * MAX_FRAME, [1.5] * MAX_FRAME):
                with pytest.raises(shmrpc.FrameTooLarge, match="max_frame="):
                    await client.echo(body)
            assert memory_of(client)[0] <= LIMIT and (await client.memory())[0] <= LIMIT


def test_memory_goes_back_to_the_host_when_it_is_idle_and_can_be_had_again() -> None:
    gc.collect()
    before = extents_open()
    with (
        ServerProcess("tests.helpers.array_service:service"),
        shmrpc.sync.connect("tested.large") as client,
        shmrpc.sync.connect("tested.large") as other,
    ):
        huge = client.empty(100 * MIB, "uint8")
        assert memory_of(client) == (100 * MIB, 100 * MIB), "it has an extent of its own"
        huge[:] = 7
        assert client.checksum(huge) == sum_of(huge)
        early = client.empty(50_000, "uint8")
        early[:] = numbered(1, 50_000)
        late = [client.empty(MIB, "uint8") for _ in range(5)]
        lent = client.built(1, 50_000, "kept")
        began = time.monotonic()  # Nothing has been idle since before.
        for each in (client, other):
            assert (each.numbers(2, 5 * MIB) == numbered(2, 5 * MIB)).all()
            assert (each.echo(numbered(2, 5 * MIB)) == numbered(2, 5 * MIB)).all()
        large, theirs, taken = memory_of(client)[0], client.memory()[0], extents_taken()
        assert large >= 105 * MIB
        if time.monotonic() - began < IDLE:  # Else some of it may have been given back already.
            assert theirs >= 6 * MIB
            assert taken >= large + theirs
        del huge, late
        for each in (client, other):
            each.echo_later(None, 0.01)
            assert each.checksum(numbered(3, MIB)) == sum_of(numbered(3, MIB))
        assert eventually(lambda: memory_of(client)[1] == 53_248, 30)
        sizes = memory_of(client)[0], memory_of(other)[0], other.memory()[0]
        if time.monotonic() - began < IDLE:
            assert sizes[0] == large and min(sizes) >= 5 * MIB, "what is free is kept for the next a while"

        def is_given_back() -> bool:  # Although no call is made, and so no call polls for returned blocks.
            return unpolled_memory_of(client)[0] < 70 * MIB and unpolled_memory_of(other) == (0, 0)

        assert eventually(is_given_back, 30)
        assert eventually(lambda: client.memory()[0] == MIB and other.memory() == (0, 0), 30)

        def is_the_hosts_again() -> bool:  # The client subtracts the memory first; the kernel frees it a moment later.
            return extents_taken() <= memory_of(client)[0] + MIB

        assert eventually(is_the_hosts_again, 30), "what either side set aside"
        assert client.kept_by_extents() <= extents_taken(), "also where memory is still mapped"
        assert (early == numbered(1, 50_000)).all() and (lent == numbered(1, 50_000)).all()
        assert client.sum_of_kept("kept") == sum_of(lent)
        for seed in range(3):
            for each in (client, other):
                again = each.empty(5 * MIB, "uint8")
                again[:] = numbered(seed, 5 * MIB)
                assert (each.echo(again) == again).all()
                assert (each.numbers(seed, 5 * MIB) == again).all()
                each.echo_later(None, 0.01)
    del again, early, lent
    gc.collect()
    assert eventually(lambda: extents_open() == before), "the thread that sweeps may hold a channel for a moment"


def test_memory_that_is_used_again_and_again_stays() -> None:
    with ServerProcess("tests.helpers.array_service:service"), shmrpc.sync.connect("tested.large") as client:
        for seed in range(50):
            array = client.empty(MIB, "uint8")
            array[:] = seed
            assert client.checksum(array) == sum_of(array)
        assert memory_of(client)[0] <= 2 * MIB
        for seed in range(50):
            assert client.checksum(np.full(MIB, seed, "uint8")) == sum_of(np.full(MIB, seed, "uint8"))
            assert len(client.numbers(seed, 500_000)) == 500_000
        assert memory_of(client)[0] <= 4 * MIB
        assert client.memory()[0] <= 2 * MIB
