"""Accepts the processes that connect to a name."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
from collections.abc import Callable
from typing import Final

import msgspec

from shmrpc.host import credentials, resource_limits
from shmrpc.host.credentials import NO_OTHER_USERS
from shmrpc.host.log_throttle import LogThrottle
from shmrpc.host.processes import describe_process
from shmrpc.host.service_socket import ServiceSocket
from shmrpc.host.spare_descriptor import SpareDescriptor
from shmrpc.wire import control

logger = logging.getLogger("shmrpc.server")

#: Seconds until an acceptor that ran out of descriptors accepts again.
ACCEPT_PAUSE: Final = 1.0
#: Clients that are accepted in one iteration of the loop, so that a flood of them cannot starve it.
_TURN: Final = 16

#: Users that were refused. Only the first refusal of each is logged as a warning.
_refused: Final[set[int]] = set()


class PeerCredentials(msgspec.Struct, frozen=True):
    """Process and user of a peer, as reported by the kernel."""

    pid: int
    uid: int


class Acceptor:
    """Holder of a name that passes the sockets of trusted processes, with their credentials, to ``take``.

    ``take`` owns the socket, which does not block. ``allow_uids``: ids of trusted users, besides its own user and root.
    Accepts clients from its creation in a running event loop until :meth:`close`. Raises the errors of
    :class:`ServiceSocket`.
    """

    def __init__(
        self,
        service: str,
        take: Callable[[socket.socket, PeerCredentials], None],
        allow_uids: frozenset[int] = NO_OTHER_USERS,
    ) -> None:
        self._service = service
        self._allow_uids = allow_uids
        #: Descriptor to close for a moment, so that clients get an answer when no other descriptor is left.
        self._reserve = SpareDescriptor()
        self._claim = ServiceSocket(service, allow_uids)
        self._take = take
        self._resume: asyncio.TimerHandle | None = None
        self._refusals = LogThrottle()
        try:
            self._reserve.open()
            self._loop = asyncio.get_running_loop()
            self._watch_for_clients()
        except BaseException:
            self._reserve.close()
            self._claim.release()
            raise

    def _watch_for_clients(self) -> None:
        """Have the loop report waiting clients."""
        self._resume = None
        self._loop.add_reader(self._claim.socket, self._accept_clients)

    def _accept_clients(self) -> None:
        """Accept some of the waiting clients. Without a free descriptor, reject them or pause."""
        for _ in range(_TURN):
            try:
                accepted, _address = self._claim.socket.accept()
            except BlockingIOError:
                return
            except OSError as error:
                if error.errno in resource_limits.NO_DESCRIPTOR_ERRNOS and self._reserve.is_open:
                    if self._reject_for_now(error.errno):
                        continue
                    return
                self._reserve.open()
                # The waiting clients are accepted later.
                level = self._refusals.level_for(error.errno, logging.ERROR)
                logger.log(level, "cannot accept a client, trying again every %g s: %s", ACCEPT_PAUSE, error)
                self._loop.remove_reader(self._claim.socket)
                self._resume = self._loop.call_later(ACCEPT_PAUSE, self._watch_for_clients)
                return
            peer_credentials = check_credentials(accepted, self._service, self._allow_uids)
            if peer_credentials is not None:
                accepted.setblocking(False)
                self._take(accepted, peer_credentials)

    def _reject_for_now(self, number: int) -> bool:
        """Reject the first waiting client for lack of descriptors (errno ``number``). Returns False if none waits."""
        reason = resource_limits.no_descriptor_error(number)
        self._reserve.close()
        try:
            accepted, _ = self._claim.socket.accept()
        except BlockingIOError:  # The kernel allocates a descriptor before it looks for a client.
            return False
        except OSError:  # Another thread has taken the descriptor.
            return True
        else:
            if check_credentials(accepted, self._service, self._allow_uids):
                send_refusal(accepted, str(reason), try_again=True)
        finally:
            self._reserve.open()
        logger.log(self._refusals.level_for(number, logging.ERROR), "clients are turned away: %s", reason)
        return True

    def __del__(self) -> None:
        """Close the spare descriptor of a dropped acceptor, for example after its loop was closed."""
        self._reserve.close()

    def close(self) -> None:
        """Stop accepting, and release the name. Call this once, in the thread of the loop."""
        self._reserve.close()
        if self._resume is not None:
            self._resume.cancel()
        self._loop.remove_reader(self._claim.socket)
        self._claim.release()


def check_credentials(accepted: socket.socket, service: str, allow_uids: frozenset[int]) -> PeerCredentials | None:
    """Return the process at the other end if it is trusted: this user's, root's or one of ``allow_uids``.

    Logs the refusal of any other process, as a warning once for each user, sends the reason to the process, closes
    ``accepted``, and returns None.
    """
    pid, uid = credentials.peer_credentials(accepted)
    if credentials.is_trusted(uid, allow_uids):
        return PeerCredentials(pid, uid)
    level = logging.DEBUG if uid in _refused else logging.WARNING
    _refused.add(uid)
    logger.log(level, "%s of uid %d was refused: it may not use %r", describe_process(pid), uid, service)
    send_refusal(
        accepted,
        f"uid {uid} may not use service {service!r}: its server allows {credentials.describe_users(allow_uids)}; "
        f"for more: shmrpc.serve(..., allow_uids=[{uid}])",
    )
    return None


def send_refusal(accepted: socket.socket, reason: str, *, try_again: bool = False) -> None:
    """Send a client the reason for a refusal, and close its socket. Discards all that the client has sent.

    Does not wait, and ignores a client that has left. ``try_again``: True if the client may succeed later.
    """
    with accepted, contextlib.suppress(OSError):
        accepted.setblocking(False)
        # Closing a socket with unread data resets the other end, which then could not read the reason. SHUT_RD keeps
        # more data from arriving meanwhile.
        accepted.shutdown(socket.SHUT_RD)
        while accepted.recv(1):
            pass
        accepted.send(control.encode(control.Refuse(reason, try_again)))
