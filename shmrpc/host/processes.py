"""Another process, as far as the system tells: which one it is, in words, and why it does nothing."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path


def process(pid: int | None, role: str = "") -> str:
    """A process, for a message; ``role``: such as "client".

    ``pid`` is as the kernel tells it, never as a process says of itself: here that may be another one's. None or 0: it
    has no id in our pid namespace, as one of the host has none in a container.
    """
    kind = f"{role} process".lstrip()
    return f"{kind} {pid}" if pid else f"a {kind} whose id cannot be seen from here"


def why_still(pid: int) -> str:
    """Why a process does not do what is waited for, in words. ``pid``: as for :func:`process`."""
    state = ""
    with contextlib.suppress(OSError, IndexError):
        if _has_our_ids():
            state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    if state in ("T", "t"):
        return f"it is stopped, and goes on after kill -CONT {pid}"
    if not state:
        return "it is stopped, something holds its loop, or it gets no CPU; which one, cannot be seen from here"
    return "something holds its loop, or it gets no CPU"


def lock_holder(file: os.stat_result) -> int | None:
    """The process that has a flock on a file, as the kernel tells it; None if that cannot be seen from here."""
    device, number = file.st_dev, file.st_ino
    lies = f"{os.major(device):02x}:{os.minor(device):02x}:{number}"
    with contextlib.suppress(OSError):
        for line in Path("/proc/locks").read_text().splitlines() if _has_our_ids() else ():
            match line.split():
                case [_, "FLOCK", _, _, pid, where, *_] if where == lies:
                    return int(pid)
    return None


def _has_our_ids() -> bool:
    """Whether a process has the same id in /proc as for us: what is mounted there may be another pid namespace's."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("NSpid:"):  # Our ids there, and in each namespace within that one down to our own.
            return len(line.split()) == 2
    return True
