"""A client that is met at several places takes the first one that has a server, and goes back to it when it can."""

from __future__ import annotations

import asyncio
import time
import weakref
from collections.abc import Callable, Sequence
from typing import Final

from shmrpc.errors import ConnectionLost, LocalProtocolError, RemoteProtocolError, ServiceUnavailable
from shmrpc.transport.connection import Connection, Dial

#: Seconds between two looks whether a better place has a server again.
_POLL_INTERVAL: Final = 0.25
#: Seconds between two rounds while there is no server anywhere: the first, and the longest.
_FIRST_PAUSE: Final = 0.005
_LONGEST_PAUSE: Final = 0.1

#: Why there is no connection at one place; another one may have one.
_TRY_NEXT_ADDRESS: Final = (ServiceUnavailable, ConnectionLost, RemoteProtocolError, LocalProtocolError)


def dial_first(service: str, dials: Sequence[Dial]) -> Dial:
    """Connects at the first place that has a server; has the client told when a better one has."""

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
                raise ServiceUnavailable(f"no server of {service!r} at any of {len(dials)} places: {reason}")
            await asyncio.sleep(pause)
            pause = min(pause * 1.5, _LONGEST_PAUSE)

    return connect


def _watch_better_addresses(connection: Connection, better: Sequence[Dial]) -> None:
    """Has a connection left as soon as there is a server at a better place."""
    watcher = asyncio.get_running_loop().create_task(_poll_better_addresses(weakref.ref(connection), better))
    _watchers.add(watcher)
    watcher.add_done_callback(_watchers.discard)


#: A loop keeps its tasks weakly.
_watchers: Final[set[asyncio.Task[None]]] = set()


async def _poll_better_addresses(reference: weakref.ref[Connection], better: Sequence[Dial]) -> None:
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
    connection = reference()
    return connection if connection is not None and connection.is_open else None
