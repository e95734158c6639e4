"""The error of a call that missed its deadline, which says if the call was sent and if the server reads."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from typing import Final

from shmrpc.errors import DeadlineExceeded
from shmrpc.host.processes import describe_process, explain_no_progress
from shmrpc.transport.errors import ChannelError

#: Nanoseconds without a read byte that indicate a stalled server; an idle server needs less to wake up.
_STALL_THRESHOLD: Final = 50_000_000


class ReadProgress:
    """An observer of a server's reading, with a sample for each wait of a call with a deadline.

    ``untaken``: see :meth:`shmrpc.transport.shared_memory_ops.ClientSharedMemoryOps.untaken`.
    """

    def __init__(self, service: str, pid: int, untaken: Callable[[], tuple[int, int, int, int]]) -> None:
        self._service = service
        self._pid = pid
        self._untaken = untaken
        #: Time in nanoseconds since which unread bytes were observed and none was read.
        self._stalled_since = 0
        #: Bytes that the server had read, and that this side had sent, at that time.
        self._read = self._sent = 0

    def sample(self) -> int:
        """Sample the progress at the start of a wait; return ``time.monotonic_ns()``, not the host's clock."""
        now = time.monotonic_ns()
        with contextlib.suppress(ChannelError):  # The next send or receive raises it.
            read, in_ring, _, _ = self._untaken()
            if not self._is_stalled(read):
                self._stalled_since, self._read, self._sent = now, read, read + in_ring
        return now

    def _is_stalled(self, read: int) -> bool:
        """Return True if the server had unread bytes at the last sample, and has read none since."""
        return read == self._read < self._sent

    def deadline_error(self, endpoint: str, since: int, *, taken_back: bool) -> DeadlineExceeded:
        """Return the error for a call that has waited since ``since``, the value that :meth:`sample` returned.

        ``taken_back``: True if the call was never sent.
        """
        now = time.monotonic_ns()
        server = f"the server of {self._service!r} ({describe_process(self._pid)})"
        quiet, kept, size = False, 0, 0
        with contextlib.suppress(ChannelError):
            read, _, kept, size = self._untaken()
            quiet = self._is_stalled(read) and now - self._stalled_since >= _STALL_THRESHOLD
        why = f"{server} has read nothing for {_seconds(now - self._stalled_since)}: {explain_no_progress(self._pid)}"
        if taken_back:
            if not quiet:
                why = f"{server} reads more slowly than this client sends"
            return DeadlineExceeded(
                f"{endpoint}() was not sent by its deadline, and is not executed: it waited {_seconds(now - since)} "
                f"for room, with {kept} other frames of {size:,} bytes; {why}"
            )
        words = f"{endpoint}() was not answered by its deadline"
        return DeadlineExceeded(f"{words}: it waited {_seconds(now - since)}; {why}" if quiet else words)


def _seconds(nanoseconds: int) -> str:
    """Return a duration in seconds as text, such as "0.25 s"."""
    return f"{nanoseconds / 1e9:.3g} s"
