"""Words for another process, as far as the system tells: which one it is, and why it does nothing."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

#: The states of a process that was stopped, by a signal or a debugger.
_STOPPED = ("T", "t")


def describe_process(pid: int | None, role: str = "") -> str:
    """Names a process in a message; ``role``: such as "client".

    ``pid`` is the kernel's, never what a process says of itself: here that may be another one's. None or 0 stands for a
    process without an id in our pid namespace, as those of the host are in a container.
    """
    kind = f"{role} process".lstrip()
    return f"{kind} {pid}" if pid else f"a {kind} whose id cannot be seen from here"


def describe_member(pid: int | None) -> str:
    """Names a process that may be this one: it is another task or thread then."""
    return "this process" if pid == os.getpid() else describe_process(pid)


def explain_no_progress(pid: int) -> str:
    """Says why a process that is waited for may make no progress. ``pid``: as for :func:`describe_process`."""
    state = _state(pid)
    if state in _STOPPED:
        return f"it is stopped, and goes on after kill -CONT {pid}"
    if not state:
        return "it is stopped, something holds its loop, or it gets no CPU; which one, cannot be seen from here"
    return "something holds its loop, or it gets no CPU"


def describe_stopped(pid: int) -> str:
    """Says that a process, from which something is waited for, is stopped; "" if it is not as far as can be seen."""
    return f", and is stopped: it goes on after kill -CONT {pid}" if _state(pid) in _STOPPED else ""


def _state(pid: int) -> str:
    """The state of a process in a letter; "" if it cannot be seen from here."""
    with contextlib.suppress(OSError, IndexError):
        if _has_our_ids():
            return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    return ""


def lock_holder(file: os.stat_result) -> int | None:
    """The process that holds a flock on a file, by the kernel's list; None if it cannot be seen from here."""
    device, number = file.st_dev, file.st_ino
    lies = f"{os.major(device):02x}:{os.minor(device):02x}:{number}"
    with contextlib.suppress(OSError):
        for line in Path("/proc/locks").read_text().splitlines() if _has_our_ids() else ():
            match line.split():
                case [_, "FLOCK", _, _, pid, where, *_] if where == lies:
                    return int(pid)
    return None


def _has_our_ids() -> bool:
    """Whether /proc shows the ids of our pid namespace, and not those of another one."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("NSpid:"):  # Our ids there, and in each namespace within that one down to our own.
            return len(line.split()) == 2
    return True
