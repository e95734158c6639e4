"""Why another process does nothing, as far as the system tells."""

from __future__ import annotations

from pathlib import Path


def why_still(pid: int) -> str:
    """Why a process does not do what is waited for, in words. 0: one whose id cannot be seen from here."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (OSError, IndexError):
        state = ""
    if state in ("T", "t"):
        return f"it is stopped, and goes on after kill -CONT {pid}"
    return "something holds its loop, or it gets no CPU"
