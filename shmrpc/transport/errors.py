"""What sending and receiving raise, whatever carries the frames.

Over shared memory the core raises these itself, on the way of every call, so it defines them; every other transport
raises the same ones. What a caller sees of them is in :mod:`shmrpc.errors`.

::

    ChannelError     the connection is closed, or the peer broke the rules: it cannot be used again
    └── PeerLeft     the peer has left; nothing was sent
    Overtaken        another thread has begun a call with a higher id; nothing was sent, it may go with a new id
    Oversize         the body is over max_frame; nothing was sent
    Backlog          too much waits for the peer to read; nothing was sent
"""

from shmrpc._core import Backlog, ChannelError, Oversize, Overtaken, PeerLeft
from shmrpc.wire.codec import Body, body_size

__all__ = ["UNSENT", "Backlog", "ChannelError", "Oversize", "Overtaken", "PeerLeft", "check_size"]

#: What says that nothing was sent. Any other exception may have come out of a signal's handler, after that.
UNSENT = (PeerLeft, Overtaken, Oversize, Backlog)


def check_size(body: Body, max_frame: int) -> None:
    """Raises Oversize if a body is too large."""
    if body_size(body) > max_frame:
        raise Oversize(f"{body_size(body)} bytes, the limit is {max_frame}")
