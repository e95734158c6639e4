"""Accepting those who come to a name."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import socket
import time
from collections.abc import Callable
from typing import Final

from shmrpc.protocol import control
from shmrpc.transport.shm import rendezvous, wants

logger = logging.getLogger("shmrpc.server")

#: Seconds until an acceptor that ran out of descriptors accepts again.
ACCEPT_PAUSE: Final = 1.0


class Acceptor:
    """Holds a name, and gives the socket of each process of this user that comes to it to ``take``.

    Raises what :class:`rendezvous.Claim` raises.
    """

    def __init__(self, service: str, take: Callable[[socket.socket], None]) -> None:
        #: A descriptor to give up for a moment, so that who comes when there is none left can be told.
        self._reserve = -1
        self._claim = rendezvous.Claim(service)
        self._take = take
        self._resume: asyncio.TimerHandle | None = None
        #: When the log may say again that there is none left.
        self._quiet_until = 0.0
        try:
            self._keep_reserve()
            self._loop = asyncio.get_running_loop()
            self._accept()
        except BaseException:
            self._give_up_reserve()
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
            except OSError as error:
                if error.errno in wants.NO_DESCRIPTOR and self._reserve >= 0:
                    if self._turn_away(error.errno):
                        continue
                    return
                self._keep_reserve()
                # Those who wait are served when it can be done.
                logger.error("cannot accept a client, trying again in %g s: %s", ACCEPT_PAUSE, error)
                self._loop.remove_reader(self._claim.socket)
                self._resume = self._loop.call_later(ACCEPT_PAUSE, self._accept)
                return
            if may_come(accepted):
                accepted.setblocking(False)
                self._take(accepted)
            else:
                accepted.close()

    def _keep_reserve(self) -> None:
        if self._reserve < 0:
            with contextlib.suppress(OSError):
                self._reserve = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)

    def _give_up_reserve(self) -> None:
        if self._reserve >= 0:
            os.close(self._reserve)
            self._reserve = -1

    def _turn_away(self, number: int) -> bool:
        """Tells the client that is first in line why it cannot come. False if there is nobody."""
        reason = wants.descriptors(number)
        self._give_up_reserve()
        try:
            accepted, _ = self._claim.socket.accept()
        except BlockingIOError:  # The want is noticed before it is looked whether anybody came.
            return False
        except OSError:  # Another thread has taken the descriptor.
            return True
        else:
            with accepted, contextlib.suppress(OSError):
                if may_come(accepted):
                    # What it has said is taken, and no more can come: else the end would overtake the refusal.
                    accepted.shutdown(socket.SHUT_RD)
                    accepted.setblocking(False)
                    while accepted.recv(control.MAX_MESSAGE):
                        pass
                    accepted.send(control.encode(control.Refuse(str(reason), try_again=True)))
        finally:
            self._keep_reserve()
        if time.monotonic() >= self._quiet_until:
            self._quiet_until = time.monotonic() + ACCEPT_PAUSE
            logger.error("clients are turned away: %s", reason)
        return True

    def __del__(self) -> None:
        """It was dropped, as after its loop was closed."""
        self._give_up_reserve()

    def close(self) -> None:
        """Gives the name back."""
        self._give_up_reserve()
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
