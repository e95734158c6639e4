"""The roles of a victim until it dies: a server, or a caller."""

from __future__ import annotations

import asyncio
import os
import threading
import traceback
from collections.abc import Callable, Coroutine
from typing import Any, Final

import uvloop

import shmrpc
from tests.helpers import crash_points
from tests.reliability.deaths import conversations, victims
from tests.reliability.deaths.victims import Order

#: Seconds that calls have to end when a victim drains: no call that sleeps ends in time.
GRACE: Final = 0.02


def follow(order: Order, obituary: int) -> None:
    """Follow an order, and end the process if it has not died of it."""
    os.environ["XDG_RUNTIME_DIR"] = order.runtime
    lines = crash_points.Lines()
    if order.how == "record":
        lines.record()
    elif order.place is not None and order.how == "lines":
        lines.die_at(order.place, obituary)
    elif order.place is not None:
        crash_points.die_at_point(*order.place, obituary)

    def finish() -> None:
        if order.how == "record":
            victims.report("lines", list(lines.reached))
            victims.report("points", crash_points.passed())
        os._exit(0)

    try:
        if order.side == "server":
            _run(order, _serve(finish))
        elif order.side == "client":
            _run(order, _call(order))
        else:
            _call_in_threads(order)
    except BaseException:
        victims.report("failed", traceback.format_exc())
        os._exit(1)
    finish()


def _run(order: Order, main: Coroutine[Any, Any, None]) -> None:
    uvloop.run(main) if order.uvloop else asyncio.run(main)


async def _serve(finish: Callable[[], None]) -> None:
    """Serve until a client asks for an end of some kind. With "exit" no line of the end is executed."""
    asked: asyncio.Queue[str] = asyncio.Queue()
    conversations.leaving.append(asked.put_nowait)
    server = conversations.serve()
    async with server:
        victims.report("serving")
        how = await asked.get()
        if how == "exit":
            finish()
        if how == "drain":
            await server.drain(GRACE)


async def _call(order: Order) -> None:
    for _ in range(order.rounds):
        async with conversations.connect(timeout=40) as client:
            waiting = asyncio.create_task(client.sleep(conversations.LONG))
            await conversations.CONVERSATIONS[order.conversation](client)
            if order.conversation == "drain":
                await client.leave("drain")
                await asyncio.wait([waiting])  # The server ends, and closes the call.
        await asyncio.wait([waiting])
        assert isinstance(waiting.exception(), shmrpc.ConnectionLost)


def _call_in_threads(order: Order) -> None:
    for _ in range(order.rounds):
        with conversations.connect_in_threads(timeout=40) as client:
            waiting = _Waiting(client)
            waiting.start()
            conversations.CONVERSATIONS_IN_THREADS[order.conversation](client)
            if order.conversation == "drain":
                client.leave("drain")
                waiting.join()
        waiting.join()
        assert type(waiting.error) is shmrpc.ConnectionLost


class _Waiting(threading.Thread):
    """A thread with a call that does not end."""

    def __init__(self, client: shmrpc.sync.Client) -> None:
        super().__init__()
        self._client = client
        self.error: Exception | None = None

    def run(self) -> None:
        """Make the call."""
        try:
            self._client.sleep(conversations.LONG)
        except Exception as error:
            self.error = error
