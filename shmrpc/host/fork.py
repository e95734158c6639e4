"""Closes in forked children the descriptors that, as long as they are open, prove that their owner lives."""

from __future__ import annotations

import _socket
import os
import socket
import weakref
from typing import Protocol

from shmrpc.errors import LocalProtocolError


class _Abandonable(Protocol):
    def abandon(self) -> None:
        """Closes descriptors and does nothing else."""


_owners: weakref.WeakSet[_Abandonable] = weakref.WeakSet()


def abandon_in_child(owner: _Abandonable) -> None:
    """Calls ``owner.abandon()`` in every child forked from now on."""
    _owners.add(owner)


def check_same_process(service: str, made_by: int) -> None:
    """Raises LocalProtocolError in a child of the process that made the connection."""
    here = os.getpid()
    if here != made_by:
        raise LocalProtocolError(
            f"this client of {service!r} was connected in process {made_by}, and does not work in process {here}, "
            "which was forked from it; connect again here"
        )


def close_socket(closing: socket.socket) -> None:
    """Closes a socket now. Its own ``close()`` waits for a loop to let go of it, and in a child none will."""
    if isinstance(closing, _socket.socket):
        _socket.socket.close(closing)
    elif (descriptor := closing.detach()) >= 0:  # Of gevent's or eventlet's in the place of Python's.
        os.close(descriptor)


def _after_fork() -> None:
    for owner in list(_owners):
        owner.abandon()
    _owners.clear()


os.register_at_fork(after_in_child=_after_fork)
