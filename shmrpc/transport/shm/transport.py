"""The transport between the processes of this host."""

from __future__ import annotations

import functools

from shmrpc.transport.base import Dial, ThreadDial
from shmrpc.transport.listening import OpenInbox
from shmrpc.transport.options import ConnectionOptions
from shmrpc.transport.shm import client, thread_client
from shmrpc.transport.shm.server import ShmInbox


class SharedMemory:
    """``shm://``, which is meant where nothing is said: shared memory, for loops and for threads."""

    adopts = True
    shares_names = False
    lacks = ()

    def inbox(self, options: ConnectionOptions) -> OpenInbox:
        """What opens a server's inbox."""
        return functools.partial(ShmInbox, options)

    def dial(self, service: str, options: ConnectionOptions) -> Dial:
        """What connects a client in a loop."""
        return functools.partial(client.connect, service, options=options)

    def thread_dial(self, service: str, options: ConnectionOptions) -> ThreadDial:
        """What connects a client for threads."""
        return functools.partial(thread_client.connect, service, options=options)
