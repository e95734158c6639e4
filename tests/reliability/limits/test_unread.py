"""A server reads the requests of a client that leaves answers unread, up to a bound."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any

import numpy as np
import pytest

import shmrpc
from shmrpc import _core
from tests.helpers.server_process import eventually_in_loop
from tests.helpers.wire_client import CANCEL, RESULT, WireClient

#: Seconds after which a step counts as hung.
HANGS = 30.0
#: Unread frames and bytes after which a server reads no more requests of a client:
#: core/src/connection/channel/sending.rs.
BEHIND_BYTES, BEHIND_FRAMES = 512 << 10, 8192


class Unread:
    """A service whose answers fill a ring, and that counts its handlers."""

    def __init__(self) -> None:
        self.service = shmrpc.Service("tested.unread")
        self.answered = self.left = 0
        self.kept: list[Any] = []
        self.service.endpoint(self.items)
        self.service.endpoint(self.keep)
        self.service.endpoint(self.forget)
        self.service.endpoint(self.answer)
        self.service.endpoint(self.array)
        self.service.endpoint(self.answer_later)

    async def items(self, item: Any) -> AsyncIterator[Any]:
        try:
            while True:
                yield item
        finally:
            self.left += 1

    def keep(self, value: Any) -> None:
        self.kept.append(value)

    def forget(self) -> None:
        self.kept.clear()

    def answer(self, size: int) -> bytes:
        self.answered += 1
        return bytes(size)

    def array(self, size: int) -> Any:
        return np.zeros(size, np.uint8)

    async def answer_later(self, size: int) -> bytes:
        await asyncio.sleep(0)
        return self.answer(size)


def channel_of(server: shmrpc.Server) -> _core.Channel:
    """Return the channel to the only client."""
    peers: Any = server._dispatchers[0].listener.peers
    (peer,) = peers
    channel: _core.Channel = peer.channel
    return channel


def waits_for(server: shmrpc.Server) -> tuple[int, int]:
    """Return the number of frames that the client has not read, and their bytes."""
    _, _, count, size = channel_of(server).untaken()
    return count, size


def lent_by(server: shmrpc.Server) -> int:
    """Return the bytes of the server's loans to the client."""
    return channel_of(server).memory()[1]


async def becomes(true: Callable[[], bool]) -> None:
    assert await eventually_in_loop(true, HANGS)


@pytest.mark.parametrize("item", [bytes(1000), "in pieces" * 6000], ids=["whole", "in pieces"])
async def test_a_server_reads_the_close_of_a_stream_whose_thread_reads_no_more(
    item: bytes | str,
) -> None:
    """The thread's ring is full of items, which it reads only at its next call. Large items cannot be lent."""
    unread = Unread()
    client = shmrpc.sync.connect("tested.unread")
    async with shmrpc.serve(unread.service, max_memory=1 << 20) as server:
        await asyncio.to_thread(client.__enter__)
        try:
            all_that_it_lends = await asyncio.to_thread(client.array, 1 << 20)
            for streams in range(1, 4):
                items = client.items(item)
                assert await asyncio.to_thread(next, items) == item
                await becomes(lambda: waits_for(server)[0] > 0)
                await asyncio.to_thread(items.close)
                await becomes(lambda streams=streams: (unread.left, server.in_flight) == (streams, 0))  # type: ignore[misc]
                assert not channel_of(server).is_awaited(), "the channel waits for items of a closed stream"
            assert all_that_it_lends.size == lent_by(server)
            await asyncio.wait_for(server.drain(10 * HANGS), HANGS)
        finally:
            await asyncio.to_thread(client.close)


async def test_a_drain_does_not_wait_for_an_unread_release() -> None:
    unread = Unread()
    client, other = (shmrpc.sync.connect("tested.unread") for _ in range(2))
    async with shmrpc.serve(unread.service) as server:
        try:
            await asyncio.to_thread(client.__enter__)
            await asyncio.to_thread(client.keep, np.zeros(100_000, np.uint8))
            items = client.items(bytes(1000))
            assert await asyncio.to_thread(next, items) == bytes(1000)
            await becomes(lambda: waits_for(server)[0] > 0)
            channel = channel_of(server)
            await asyncio.to_thread(items.close)
            await becomes(lambda: server.in_flight == 0)
            await asyncio.to_thread(other.__enter__)
            await asyncio.to_thread(other.forget)
            assert channel.is_stalled() and not channel.is_awaited()
            await asyncio.wait_for(server.drain(10 * HANGS), HANGS)
        finally:
            await asyncio.to_thread(client.close)
            await asyncio.to_thread(other.close)


@pytest.mark.parametrize("size", [1000, 40_000])
async def test_cancelled_calls_leave_no_waiting_frames(size: int) -> None:
    """For any number of streams and answers, only the frames in the ring stay. Large items are lent."""
    unread = Unread()
    many = 60
    async with shmrpc.serve(unread.service) as server:
        with await asyncio.to_thread(WireClient, "tested.unread") as wire:
            wire.grow(wire.out.capacity)  # The helper sends all before it checks for room again.
            for n in range(many):
                stream, answer = wire.request("items", bytes(size)), wire.request("answer_later", 10_000)
                await becomes(lambda n=n: unread.answered == n + 1)  # type: ignore[misc]
                wire.part(CANCEL, answer)
                wire.part(CANCEL, stream)
                await becomes(lambda n=n: unread.left == n + 1)  # type: ignore[misc]
            await becomes(lambda: server.in_flight == 0)
            assert waits_for(server) == (0, 0)
            assert lent_by(server) > 0 or size == 1000

            def read_all() -> None:
                last = wire.request("answer", 1)
                while wire.receive(HANGS)[1] != last:
                    pass

            await asyncio.to_thread(read_all)
            await becomes(lambda: lent_by(server) == 0)


@pytest.mark.parametrize("size", [0, 1000, 100_000])
async def test_a_server_stops_reading_at_a_bound_and_loses_no_request(size: int) -> None:
    unread = Unread()
    many = {0: 12_000, 1000: 1500, 100_000: 30}[size]
    async with shmrpc.serve(unread.service, max_memory=1 << 20, max_frame=1 << 20) as server:
        with await asyncio.to_thread(WireClient, "tested.unread") as wire:
            for _ in range(many):
                wire.request("answer", size)

            def is_behind() -> bool:
                wire.push()
                count, waiting = waits_for(server)
                return count >= BEHIND_FRAMES or waiting >= BEHIND_BYTES

            await becomes(is_behind)
            taken = unread.answered
            for _ in range(20):
                assert is_behind()
                await asyncio.sleep(0.001)
            count, waiting = waits_for(server)
            assert unread.answered == taken < many
            assert count <= BEHIND_FRAMES and waiting < BEHIND_BYTES + size + 100

            def read_all() -> None:
                for _ in range(many):
                    opcode, _, _ = wire.receive(HANGS)
                    assert opcode == RESULT

            await asyncio.to_thread(read_all)
            assert unread.answered == many and waits_for(server) == (0, 0)
