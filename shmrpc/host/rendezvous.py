"""The client's side of the rendezvous: connecting to the socket of a service, and the packets of the handshake."""

from __future__ import annotations

import errno
import os
import socket
from collections.abc import Collection, Sequence

import msgspec

from shmrpc import _core
from shmrpc.errors import ConnectionLost, LocalProtocolError, SharedMemoryError
from shmrpc.host import credentials, resource_limits
from shmrpc.host.cleanup import shared_directory
from shmrpc.host.runtime_dir import socket_paths
from shmrpc.wire import control


def dial(service: str, allow_uids: Collection[int] = ()) -> socket.socket | None:
    """Connect a non-blocking socket to the server of a service and return it; return None if no server listens.

    Raises ConnectionLost if the server's backlog is full, PermissionError if it admits only its own user,
    LocalProtocolError if it belongs to a user that this process does not trust, SharedMemoryError if no descriptor is
    left, and the errors of :func:`~shmrpc.host.runtime_dir.socket_paths`. The caller closes the socket.
    """
    for path in socket_paths(service, allow_uids):
        dialled = _dial(path, service, allow_uids)
        if dialled is not None:
            return dialled
    return None


def _dial(path: str, service: str, allow_uids: Collection[int]) -> socket.socket | None:
    """Connect a socket to a path, and check the user of the server. Returns and raises as :func:`dial` does."""
    try:
        dialled = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_NONBLOCK)
    except OSError as error:
        raise resource_limits.explain_os_error(error) from None
    try:
        # Each packet names its sender: the listening process may have passed the connection on, and an id that a
        # process sends of itself belongs to its own pid namespace.
        dialled.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
        dialled.connect(path)
        _check_server(service, credentials.peer_credentials(dialled)[1], allow_uids)
    except (FileNotFoundError, ConnectionRefusedError):
        dialled.close()
        return None
    except BlockingIOError:
        dialled.close()
        raise ConnectionLost("its backlog is full: it accepts no connections, because it hangs or is stopped") from None
    except BaseException:
        dialled.close()
        raise
    return dialled


def _check_server(service: str, uid: int, allow_uids: Collection[int]) -> None:
    """Raise LocalProtocolError if this process does not trust the user of a server, or cannot tell the user."""
    if not credentials.is_trusted(uid, allow_uids):
        raise LocalProtocolError(
            f"service {service!r} is served by uid {uid}; this process trusts "
            f"{credentials.describe_users(allow_uids)}. "
            f"If you trust that user: connect({service!r}, allow_uids=[{uid}])"
        )
    if credentials.is_overflow_uid(uid) and shared_directory() is not None:
        raise LocalProtocolError(
            f"service {service!r} is served by uid {uid}, which stands for all users outside this user namespace; "
            "serve as a user that it maps"
        )


class Packet(msgspec.Struct, frozen=True):
    """A packet of the handshake."""

    #: Data; empty at the end of the connection.
    data: bytes
    descriptors: Sequence[_core.Descriptor]
    #: Id of the sending process, from the kernel; 0 if it is not visible from here.
    pid: int


def receive_packet(dialled: socket.socket, timeout: int = 0, spin: int = 0) -> Packet:
    """Receive and return the next packet of the handshake; return an empty one at the end of the connection.

    The caller closes its descriptors. Data over :data:`control.MAX_MESSAGE` bytes is cut. Raises BlockingIOError after
    ``timeout`` nanoseconds, of which at most ``spin`` are spent spinning, and SharedMemoryError if this process has no
    descriptors left for those of the packet.
    """
    try:
        data, descriptors, is_cut, pid = _core.receive_packet(dialled.fileno(), control.MAX_MESSAGE, timeout, spin)
    except ConnectionResetError:
        return Packet(b"", [], 0)
    if is_cut and len(descriptors) < 3:  # There was room for eight, so this process had no free descriptors.
        error = dropped_descriptors_error(dialled)  # While the received ones are still open.
        for descriptor in descriptors:
            descriptor.close()
        raise error
    return Packet(data, descriptors, pid)


def dropped_descriptors_error(through: socket.socket) -> SharedMemoryError:
    """Return the error for a packet without its descriptors, which the kernel has dropped silently.

    ``through``: the socket of the packet.
    """
    try:
        os.close(os.dup(through.fileno()))
    except OSError as error:
        return resource_limits.no_descriptor_error(error.errno or errno.EMFILE)
    return SharedMemoryError(
        errno.EACCES,
        "the descriptors of a connection were lost: check the confinement of this process (SELinux, AppArmor), or "
        "retry if it is at its limit of open files (ulimit -n)",
    )
