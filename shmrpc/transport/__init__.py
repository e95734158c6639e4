"""How frames travel: what the layers above may know of it.

There is one transport today, :mod:`shmrpc.transport.shm`. Nothing above this line knows what a segment is.
"""

from __future__ import annotations

from collections.abc import Callable

from shmrpc.errors import ShmrpcError

#: Opcode, call id, body.
Frame = tuple[int, int, bytes]
#: A frame has come.
OnFrame = Callable[[int, int, bytes], None]
#: The connection is over, and why.
OnLost = Callable[[ShmrpcError], None]
