"""What the end of a control socket means."""

from __future__ import annotations

from shmrpc.errors import ConnectionLost, RemoteProtocolError, ShmrpcError
from shmrpc.protocol import control


def explain(packet: bytes, peer: str, pid: int) -> ShmrpcError:
    """The error for the last packet of a peer: its goodbye, none at all, or something that it must not send."""
    if not packet:
        return ConnectionLost(f"the {peer} (process {pid}) is gone: it died, or was killed")
    try:
        message = control.decode(packet)
    except RemoteProtocolError as error:
        return error
    if not isinstance(message, control.Goodbye):
        kind = type(message).__name__.lower()
        return RemoteProtocolError(f"the {peer} (process {pid}) sent {kind!r} on an established connection")
    if message.fault:
        return RemoteProtocolError(f"the {peer} (process {pid}) found a fault of ours: {message.reason}")
    return ConnectionLost(f"the {peer} (process {pid}) closed the connection: {message.reason}")
