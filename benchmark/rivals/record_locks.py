"""The kernel's record locks by ``fcntl.lockf``: no package, and a system call each way."""

from __future__ import annotations

import contextlib
import fcntl
import functools
import types
from collections.abc import Iterator

from benchmark.processes import Rendezvous
from benchmark.sharing import Locked, words


@contextlib.contextmanager
def connect(place: Rendezvous) -> Iterator[Locked]:
    """Yield a lock on a file of the subject's own."""
    with open(place.socket("lock"), "wb") as file, words(place) as shared:
        acquire = functools.partial(fcntl.lockf, file.fileno(), fcntl.LOCK_EX)
        release = functools.partial(fcntl.lockf, file.fileno(), fcntl.LOCK_UN)
        yield Locked(types.SimpleNamespace(acquire=acquire, release=release), shared)
