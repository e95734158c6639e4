"""The schedule of a client's attempts to connect, and the error after the last one."""

from __future__ import annotations

import math
import os
import socket
import time
from collections.abc import Callable, Collection
from typing import Final

from shmrpc.errors import ConnectionLost, ServiceUnavailable
from shmrpc.host import credentials, rendezvous
from shmrpc.host.cleanup import runtime_directories, shared_directory
from shmrpc.host.processes import describe_process, explain_no_progress
from shmrpc.host.runtime_dir import similar
from shmrpc.wire import control

#: Seconds between two attempts to connect: the first, the longest, and the longest without a time limit.
_FIRST_PAUSE: Final = 0.001
_LONGEST_PAUSE: Final = 0.05
_LONGEST_PAUSE_UNLIMITED: Final = 0.25

#: Callback for each attempt to connect, given the reason why the client is not connected; "" without a server.
OnRetry = Callable[[str], None]


class ConnectRetry:
    """The schedule of a client's attempts to connect, and the reasons of the failed ones.

    The attempts end after ``timeout`` seconds in total; None: never. 0 means a single attempt, which does not wait for
    a server to appear, and waits at most :data:`control.MOMENT` for the answers of an existing one. ``note`` receives
    the reason of each failed attempt. ``step_timeout``: seconds that an attempt waits for an answer; the default is
    :data:`control.STEP_TIMEOUT`.
    """

    def __init__(
        self,
        service: str,
        timeout: float | None,
        allow_uids: Collection[int] = (),
        note: OnRetry = lambda reason: None,
        *,
        step_timeout: float | None = None,
    ) -> None:
        self._service = service
        self._allow_uids = allow_uids
        self._timeout = timeout
        began = time.monotonic()
        self._deadline = began + (math.inf if timeout is None else timeout)
        self._answered_by = self._deadline if timeout != 0 else began + control.MOMENT
        self._pause = _FIRST_PAUSE
        self._longest = _LONGEST_PAUSE if timeout is not None else _LONGEST_PAUSE_UNLIMITED
        self._note = note
        self._step_timeout = control.STEP_TIMEOUT if step_timeout is None else step_timeout
        #: Reason why the existing server does not accept the client.
        self._reason = ""
        #: Message that the server does not answer, and the seconds that the client has waited.
        self._no_answer = ""
        self._no_answer_seconds = 0.0

    def dial(self) -> socket.socket | None:
        """Make an attempt; return a socket as :func:`rendezvous.dial` does, or None if no server accepts the client.

        Keeps the reason of a failed attempt for :meth:`next_pause`. The caller owns the socket. Raises
        LocalProtocolError if the server's user is not trusted or the directory is not safe, ValueError or TypeError for
        an invalid name, and SharedMemoryError if no descriptor is left.
        """
        self._no_answer = ""
        try:
            dialled = rendezvous.dial(self._service, self._allow_uids)
            if dialled is None:
                self._note("")  # Without a server, the reason of an earlier one is obsolete.
            return dialled
        except PermissionError:  # Also for a moment at the start of a server that admits this user.
            self._reason = (
                f"a server exists, but admits only its own user; serve it with allow_uids=[{os.geteuid()}] "
                f"(shmrpc serve --allow-user {os.geteuid()})"
            )
            self._note(self._reason)
        except ConnectionLost as error:
            self.record_failure(error)
        return None

    def record_failure(self, error: Exception) -> None:
        """Note and keep the error with which a server refused the client, unless the server did not answer at all."""
        if not self._no_answer:
            self._reason = f"the last server refused: {error}"
            self._note(str(error))

    def welcome_timeout(self, pid: int) -> float:
        """Return the seconds to wait for the welcome of the connected server; 0 after the timeout.

        At most ``step_timeout``. Notes that the server has sent no welcome so far.
        """
        self._note(f"{describe_process(pid)} has not sent its 'welcome' so far")
        return max(0.0, min(self._step_timeout, self._answered_by - time.monotonic()))

    def no_answer_error(self, pid: int, since: float) -> ConnectionLost:
        """Return the error for a server without a welcome since ``since`` (time.monotonic()); note and keep it."""
        self._no_answer_seconds = time.monotonic() - since
        self._no_answer = (
            f"the server of {self._service!r} ({describe_process(pid)}) does not answer: waited "
            f"{self._no_answer_seconds:.3g} s for its 'welcome'; {explain_no_progress(pid)}"
        )
        self._note(self._no_answer)
        return ConnectionLost(self._no_answer)

    def next_pause(self) -> float:
        """Return the seconds to sleep before the next attempt; each call doubles them, up to a limit.

        Raises ServiceUnavailable after the timeout, with the reason of the last server that was kept.
        """
        remaining = self._deadline - time.monotonic()
        if remaining <= 0:
            # An attempt near the end of the timeout proves less than an earlier reason of a server.
            if self._no_answer and (not self._reason or self._no_answer_seconds > (self._timeout or 0) / 2):
                raise ServiceUnavailable(f"cannot connect within {self._timeout:g} s: {self._no_answer}")
            places = " and ".join(map(str, runtime_directories()))
            raise ServiceUnavailable(
                f"no server of {self._service!r} (waited {self._timeout:g} s, looked in {places}); "
                f"{self._reason or self._start_hint()}"
            )
        pause, self._pause = self._pause, min(self._pause * 2, self._longest)
        return min(pause, remaining)

    def _start_hint(self) -> str:
        """Return advice for starting the service."""
        meant = similar(self._service, self._allow_uids)
        start = f"did you mean {meant!r}, which is served? If not, " if meant else ""
        start += f"start it with: shmrpc serve MODULE:{self._service}"
        if credentials.other_users(self._allow_uids) and shared_directory() is None:
            start += "; for services of other users set $SHMRPC_DIRECTORY"
        return start
