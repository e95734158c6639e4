"""The transport within one event loop: clients that wait for a server."""

from __future__ import annotations

import asyncio

import pytest

import shmrpc
from shmrpc.transport.connection_options import ConnectionOptions
from shmrpc.transport.listener import Offer
from shmrpc.transport.memory import MemoryRegistry, MemoryTransport


async def test_a_client_that_no_longer_waits_for_a_server_leaves_nothing_behind() -> None:
    registry = MemoryRegistry()
    with pytest.raises(shmrpc.ServiceUnavailable):
        await registry.connect("missing", 0, lambda reason: None, max_frame=1 << 20)
    cancelled = asyncio.ensure_future(registry.connect("missing", None, lambda reason: None, max_frame=1 << 20))
    await asyncio.sleep(0)
    assert len(registry._waiters) == 1
    cancelled.cancel()
    with pytest.raises(asyncio.CancelledError):
        await cancelled
    assert not registry._waiters


async def test_a_client_that_waits_notes_the_state_of_the_server() -> None:
    registry, notes = MemoryRegistry(), list[str]()
    inbox = MemoryTransport(lambda: registry).inbox(ConnectionOptions())(lambda: None)

    async def notes_are(*expected: str) -> None:
        await asyncio.sleep(0)
        await asyncio.sleep(0)  # A client that is woken checks in the next turn.
        assert notes == list(expected)

    waiting = asyncio.ensure_future(registry.connect("tested", None, notes.append, max_frame=1 << 20))
    await notes_are("")
    listener = inbox.listen(Offer("tested", [], {}), lambda: None, claim=True)
    registry.wake_waiters()
    await notes_are("", "the server is starting")
    listener.close("the test ends")
    await notes_are("", "the server is starting", "")
    waiting.cancel()
    await asyncio.wait([waiting])
