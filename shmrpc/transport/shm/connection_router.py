"""A name that other processes serve: answers those who ask for status, and passes every other client on."""

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

#: Seconds until a client is passed on again that nobody could take.
_PASS_AGAIN: Final = 0.01


class ConnectionRouter:
    """Holds a name. Answers the clients that ask for status, and passes the sockets of all others on.

    ``report`` gives the answer. ``pass_on`` is given a service and the socket of a client whose first packet is still
    to be read. It returns None if a process takes the client; an empty text if one may in a moment; else why none does,
    which the client is told so that it comes again.
    ``allow_uids``: users whose processes may come, besides our own and root.
    Raises what :class:`rendezvous.Claim` raises.
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
        #: The clients that are still here, each with the timer that ends its stay.
        self._here: dict[socket.socket, asyncio.TimerHandle] = {}
        #: The tasks that look for a process that takes a client.
        self._passing: dict[socket.socket, asyncio.Task[None]] = {}
        self._acceptor = Acceptor(service, self._receive, allow_uids)

    @property
    def uptime(self) -> float:
        """Seconds since the name was taken."""
        return time.monotonic() - self._began

    def _receive(self, accepted: socket.socket, credentials: PeerCredentials) -> None:
        self._here[accepted] = self._loop.call_later(control.STEP_TIMEOUT, self._close, accepted)
        self._loop.add_reader(accepted, self._on_packet, accepted)

    def _on_packet(self, accepted: socket.socket) -> None:
        if accepted not in self._here:
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
            self._receive_answer(accepted, self._report(self))
        self._close(accepted)

    async def _pass(self, accepted: socket.socket) -> None:
        try:
            while (why := await self._pass_on(self.service, accepted)) == "":
                await asyncio.sleep(_PASS_AGAIN)
            if why is not None:
                self._receive_answer(accepted, control.Refuse(why, try_again=True))
        finally:
            self._passing.pop(accepted, None)
            self._close(accepted)  # The process that took it has a descriptor of its own.

    def _receive_answer(self, accepted: socket.socket, message: control.Message) -> None:
        with contextlib.suppress(OSError):
            accepted.recv(control.MAX_MESSAGE)  # A socket closed with something unread resets the other end.
            accepted.send(control.encode(message))

    def _close(self, accepted: socket.socket) -> None:
        passing = self._passing.get(accepted)
        if passing is not None:  # It comes here at its end.
            passing.cancel()
        elif accepted in self._here:
            self._here.pop(accepted).cancel()
            self._loop.remove_reader(accepted)
            accepted.close()

    def close(self) -> None:
        """Gives the name back."""
        self._acceptor.close()
        for accepted in list(self._here):
            self._close(accepted)


def _is_status(packet: bytes) -> bool:
    try:
        return isinstance(control.decode(packet), control.StatusRequest)
    except RemoteProtocolError:
        return False  # The process that serves the client will tell it.
