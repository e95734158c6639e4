"""A time limit for code that blocks the main thread: a test that would hang fails."""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Iterator

from tests.helpers.scale import scaled


@contextlib.contextmanager
def bounded(seconds: int | None = None) -> Iterator[None]:
    """Raise AssertionError by SIGALRM after so many seconds: two minutes, and in the long form ten."""
    limit = seconds or scaled(120, 600)

    def late(number: int, frame: object) -> None:
        raise AssertionError(f"the test hangs: not done after {limit} s")

    before = signal.signal(signal.SIGALRM, late)
    signal.alarm(limit)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)
