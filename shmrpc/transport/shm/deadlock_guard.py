"""Detects deadlocks: a thread that waits for a service of its own event loop would wait forever."""

from __future__ import annotations

import asyncio
import weakref
from collections import Counter
from typing import Final

from shmrpc.errors import LocalProtocolError

#: Number of times that each loop serves a service.
_served: Final[weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, Counter[str]]] = weakref.WeakKeyDictionary()


def register(service: str) -> None:
    """Record that the running event loop serves a service, until a call of :func:`unregister` for each call."""
    _served.setdefault(asyncio.get_running_loop(), Counter())[service] += 1


def unregister(service: str, loop: asyncio.AbstractEventLoop) -> None:
    """Undo one :func:`register` for this service in ``loop``. Raises KeyError if the loop has registered none."""
    _served[loop][service] -= 1


def check_thread(service: str) -> None:
    """Raise LocalProtocolError if an event loop that serves this service runs in the calling thread."""
    try:
        loop = asyncio.get_running_loop()
    except RuntimeError:
        return
    if _served.get(loop, Counter())[service] > 0:
        raise LocalProtocolError(
            f"service {service!r} is served by the event loop of this thread: use "
            f"`async with shmrpc.connect({service!r})` here, or wait in another thread (asyncio.to_thread)"
        )
