"""The reason why a control socket has ended."""

from __future__ import annotations

import socket
from typing import Final

from shmrpc.errors import ConnectionLost, RemoteProtocolError
from shmrpc.host.processes import describe_process
from shmrpc.transport.connection import CloseReason
from shmrpc.wire import control

#: Fault of a living peer that has closed its doorbell.
DOORBELL_CLOSED: Final = "the bell was closed, and the connection was not"


def has_ended(control_socket: socket.socket) -> bool:
    """Return True if a packet of the peer waits, such as a goodbye, if the peer has died, or if this end is closed.

    Leaves the packet for the next reader.
    """
    try:
        control_socket.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT)
    except BlockingIOError:
        return False
    except OSError:
        pass
    return True


def parse_close_packet(packet: bytes, peer: str, pid: int) -> CloseReason | None:
    """Return the reason of the end from a peer's last packet: its goodbye, or an empty packet.

    Returns None for the announcement that the peer is about to leave. Raises RemoteProtocolError for an invalid packet,
    which the caller should report to the peer.
    """
    if not packet:
        return CloseReason(ConnectionLost(f"the {peer} ({describe_process(pid)}) is gone: it died, or was killed"))
    message = control.decode(packet)
    if isinstance(message, control.GoAway):
        return None
    if not isinstance(message, control.Goodbye):
        raise RemoteProtocolError(f"it sent {control.type_of(message)!r} on an established connection")
    return CloseReason.from_goodbye(message, f"the {peer} ({describe_process(pid)})")
