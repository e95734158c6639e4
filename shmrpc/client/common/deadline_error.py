"""The words for a call that was over its deadline: whether it was sent, and whether the server reads at all."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from typing import Final

from shmrpc.errors import DeadlineExceeded
from shmrpc.host.processes import describe_process, explain_no_progress
from shmrpc.transport.errors import ChannelError

#: Nanoseconds without a byte read that say something of a server: an idle one, too, needs a moment to wake up and run.
_TELLING: Final = 50_000_000


class ReadProgress:
    """Watches whether a server reads what it is sent, looked at as each call with a deadline begins to wait.

    ``untaken``: see :meth:`shmrpc.transport.shared_memory_ops.ClientSharedMemoryOps.untaken`.
    """

    def __init__(self, service: str, pid: int, untaken: Callable[[], tuple[int, int, int, int]]) -> None:
        self._service = service
        self._pid = pid
        self._untaken = untaken
        #: Since when (nanoseconds) no byte was read although there were some, as far as anybody looked.
        self._quiet_since = 0
        #: Bytes that had been read by then, and that had been sent.
        self._read = self._sent = 0

    def look(self) -> int:
        """A call begins to wait: the time, in nanoseconds."""
        now = time.monotonic_ns()
        with contextlib.suppress(ChannelError):  # Whoever sends or receives next says so.
            read, in_ring, _, _ = self._untaken()
            if not self._is_quiet(read):
                self._quiet_since, self._read, self._sent = now, read, read + in_ring
        return now

    def _is_quiet(self, read: int) -> bool:
        return read == self._read < self._sent

    def error(self, endpoint: str, since: int, *, taken_back: bool) -> DeadlineExceeded:
        """The error for a call that has waited since then. ``taken_back``: there was no room to send it."""
        now = time.monotonic_ns()
        server = f"the server of {self._service!r} ({describe_process(self._pid)})"
        quiet, kept, size = False, 0, 0
        with contextlib.suppress(ChannelError):
            read, _, kept, size = self._untaken()
            quiet = self._is_quiet(read) and now - self._quiet_since >= _TELLING
        why = f"{server} has read nothing for {_seconds(now - self._quiet_since)}: {explain_no_progress(self._pid)}"
        if taken_back:
            if not quiet:
                why = f"{server} reads more slowly than this client sends"
            return DeadlineExceeded(
                f"{endpoint}() was not sent by its deadline, and is not executed: it waited {_seconds(now - since)} "
                f"for room, beside {kept} other frames of {size:,} bytes; {why}"
            )
        words = f"{endpoint}() was not answered by its deadline"
        return DeadlineExceeded(f"{words}: it waited {_seconds(now - since)}; {why}" if quiet else words)


def _seconds(nanoseconds: int) -> str:
    return f"{nanoseconds / 1e9:.3g} s"
