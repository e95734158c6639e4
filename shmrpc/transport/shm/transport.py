"""The transport between the processes of this host."""

from __future__ import annotations

import functools

from shmrpc.transport.connection import Dial, ThreadDial
from shmrpc.transport.connection_options import ConnectionOptions
from shmrpc.transport.listener import OpenInbox


class ShmTransport:
    """``shm://``, the default: shared memory, for event loops and threads."""

    adopts = True
    shares_names = False
    lacks = ()

    def inbox(self, options: ConnectionOptions) -> OpenInbox:
        """Return a function that opens a server's inbox."""
        from shmrpc.transport.shm.server import ShmInbox  # Not needed by clients.

        return functools.partial(ShmInbox, options)

    def dial(self, service: str, options: ConnectionOptions) -> Dial:
        """Return a function that connects a client in an event loop."""
        from shmrpc.transport.shm import loop_client  # Not needed by servers.

        return functools.partial(loop_client.connect, service, options=options)

    def thread_dial(self, service: str, options: ConnectionOptions) -> ThreadDial:
        """Return a function that connects a client for threads."""
        from shmrpc.transport.shm import thread_client

        return functools.partial(thread_client.connect, service, options=options)
