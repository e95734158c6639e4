"""The transport between the processes of this host."""

from __future__ import annotations

import functools

from shmrpc.transport.connection import Dial, ThreadDial
from shmrpc.transport.connection_options import ConnectionOptions
from shmrpc.transport.listener import OpenInbox


class ShmTransport:
    """``shm://``, which is meant where nothing is said: shared memory, for loops and for threads."""

    adopts = True
    shares_names = False
    lacks = ()

    def inbox(self, options: ConnectionOptions) -> OpenInbox:
        """What opens a server's inbox."""
        from shmrpc.transport.shm.server import ShmInbox  # Not in a program that only calls.

        return functools.partial(ShmInbox, options)

    def dial(self, service: str, options: ConnectionOptions) -> Dial:
        """What connects a client in a loop."""
        from shmrpc.transport.shm import loop_client  # Not in one that only serves.

        return functools.partial(loop_client.connect, service, options=options)

    def thread_dial(self, service: str, options: ConnectionOptions) -> ThreadDial:
        """What connects a client for threads."""
        from shmrpc.transport.shm import thread_client

        return functools.partial(thread_client.connect, service, options=options)
