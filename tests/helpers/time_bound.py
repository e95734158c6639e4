"""A bound in time for what blocks the main thread: a test that would hang fails instead."""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Iterator

from tests.helpers.scale import scaled


@contextlib.contextmanager
def bounded(seconds: int | None = None) -> Iterator[None]:
    """SIGALRM raises AssertionError after so many seconds: two minutes, and in the long form ten."""
    limit = seconds or scaled(120, 600)

    def late(number: int, frame: object) -> None:
        raise AssertionError(f"it hangs: not done after {limit} s")

    before = signal.signal(signal.SIGALRM, late)
    signal.alarm(limit)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)
