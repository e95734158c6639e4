"""Cleanup of the names that this process has in the file system, before a forced exit."""

from __future__ import annotations

import contextlib
import weakref
from typing import Protocol


class _Holder(Protocol):
    def release(self) -> None:
        """Remove the names. Idempotent; safe in any thread; does nothing in a forked child."""


_holders: weakref.WeakSet[_Holder] = weakref.WeakSet()


def release_at_forced_exit(holder: _Holder) -> None:
    """Register ``holder`` for :func:`release_all`."""
    _holders.add(holder)


def release_all() -> None:
    """Remove every name that this process has, because it is about to exit without any other cleanup."""
    for holder in list(_holders):
        with contextlib.suppress(OSError):
            holder.release()
