"""Transport between hosts, through NATS."""

from __future__ import annotations

import functools
from collections.abc import Callable

from shmrpc.transport.connection import Connection, Dial, ThreadConnection, ThreadDial
from shmrpc.transport.connection_options import ConnectionOptions
from shmrpc.transport.listener import OpenInbox
from shmrpc.transport.nats import client
from shmrpc.transport.nats.address import NatsAddress
from shmrpc.transport.nats.link import link
from shmrpc.transport.nats.server import NatsInbox


class NatsTransport:
    """Transport ``nats://``, between processes that reach the same NATS. Raises ImportError without nats-py."""

    adopts = False
    shares_names = True
    lacks = ("spin", "allow_uids")

    def __init__(self, address: NatsAddress) -> None:
        link.import_nats()
        #: Address and login of NATS.
        self.address = address

    def __str__(self) -> str:
        return str(self.address)

    def inbox(self, options: ConnectionOptions) -> OpenInbox:
        """Return the function that opens a server's inbox."""
        return functools.partial(NatsInbox, self.address, _checked(options))

    def dial(self, service: str, options: ConnectionOptions) -> Dial:
        """Return the function that connects a client in an event loop."""
        checked, address = _checked(options), self.address

        async def connect(timeout: float | None, note: Callable[[str], None]) -> Connection:
            return await client.connect(service, address, timeout, note, options=checked)

        return connect

    def thread_dial(self, service: str, options: ConnectionOptions) -> ThreadDial:
        """Return the function that connects a client for threads, through a relay."""
        from shmrpc.transport.nats import relay

        checked, address = _checked(options), self.address

        def connect(timeout: float | None, check: Callable[[], None], note: Callable[[str], None]) -> ThreadConnection:
            return relay.connect(service, address, timeout, check, note, options=checked)

        return connect


def _checked(options: ConnectionOptions) -> ConnectionOptions:
    """Return the options. Raises ValueError for one that has no meaning here."""
    options.reject("nats:// leaves this host, where it means nothing: leave it out", NatsTransport.lacks)
    return options
