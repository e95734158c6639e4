"""Processes that are stopped for a while, and replies that arrived unread."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import shmrpc
from tests.helpers.server_process import eventually

#: Seconds for an event that takes moments on an idle machine.
PATIENCE = 60.0


def is_stopped(pid: int) -> bool:
    """Return True if all threads of a process are stopped."""
    try:
        states = {path.read_text().rpartition(")")[2].split()[0] for path in Path(f"/proc/{pid}/task").glob("*/stat")}
    except OSError:  # A thread has just ended.
        return False
    return states == {"T"}


@contextlib.contextmanager
def stopped(pid: int) -> Iterator[None]:
    """Stop a process for the duration of a block."""
    os.kill(pid, signal.SIGSTOP)
    try:
        assert eventually(lambda: is_stopped(pid), PATIENCE)
        yield
    finally:
        os.kill(pid, signal.SIGCONT)


def wait_for_answer(client: shmrpc.Client) -> None:
    """Block the loop until a frame has arrived, and leave it unread."""
    reconnector: Any = client._reconnector
    assert eventually(reconnector.session.connection.channel.has_frame, PATIENCE)
