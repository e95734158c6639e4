"""The names of any kind that this process holds in the file system at the moment."""

from __future__ import annotations

import contextlib
import weakref
from typing import Protocol


class _Holder(Protocol):
    def release(self) -> None:
        """Removes the names, from any thread. Does nothing the second time, and in a forked child."""


_holders: weakref.WeakSet[_Holder] = weakref.WeakSet()


def release_at_forced_exit(holder: _Holder) -> None:
    """Registers ``holder`` to be released by :func:`release_all`."""
    _holders.add(holder)


def release_all() -> None:
    """Removes every name that this process holds, since it ends at once and nothing else will."""
    for holder in list(_holders):
        with contextlib.suppress(OSError):
            holder.release()
