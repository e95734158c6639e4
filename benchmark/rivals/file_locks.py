"""filelock, which looks again every 50 ms for a lock that is taken."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from filelock import FileLock

from benchmark.processes import Place
from benchmark.sharing import Locked, words


@contextlib.contextmanager
def connect(place: Place) -> Iterator[Locked]:
    """A lock on a file of the subject's own."""
    with words(place) as shared:
        yield Locked(FileLock(place.socket("lock")), shared)
