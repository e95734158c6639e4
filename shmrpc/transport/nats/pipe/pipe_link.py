"""The connection to NATS, as the pipes that go through it use it."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, Protocol, TypeVar

from shmrpc.transport.nats.pipe.window_budget import WindowBudget

_P_contra = TypeVar("_P_contra", contravariant=True)


class PipeLink(Protocol[_P_contra]):
    """Connection to NATS that pipes share."""

    #: Bytes of a large frame that go into one message.
    piece: int
    #: Seconds within which a dead peer is noticed.
    heartbeat: float
    is_open: bool
    #: Distributes the bytes that may be in flight to this process.
    budget: WindowBudget

    def add(self, pipe: _P_contra, /) -> tuple[str, str]:
        """Register a pipe until :meth:`remove`; return the subject of its messages, and that of its notices."""
        ...

    def remove(self, pipe: _P_contra, /) -> None:
        """Unregister a closed pipe."""
        ...

    def schedule_send(self, pipe: _P_contra, /) -> None:
        """Have the messages of a pipe sent soon. Does not wait."""
        ...

    def run(self, work: Coroutine[Any, Any, Any], /) -> asyncio.Task[Any]:
        """Run a coroutine in a task that is never cancelled."""
        ...

    async def flush(self) -> bool:
        """Wait until NATS has processed all sent messages. Returns False if it has not within 2 s, or refuses."""
        ...

    def describe_loop_stall(self) -> str:
        """Return a clause for a message that reports a recent stall of the event loop; "" if there was none."""
        ...

    def describe_loss(self) -> str:
        """Return the probable reason for lost messages."""
        ...

    async def wait_closed(self) -> None:
        """Wait until the link is closed, if no other user needs it."""
        ...
