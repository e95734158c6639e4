"""Closing of descriptors in forked children: an open descriptor would prove that the parent lives."""

from __future__ import annotations

import _socket
import os
import socket
import weakref
from typing import Protocol

from shmrpc.errors import LocalProtocolError


class _Abandonable(Protocol):
    """An owner of descriptors."""

    def abandon(self) -> None:
        """Close descriptors, and do nothing else. Called in a forked child."""


_owners: weakref.WeakSet[_Abandonable] = weakref.WeakSet()


def abandon_in_child(owner: _Abandonable) -> None:
    """Call ``owner.abandon()`` in every child that is forked from now on. Keeps only a weak reference."""
    _owners.add(owner)


def check_same_process(service: str, made_by: int) -> None:
    """Raise LocalProtocolError in a child of the process that made the connection."""
    here = os.getpid()
    if here != made_by:
        raise LocalProtocolError(
            f"this client of {service!r} was connected in process {made_by}, and does not work in its child {here}: "
            "connect again here"
        )


def close_socket(closing: socket.socket) -> None:
    """Close a socket at once. Its own ``close()`` waits until an event loop releases it, and a child has no loop."""
    if isinstance(closing, _socket.socket):
        _socket.socket.close(closing)
    elif (descriptor := closing.detach()) >= 0:  # A socket of gevent or eventlet.
        os.close(descriptor)


def _after_fork() -> None:
    """Abandon the descriptors of all registered owners, in a forked child."""
    for owner in list(_owners):
        owner.abandon()
    _owners.clear()


os.register_at_fork(after_in_child=_after_fork)
