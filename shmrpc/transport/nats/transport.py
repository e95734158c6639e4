"""The transport across hosts."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import NoReturn

from shmrpc.transport.base import Connection, Dial
from shmrpc.transport.listening import OpenInbox
from shmrpc.transport.nats import client
from shmrpc.transport.nats.address import Address
from shmrpc.transport.nats.server import NatsInbox
from shmrpc.transport.options import ConnectionOptions


class Nats:
    """``nats://``: services and clients that reach the same NATS."""

    #: Each process that serves comes to NATS by itself.
    adopts = False
    lacks = ("spin", "allow_uids")

    def __init__(self, address: Address) -> None:
        self._address = address

    def __str__(self) -> str:
        return str(self._address)

    def inbox(self, options: ConnectionOptions) -> OpenInbox:
        """What opens a server's inbox."""
        return functools.partial(NatsInbox, self._address, _checked(options))

    def dial(self, service: str, options: ConnectionOptions) -> Dial:
        """What connects a client in a loop."""
        checked, address = _checked(options), self._address

        async def connect(timeout: float | None, note: Callable[[str], None]) -> Connection:
            return await client.connect(service, address, timeout, note, options=checked)

        return connect

    def thread_dial(self, service: str, options: ConnectionOptions) -> NoReturn:
        """Raises ValueError: threads have no loop for NATS's client."""
        raise ValueError(
            f"nats:// is for event loops: use `async with shmrpc.connect('{self}/{service}')`; clients for threads "
            "speak shared memory alone"
        )


def _checked(options: ConnectionOptions) -> ConnectionOptions:
    """The options; ValueError for one that has no meaning here."""
    options.refuse("nats:// leaves this host, where it means nothing: leave it out", Nats.lacks)
    return options
