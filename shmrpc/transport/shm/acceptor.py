"""Accepting those who come to a name."""

from __future__ import annotations

import asyncio
import logging
import os
import socket
from collections.abc import Callable
from typing import Final

from shmrpc.transport.shm import rendezvous

logger = logging.getLogger("shmrpc.server")

#: Seconds until an acceptor that ran out of descriptors accepts again.
ACCEPT_PAUSE: Final = 1.0


class Acceptor:
    """Holds a name, and gives the socket of each process of this user that comes to it to ``take``.

    Raises what :class:`rendezvous.Claim` raises.
    """

    def __init__(self, service: str, take: Callable[[socket.socket], None]) -> None:
        self._claim = rendezvous.Claim(service)
        self._take = take
        self._resume: asyncio.TimerHandle | None = None
        try:
            self._loop = asyncio.get_running_loop()
            self._accept()
        except BaseException:
            self._claim.release()
            raise

    def _accept(self) -> None:
        self._resume = None
        self._loop.add_reader(self._claim.socket, self._on_client)

    def _on_client(self) -> None:
        while True:
            try:
                accepted, _ = self._claim.socket.accept()
            except BlockingIOError:
                return
            except OSError as error:  # Out of descriptors: those who wait are served when there are some.
                logger.error("cannot accept a client, trying again in %g s: %s", ACCEPT_PAUSE, error)
                self._loop.remove_reader(self._claim.socket)
                self._resume = self._loop.call_later(ACCEPT_PAUSE, self._accept)
                return
            if may_come(accepted):
                accepted.setblocking(False)
                self._take(accepted)
            else:
                accepted.close()

    def close(self) -> None:
        """Gives the name back."""
        if self._resume is not None:
            self._resume.cancel()
        self._loop.remove_reader(self._claim.socket)
        self._claim.release()


def may_come(accepted: socket.socket) -> bool:
    """Whether a process of our user, or of root, is at the other end."""
    pid, uid = rendezvous.peer_credentials(accepted)
    if uid in (0, os.geteuid()):
        return True
    logger.warning("process %d of uid %d was refused: not our user", pid, uid)
    return False
