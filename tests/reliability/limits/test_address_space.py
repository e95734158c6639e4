"""No address space left to map a peer's loan: that call fails with the name of the limit; all else goes on."""

from __future__ import annotations

import contextlib
import gc
import os
import resource
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import shmrpc
from shmrpc import _core
from tests.helpers.array_service import extents_mapped, memory_of, sum_of
from tests.helpers.server_process import ServerProcess, eventually
from tests.helpers.time_bound import bounded

TARGET = "tests.helpers.array_service:service"
SHARED_SERVER = True

MIB = 1 << 20
#: Bytes of a loan, whose extent is as large at least; and of the address space left to a process, which is less.
LARGE, ROOM = 32 * MIB, 16 * MIB
#: The end of the error text, after the name of the endpoint.
WORDS = r"cannot be read: the process to receive it cannot map the [0-9]+ bytes of extent [0-9]+ .*ulimit -v"


@pytest.fixture(autouse=True)
def in_time() -> Iterator[None]:
    with bounded():
        yield


@contextlib.contextmanager
def little_room(pid: int, room: int = ROOM) -> Iterator[None]:
    """Limit a process to little more address space than it has, without extents of earlier tests."""
    gc.collect()
    assert eventually(lambda: extents_mapped() == 0)
    with limited(pid, room):
        yield


@contextlib.contextmanager
def limited(pid: int, room: int = ROOM) -> Iterator[None]:
    """Limit a process to little more address space than it has."""
    before = resource.prlimit(pid, resource.RLIMIT_AS)
    taken = int(Path(f"/proc/{pid}/statm").read_text().split()[0]) * resource.getpagesize()
    resource.prlimit(pid, resource.RLIMIT_AS, (taken + room, before[1]))
    try:
        yield
    finally:
        resource.prlimit(pid, resource.RLIMIT_AS, before)


Call = Callable[[shmrpc.sync.Client, Any], Any]

ARRAY = np.ones(LARGE, "u1")

CALLS: dict[str, Call] = {
    "a plain function": lambda client, array: client.checksum(array),
    "a coroutine": lambda client, array: client.echo_later(array),
    "in a thread": lambda client, array: client.echo_in_thread(array),
    "by keyword": lambda client, array: client.checksum(value=array),
    "under a deadline": lambda client, array: client.with_options(timeout=600).checksum(array),
    "with metadata": lambda client, array: client.with_options(metadata={"a": "b"}).checksum(array),
    "to be written": lambda client, array: client.invert(array),
    "a text": lambda client, array: client.echo("x" * LARGE),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", CALLS)
def test_a_server_without_address_space_refuses_that_call_and_no_other(shared_server: ServerProcess, name: str) -> None:
    with shmrpc.sync.connect("tested.large") as client, shmrpc.sync.connect("tested.large") as other:
        with little_room(shared_server.pid):
            for _ in range(2):
                with pytest.raises(shmrpc.Overloaded, match=WORDS):
                    CALLS[name](client, ARRAY)
                assert client.add(1, 2) == other.add(1, 2) == 3
            # The server returns the loan.
            assert eventually(lambda: client.add(1, 2) == 3 and memory_of(client)[1] == 0)
        assert client.checksum(ARRAY) == other.checksum(ARRAY), "on the same connection, once there is room"


def test_a_readable_loan_that_cannot_be_mapped_writable_fails_that_call(
    shared_server: ServerProcess,
) -> None:
    with shmrpc.sync.connect("tested.large") as client:
        with little_room(shared_server.pid, LARGE + ROOM):
            array = client.empty(LARGE, "u1")
            array[:] = 1
            assert client.checksum(array) == sum_of(ARRAY)
            for ask in (client.invert, client.invert_in_thread):
                with pytest.raises(shmrpc.Overloaded, match="'image' cannot be lent for writing: .*cannot map the "):
                    ask(array)
            assert client.add(1, 2) == 3
        assert client.invert(array) == sum_of(ARRAY)


def test_the_error_of_a_view_that_cannot_be_mapped_is_made_without_the_lock_of_its_buffer(
    shared_server: ServerProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    with shmrpc.sync.connect("tested.large") as client:
        block: Any = client.buffer(LARGE).obj
        seen: list[bool] = []

        def note(error: Exception, *_: object) -> None:
            seen.append(block.released)

        monkeypatch.setattr(_core.Unmapped, "__init__", note)
        for view in (block.private, block.shared):
            with limited(os.getpid()), pytest.raises(_core.Unmapped):
                view()
        assert seen == [False, False]


async def test_a_stream_item_that_a_server_cannot_map_fails_its_call(shared_server: ServerProcess) -> None:
    async def arrays() -> AsyncIterator[Any]:
        yield np.zeros(10, "u1")
        yield ARRAY

    async with shmrpc.connect("tested.large") as client:
        with little_room(shared_server.pid):
            with pytest.raises(shmrpc.Overloaded, match="an item of 'items': the process to receive it cannot map"):
                await client.sums(arrays())
            assert await client.add(1, 2) == 3
        assert len(await client.sums(arrays())) == 2


#: Endpoints with large results, and their arguments: an array, a text, and two items of a stream.
ANSWERS: dict[str, tuple[Any, ...]] = {"numbers": (1, LARGE), "text": (LARGE,), "blobs": (2, LARGE)}


@pytest.mark.slow
@pytest.mark.parametrize("name", ANSWERS)
async def test_a_loop_client_without_address_space_loses_only_the_large_answer(
    shared_server: ServerProcess, name: str
) -> None:
    async with shmrpc.connect("tested.large") as client:

        async def ask() -> int:
            if name == "blobs":
                return [len(item) async for item in client.blobs(*ANSWERS[name])][-1]
            return len(await client.call(name, *ANSWERS[name]))

        with little_room(os.getpid()):
            with pytest.raises(shmrpc.SharedMemoryError, match=WORDS):
                await ask()
            assert await client.add(1, 2) == 3
        assert await ask() == LARGE


@pytest.mark.slow
@pytest.mark.parametrize("name", ANSWERS)
def test_a_thread_client_without_address_space_loses_only_the_large_answer(
    shared_server: ServerProcess, name: str
) -> None:
    with shmrpc.sync.connect("tested.large") as client:

        def ask() -> int:
            if name == "blobs":
                return [len(item) for item in client.blobs(*ANSWERS[name])][-1]
            return len(client.call(name, *ANSWERS[name]))

        with little_room(os.getpid()):
            with pytest.raises(shmrpc.SharedMemoryError, match=WORDS):
                ask()
            assert client.add(1, 2) == 3
        assert ask() == LARGE


def test_a_frame_in_pieces_without_memory_for_it_fails_its_call_and_no_other(shared_server: ServerProcess) -> None:
    """A value that the client has no memory to lend travels through the ring."""
    with shmrpc.sync.connect("tested.large", max_memory=8 * MIB) as client:
        with little_room(shared_server.pid):
            for _ in range(2):
                with pytest.raises(shmrpc.Overloaded, match="the process to receive it has no memory for the [0-9]+ b"):
                    client.checksum(ARRAY)
                assert client.add(1, 2) == 3
        assert client.checksum(ARRAY) == sum_of(ARRAY), "on the same connection, once there is room"


#: The error of a process without addresses for a connection, and of the client of such a server.
NO_CONNECTION = r"no memory left for a connection: process {} cannot map more \(it may have .*: RLIMIT_AS\).*ulimit -v"


@pytest.mark.parametrize("room", [0, 64 << 10, 128 << 10])
def test_a_client_without_room_for_a_connection_names_its_own_limit(shared_server: ServerProcess, room: int) -> None:
    with shmrpc.sync.connect("tested.large") as client:  # Imports of a first connection need address space too.
        assert client.add(1, 2) == 3
    with little_room(os.getpid(), room):
        with pytest.raises(shmrpc.SharedMemoryError, match=NO_CONNECTION.format(os.getpid())):
            shmrpc.sync.connect("tested.large", timeout=30).__enter__()
    with shmrpc.sync.connect("tested.large") as client:
        assert client.add(1, 2) == 3


@pytest.mark.parametrize("room", [0, 64 << 10, 128 << 10])
def test_a_server_without_room_for_a_connection_names_its_own_limit(shared_server: ServerProcess, room: int) -> None:
    with shmrpc.sync.connect("tested.large") as client:
        assert client.add(1, 2) == 3
        with little_room(shared_server.pid, room):
            with pytest.raises(shmrpc.ServiceUnavailable, match=NO_CONNECTION.format(shared_server.pid)):
                shmrpc.sync.connect("tested.large", timeout=30).__enter__()
            assert client.add(1, 2) == 3
        with shmrpc.sync.connect("tested.large") as other:
            assert other.add(1, 2) == 3
