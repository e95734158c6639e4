"""The process of a worker as its pool sees it."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import socket
from collections.abc import Callable
from typing import Final

from shmrpc.basics.green_threads import new_poll
from shmrpc.basics.timeouts import end_of_wait, seconds_left

#: Seconds to wait for the end of a process that was killed.
_KILL_SECONDS: Final = 5.0
#: The longest wait that ``poll`` can count, an int in C.
_MAX_POLL_MILLISECONDS: Final = (1 << 31) - 1


class SpawnedProcess:
    """The process of a worker. ``read_status`` returns its exit status, or None while the status is unknown.

    Owns the pidfd and the socket until :meth:`close`. Signals raise OSError after that.
    """

    def __init__(self, pid: int, pidfd: int, control: socket.socket, read_status: Callable[[], int | None]) -> None:
        self.pid = pid
        #: Socket to the process.
        self.control = control
        #: Descriptor that becomes readable when the process ends; -1 after close().
        self.pidfd = pidfd
        self.read_status = read_status

    def send_signal(self, number: int) -> None:
        """Send a signal to the process, unless it has ended."""
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(self.pidfd, number)

    def kill(self) -> None:
        """Kill the process, unless it has ended. Does not wait."""
        self.send_signal(signal.SIGKILL)

    def is_stopped(self) -> bool:
        """Return True if a signal or a debugger has stopped the process; False if it runs or has ended."""
        try:
            with open(f"/proc/{self.pid}/stat") as file:
                return file.read().rpartition(")")[2].split()[0] in "Tt"
        except OSError:  # The process has ended.
            return False

    def has_ended(self, timeout: float = 0.0) -> bool:
        """Wait at most ``timeout`` seconds for the end of the process; return True if it has ended, or is closed."""
        return self.pidfd < 0 or wait_readable(self.pidfd, timeout)

    def status(self) -> int | None:
        """Return the exit status, or the negative number of a signal; None while neither is known."""
        return self.read_status() if self.has_ended() else None

    def wait(self, timeout: float) -> None:
        """Wait at most ``timeout`` seconds for the end of the process; then kill it, and wait at most 5 s more.

        Blocks the thread.
        """
        if not self.has_ended(timeout):
            self.kill()
            self.has_ended(_KILL_SECONDS)

    def close(self) -> None:
        """Close the descriptors of a process that has ended. Idempotent."""
        if self.pidfd >= 0:
            self.read_status()  # Reaps the process, if it is a child of this one.
            os.close(self.pidfd)
            self.pidfd = -1
        self.control.close()


def wait_readable(descriptor: int, timeout: float | None) -> bool:
    """Wait until a descriptor is readable, at most ``timeout`` seconds (None: no limit); return True if it is."""
    poll = new_poll()
    poll.register(descriptor, select.POLLIN)
    end = end_of_wait(timeout)
    while True:
        left = seconds_left(end)
        milliseconds = None if left is None else min(left * 1e3, _MAX_POLL_MILLISECONDS)
        if poll.poll(milliseconds):
            return True
        if milliseconds is not None and milliseconds < _MAX_POLL_MILLISECONDS:
            return False
