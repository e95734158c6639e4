"""The names that this process has in the file system at the moment."""

from __future__ import annotations

import contextlib
import weakref
from typing import Protocol


class _Holder(Protocol):
    def release(self) -> None:
        """Removes the names, from any thread. Again, and in a forked child: nothing."""


_holders: weakref.WeakSet[_Holder] = weakref.WeakSet()


def held_by(holder: _Holder) -> None:
    """Calls ``holder.release()`` in :func:`release_all`."""
    _holders.add(holder)


def release_all() -> None:
    """Removes every name that this process has: it ends at once, and nobody else will."""
    for holder in list(_holders):
        with contextlib.suppress(OSError):
            holder.release()
