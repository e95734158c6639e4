"""The attempts of a client to connect: each failure is noted with its reason."""

from __future__ import annotations

import os
from typing import Any, NoReturn

import pytest

from shmrpc.errors import ConnectionLost
from shmrpc.host import rendezvous
from shmrpc.host.connect_retry import ConnectRetry


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (
            PermissionError(),
            f"a server exists, but admits only its own user; serve it with allow_uids=[{os.geteuid()}]",
        ),
        (ConnectionLost("the backlog is full"), "the backlog is full"),
    ],
)
def test_the_reason_of_each_failed_attempt_is_noted(
    monkeypatch: pytest.MonkeyPatch, error: Exception, reason: str
) -> None:
    def fail(*_: Any) -> NoReturn:
        raise error

    monkeypatch.setattr(rendezvous, "dial", fail)
    notes: list[str] = []
    retry = ConnectRetry("tested", 1.0, note=notes.append)
    assert retry.dial() is None
    assert len(notes) == 1 and notes[0].startswith(reason)
