"""Removal of this process's names from the file system before a forced exit."""

from __future__ import annotations

import contextlib
import weakref
from typing import Protocol


class _Holder(Protocol):
    """An owner of names in the file system."""

    def release(self) -> None:
        """Remove the names. Idempotent; safe in any thread; does nothing in a forked child."""


_holders: weakref.WeakSet[_Holder] = weakref.WeakSet()


def release_at_forced_exit(holder: _Holder) -> None:
    """Let :func:`release_all` call ``holder.release()``. Keeps only a weak reference."""
    _holders.add(holder)


def release_all() -> None:
    """Remove the names of all registered holders, before an exit without any other cleanup. Ignores OSError.

    Safe in any thread. Does not end the process.
    """
    for holder in list(_holders):
        with contextlib.suppress(OSError):
            holder.release()
