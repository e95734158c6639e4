"""How frames travel: what the layers above may know of it.

There is one transport today, :mod:`shmrpc.transport.shm`. Nothing above this line knows what a segment is.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from shmrpc.errors import ShmrpcError

#: A frame has come: opcode, call id, body.
OnFrame = Callable[[int, int, bytes], None]
#: The connection is over, and why.
OnLost = Callable[[ShmrpcError], None]

Frame = tuple[int, int, bytes]


class ClientConnection(Protocol):
    """A client's side of a connection, in whatever way it waits."""

    service: str
    #: Process id of the server.
    pid: int
    #: Bytes of the largest body.
    max_frame: int
    #: The endpoints' names, by number.
    endpoints: list[str]

    #: Sends a frame and looks for the answer: its body if it is a plain result; any other frame; None.
    exchange: Callable[[int, int, bytes], bytes | Frame | None]

    def close(self) -> None:
        """Closes it. Again: nothing."""
        ...
