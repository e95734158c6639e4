"""Descriptions of other processes for messages: identity, and reasons for a lack of progress."""

from __future__ import annotations

import contextlib
import os
import signal
from pathlib import Path

#: States of a process that a signal or a debugger has stopped.
_STOPPED = ("T", "t")


def describe_process(pid: int | None, role: str = "") -> str:
    """Return a description of a process for a message; ``role``: such as "client".

    Pass a ``pid`` from the kernel, never one that the process has sent, which may be another process's id in this pid
    namespace. None or 0 stands for a process without an id here: in a container, for a process of the host.
    """
    kind = f"{role} process".lstrip()
    return f"{kind} {pid}" if pid else f"a {kind} whose id cannot be seen from here"


def describe_member(pid: int | None) -> str:
    """Return "this process" for the id of this process, otherwise the result of :func:`describe_process`."""
    return "this process" if pid == os.getpid() else describe_process(pid)


def describe_killed(number: int) -> str:
    """Return how a signal has ended a process, as the predicate of a sentence."""
    try:
        return f"was killed by {signal.Signals(number).name}"
    except ValueError:  # Most real-time signals have no name.
        return f"was killed by signal {number}"


def explain_no_progress(pid: int) -> str:
    """Return the probable reason why a process makes no progress. ``pid``: as for :func:`describe_process`."""
    state = _state(pid)
    if state in _STOPPED:
        return f"it is stopped; to continue it: kill -CONT {pid}"
    if not state:
        return "it is stopped, its event loop is blocked, or it gets no CPU; its state is not visible from here"
    return "its event loop is blocked, or it gets no CPU"


def describe_stopped(pid: int) -> str:
    """Return a clause for a message about a stopped process; return "" if it runs, or its state is not visible."""
    return f", and is stopped; to continue it: kill -CONT {pid}" if _state(pid) in _STOPPED else ""


def _state(pid: int) -> str:
    """Return the state of a process as a letter; return "" if it is not visible from here."""
    with contextlib.suppress(OSError, IndexError):
        if _shows_own_namespace():
            return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    return ""


def lock_holder(file: os.stat_result) -> int | None:
    """Return the process that holds a flock on a file; None if there is none, or it is not visible from here."""
    device, number = file.st_dev, file.st_ino
    location = f"{os.major(device):02x}:{os.minor(device):02x}:{number}"
    with contextlib.suppress(OSError):
        for line in Path("/proc/locks").read_text().splitlines() if _shows_own_namespace() else ():
            match line.split():
                case [_, "FLOCK", _, _, pid, where, *_] if where == location:
                    return int(pid)
    return None


def _shows_own_namespace() -> bool:
    """Return True if /proc shows the ids of the pid namespace of this process."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("NSpid:"):  # One id for each nested namespace, down to that of this process.
            return len(line.split()) == 2
    return True
