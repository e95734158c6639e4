"""filelock, which looks again every 50 ms for a lock that is taken."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from filelock import FileLock

from benchmark.processes import Rendezvous
from benchmark.sharing import Locked, words


@contextlib.contextmanager
def connect(place: Rendezvous) -> Iterator[Locked]:
    """Yield a lock on a file of the subject's own."""
    with words(place) as shared:
        yield Locked(FileLock(place.socket("lock")), shared)
