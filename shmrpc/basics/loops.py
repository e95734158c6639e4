"""The event loop in which the caller runs."""

from __future__ import annotations

import asyncio

from shmrpc.errors import LocalProtocolError


def running_loop() -> asyncio.AbstractEventLoop:
    """Return the running event loop. Raises LocalProtocolError if no loop of asyncio runs here, as under trio."""
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        raise LocalProtocolError(
            "no asyncio event loop runs in this thread: use shmrpc.sync, under trio by trio.to_thread.run_sync"
        ) from None
