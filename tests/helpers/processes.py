"""The state of other processes, as the kernel reports it."""

from __future__ import annotations

from pathlib import Path


def gone(pid: int) -> bool:
    """Return True if a process has ended; a zombie counts as ended."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except (FileNotFoundError, ProcessLookupError):
        return True


def parent_of(pid: int) -> int:
    """Return the process id of a process's parent."""
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
