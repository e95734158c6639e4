"""A spare file descriptor, for use when no other is left."""

from __future__ import annotations

import contextlib
import os


class SpareDescriptor:
    """A descriptor of ``/dev/null``, which its owner closes to get a free one when no other is left."""

    def __init__(self) -> None:
        self._descriptor = -1

    @property
    def is_open(self) -> bool:
        """True while the spare descriptor is open."""
        return self._descriptor >= 0

    def open(self) -> None:
        """Open the spare descriptor if the system has one left; see :attr:`is_open`. Idempotent."""
        if self._descriptor < 0:
            with contextlib.suppress(OSError):
                self._descriptor = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)

    def close(self) -> None:
        """Close the spare descriptor. Idempotent."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1
