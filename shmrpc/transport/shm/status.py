"""Asking the live servers about themselves."""

from __future__ import annotations

from shmrpc.errors import ConnectionLost, RemoteProtocolError
from shmrpc.protocol import control
from shmrpc.transport.shm import rendezvous
from shmrpc.transport.shm.blocking import ask


def statuses() -> list[control.Report]:
    """What each live server of this user reports; one that does not answer in time is left out."""
    reports = []
    for service in rendezvous.services():
        dialled = rendezvous.dial(service)
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
