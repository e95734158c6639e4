"""Asking the live servers about themselves."""

from __future__ import annotations

from collections.abc import Collection

from shmrpc.errors import ConnectionLost, LocalProtocolError, RemoteProtocolError
from shmrpc.protocol import control
from shmrpc.transport.shm import place, rendezvous
from shmrpc.transport.shm.blocking import ask


def statuses(allow_uids: Collection[int] = ()) -> list[control.Report]:
    """What each live server reports that may be asked: those of this user, of root, and of ``allow_uids``.

    One that does not answer in time, or not us, is left out.
    """
    reports = []
    for service in place.services(allow_uids):
        try:
            dialled = rendezvous.dial(service, allow_uids)
        except (PermissionError, LocalProtocolError):  # Of users with whom we do not speak, or who do not with us.
            continue
        if dialled is None:
            continue
        with dialled:
            dialled.settimeout(control.STEP_TIMEOUT)
            try:
                packet, _ = ask(dialled, control.encode(control.Status()))
                message = control.decode(packet)
            except (ConnectionLost, RemoteProtocolError):
                continue
            if isinstance(message, control.Report):
                reports.append(message)
    return reports
