"""The transport within one event loop: clients that wait for a server."""

from __future__ import annotations

import asyncio

import pytest

import shmrpc
from shmrpc.transport.memory import MemoryRegistry


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
