"""Errors of sending and receiving, for all transports.

The core defines them, because it raises them itself over shared memory; every other transport raises the same ones.
The errors that callers see are in :mod:`shmrpc.errors`.

::

    ChannelError     the connection is closed, or the peer broke the protocol
    └── PeerLeft     the peer has left; nothing was sent
    Overtaken        another thread has begun a call with a higher id; nothing was sent, it may go with a new id
    Oversize         the body is larger than max_frame; nothing was sent
    Backlog          too much waits for the peer to read; nothing was sent
"""

from shmrpc._core import Backlog, ChannelError, Oversize, Overtaken, PeerLeft
from shmrpc.wire.codec import Body, body_size

__all__ = ["UNSENT", "Backlog", "ChannelError", "Oversize", "Overtaken", "PeerLeft", "check_size"]

#: Errors after which nothing was sent. A signal handler may raise any other exception after the frame was sent.
UNSENT = (PeerLeft, Overtaken, Oversize, Backlog)


def check_size(body: Body, max_frame: int) -> None:
    """Raise Oversize if a body, without its large buffers, has more than ``max_frame`` bytes."""
    if body_size(body) > max_frame:
        raise Oversize(f"{body_size(body)} bytes, the limit is {max_frame}")
