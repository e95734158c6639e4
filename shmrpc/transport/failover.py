"""Failover between several addresses: a client uses the first with a server, and returns to a better one later."""

from __future__ import annotations

import asyncio
import time
import weakref
from collections.abc import Callable, Sequence
from typing import Final

from shmrpc.errors import ConnectionLost, LocalProtocolError, RemoteProtocolError, ServiceUnavailable
from shmrpc.transport.connection import Connection, Dial

#: Seconds between two checks for a server at a better address.
_POLL_INTERVAL: Final = 0.25
#: Shortest and longest pause, in seconds, between two rounds while no address has a server.
_FIRST_PAUSE: Final = 0.005
_LONGEST_PAUSE: Final = 0.1

#: Errors after which the next address is tried.
_TRY_NEXT_ADDRESS: Final = (ServiceUnavailable, ConnectionLost, RemoteProtocolError, LocalProtocolError)


def dial_first(service: str, dials: Sequence[Dial]) -> Dial:
    """Return a function that connects to the first address with a server.

    As soon as a better address has a server, the client is asked to reconnect. The function tries each address at least
    once, and raises ServiceUnavailable after its timeout; None: never. Errors other than ServiceUnavailable,
    ConnectionLost and the two protocol errors are raised at once.
    """

    async def connect(timeout: float | None, note: Callable[[str], None]) -> Connection:
        began, pause = time.monotonic(), _FIRST_PAUSE
        while True:
            reasons = []
            for number, dial in enumerate(dials):
                try:
                    connection = await dial(0, lambda reason: None)
                except _TRY_NEXT_ADDRESS as error:
                    reasons.append(str(error))
                    continue
                if number:
                    _watch_better_addresses(connection, dials[:number])
                return connection
            reason = "; ".join(reasons)
            note(reason)
            if timeout is not None and time.monotonic() + pause >= began + timeout:
                raise ServiceUnavailable(f"no server of {service!r} at any of {len(dials)} addresses: {reason}")
            await asyncio.sleep(pause)
            pause = min(pause * 1.5, _LONGEST_PAUSE)

    return connect


def _watch_better_addresses(connection: Connection, better: Sequence[Dial]) -> None:
    """Start a task that asks the client to leave a connection as soon as a better address has a server."""
    watcher = asyncio.get_running_loop().create_task(_poll_better_addresses(weakref.ref(connection), better))
    _watchers.add(watcher)
    watcher.add_done_callback(_watchers.discard)


#: Running watchers, because a loop keeps only weak references to tasks.
_watchers: Final[set[asyncio.Task[None]]] = set()


async def _poll_better_addresses(reference: weakref.ref[Connection], better: Sequence[Dial]) -> None:
    """Try better addresses at an interval; ask the client to leave once one has a server.

    Ends with the connection, and raises the errors after which :func:`dial_first` tries no other address.
    """
    while True:
        await asyncio.sleep(_POLL_INTERVAL)
        if _get_open(reference) is None:
            return
        for dial in better:
            try:
                found = await dial(0, lambda reason: None)
            except _TRY_NEXT_ADDRESS:
                continue
            found.close()
            if (connection := _get_open(reference)) is not None:
                connection.go_away()
            return


def _get_open(reference: weakref.ref[Connection]) -> Connection | None:
    """Return the connection if it still exists and is open; return None otherwise."""
    connection = reference()
    return connection if connection is not None and connection.is_open else None
