"""Routes the clients of a name to the processes that serve it, and answers requests for status."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import time
from collections.abc import Awaitable, Callable
from typing import Final

from shmrpc.errors import RemoteProtocolError
from shmrpc.host.credentials import NO_OTHER_USERS
from shmrpc.transport.shm.acceptor import Acceptor, PeerCredentials
from shmrpc.wire import control

#: Seconds until the next attempt to pass on a client.
_PASS_AGAIN: Final = 0.01


class ConnectionRouter:
    """Holder of a name that answers clients that ask for status, and passes on the sockets of all others.

    ``report`` returns the status. ``pass_on`` is called with the service and the socket of a client, whose first packet
    is still unread. It returns None if a process has taken the client, "" to be called again soon, or the reason why
    none takes the client, who may try again; the router closes the socket in each case. ``allow_uids``: ids of trusted
    users, besides its own user and root. Needs a running event loop. Raises the errors of
    :class:`~shmrpc.host.service_socket.ServiceSocket`.
    """

    def __init__(
        self,
        service: str,
        report: Callable[[ConnectionRouter], control.StatusReport],
        pass_on: Callable[[str, socket.socket], Awaitable[str | None]],
        allow_uids: frozenset[int] = NO_OTHER_USERS,
    ) -> None:
        self.service = service
        self._report = report
        self._pass_on = pass_on
        self._began = time.monotonic()
        self._loop = asyncio.get_running_loop()
        #: Clients that were not passed on, with the timers that close their sockets.
        self._waiting: dict[socket.socket, asyncio.TimerHandle] = {}
        #: Tasks that pass clients on.
        self._passing: dict[socket.socket, asyncio.Task[None]] = {}
        self._acceptor = Acceptor(service, self._receive, allow_uids)

    @property
    def uptime(self) -> float:
        """Seconds since the name was claimed."""
        return time.monotonic() - self._began

    def _receive(self, accepted: socket.socket, credentials: PeerCredentials) -> None:
        """Wait for the first packet of a new client. Closes a client that is not passed on within STEP_TIMEOUT."""
        self._waiting[accepted] = self._loop.call_later(control.STEP_TIMEOUT, self._close, accepted)
        self._loop.add_reader(accepted, self._on_packet, accepted)

    def _on_packet(self, accepted: socket.socket) -> None:
        """Answer a request for status, or start to pass the client on, which leaves the packet unread."""
        if accepted not in self._waiting:
            return
        try:
            packet = accepted.recv(control.MAX_MESSAGE, socket.MSG_PEEK)
        except BlockingIOError:
            return
        except ConnectionResetError:
            packet = b""
        if packet and not _is_status(packet):
            self._loop.remove_reader(accepted)
            self._passing[accepted] = self._loop.create_task(self._pass(accepted))
            return
        if packet:
            self._reply(accepted, self._report(self))
        self._close(accepted)

    async def _pass(self, accepted: socket.socket) -> None:
        """Pass a client on, or refuse it with the reason, and close this process's descriptor."""
        try:
            while (reason := await self._pass_on(self.service, accepted)) == "":
                await asyncio.sleep(_PASS_AGAIN)
            if reason is not None:
                self._reply(accepted, control.Refuse(reason, try_again=True))
        finally:
            self._passing.pop(accepted, None)
            self._close(accepted)  # The process that took the client has its own descriptor.

    def _reply(self, accepted: socket.socket, message: control.Message) -> None:
        """Read a client's first packet, and send a message; do nothing if the client has left."""
        with contextlib.suppress(OSError):
            accepted.recv(control.MAX_MESSAGE)  # Closing a socket with unread data would reset the other end.
            accepted.send(control.encode(message))

    def _close(self, accepted: socket.socket) -> None:
        """Close a client's socket, or first cancel the task that passes it on. Idempotent."""
        passing = self._passing.get(accepted)
        if passing is not None:  # The task calls this method again at its end.
            passing.cancel()
        elif accepted in self._waiting:
            self._waiting.pop(accepted).cancel()
            self._loop.remove_reader(accepted)
            accepted.close()

    def close(self) -> None:
        """Release the name, and close the sockets of all clients that were not passed on. Call this once.

        Tasks that pass clients on are cancelled, and end in later iterations of the loop.
        """
        self._acceptor.close()
        for accepted in list(self._waiting):
            self._close(accepted)


def _is_status(packet: bytes) -> bool:
    """Return True if a packet asks for the status; return False for any other one, an invalid one included."""
    try:
        return isinstance(control.decode(packet), control.StatusRequest)
    except RemoteProtocolError:
        return False  # The process that serves the client reports the error.
