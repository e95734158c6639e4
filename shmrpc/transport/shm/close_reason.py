"""What the end of a control socket means."""

from __future__ import annotations

import socket
from typing import Final

from shmrpc.errors import ConnectionLost, RemoteProtocolError
from shmrpc.host.processes import describe_process
from shmrpc.transport.connection import CloseReason
from shmrpc.wire import control

#: The fault of a peer that lives and has ended its bell.
DOORBELL_CLOSED: Final = "the bell was closed, and the connection was not"


def has_ended(control_socket: socket.socket) -> bool:
    """Whether the peer has said its last, or is gone. Reads nothing: the next one to read the socket learns it."""
    try:
        control_socket.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT)
    except BlockingIOError:
        return False
    except OSError:
        pass
    return True


def parse_close_packet(packet: bytes, peer: str, pid: int) -> CloseReason | None:
    """What the last packet of a peer means: its goodbye, or none at all.

    None if it is not the last one: the peer only says that it is about to go. RemoteProtocolError if it is a message
    that cannot be read, or none that belongs to an established connection: the peer is to be told.
    """
    if not packet:
        return CloseReason(ConnectionLost(f"the {peer} ({describe_process(pid)}) is gone: it died, or was killed"))
    message = control.decode(packet)
    if isinstance(message, control.GoAway):
        return None
    if not isinstance(message, control.Goodbye):
        kind = type(message).__name__.lower()
        raise RemoteProtocolError(f"it sent {kind!r} on an established connection")
    if message.fault:
        return CloseReason(
            RemoteProtocolError(f"the {peer} ({describe_process(pid)}) found a fault of ours: {message.reason}")
        )
    lost = ConnectionLost(f"the {peer} ({describe_process(pid)}) closed the connection: {message.reason}")
    return CloseReason(lost, message.reached)
