"""How frames travel: what the layers above may know of it.

Between processes that is :mod:`shmrpc.transport.shm`, and within one loop, for tests, :mod:`shmrpc.transport.memory`.
Nothing above this line knows what a segment is.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from shmrpc.errors import ShmrpcError
from shmrpc.protocol.codec import Body

#: Opcode, call id, body.
Frame = tuple[int, int, Body]
#: A frame has come.
OnFrame = Callable[[int, int, Body], None]


class End(NamedTuple):
    """Why a connection is over."""

    error: ShmrpcError
    #: The highest id of a call that the server took, if it said so. Later ones were not executed.
    reached: int | None = None


#: The connection is over.
OnEnd = Callable[[End], None]
