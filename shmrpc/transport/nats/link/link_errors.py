"""LinkErrors of NATS and its client, and the sentences that explain them to a user."""

from __future__ import annotations

import logging
import time
from typing import Any, Final

from shmrpc.errors import ServiceUnavailable
from shmrpc.host.log_throttle import LogThrottle
from shmrpc.transport.nats import subjects

logger = logging.getLogger("shmrpc.nats")

#: Seconds that one try to connect to NATS may take.
CONNECT_TIMEOUT: Final = 2
#: The text of NATS's client once it has tried each server; it has complained of the reasons before.
_NO_SERVERS: Final = "no servers available for connection"
#: Why there may be no answer at all.
_NO_ANSWER: Final = (
    f"no answer within {CONNECT_TIMEOUT} s: the address is wrong, its host is down, or a firewall is in the way"
)


class NatsTimeout(ServiceUnavailable):
    """NATS has said nothing in time."""


class LinkErrors:
    """LinkErrors of the client of one link."""

    def __init__(self, place: str) -> None:
        self._place = place
        #: NATS's client, once there is one.
        self.client: Any = None
        #: The last complaint, and when it came.
        self.last = ""
        self._when = 0.0
        self._refusals = LogThrottle()
        #: Why NATS does not let this side ask which servers there are, in words; "" if it has not said so.
        self.status_refusal = ""

    def record(self, error: Exception, *, is_open: bool) -> bool:
        """Keep a complaint, and log it if the link is open; False if it is of a question that need not be permitted."""
        if is_open and f'"{subjects.STATUS}"' in str(error) and "publish" in str(error).lower():
            logger.debug("NATS at %s: %s", self._place, error)  # Who asks without need need not be permitted to.
            self.status_refusal = error_text(error)
            return False
        has_no_answer = isinstance(error, TimeoutError) and not is_open
        self.last, self._when = _NO_ANSWER if has_no_answer else error_text(error), time.monotonic()
        if is_open:  # A peer may name subjects that are not permitted, again and again.
            kind = type(error), self.last.partition('"')[0]
            logger.log(self._refusals.level_for(kind, logging.WARNING), "NATS at %s: %s", self._place, self.last)
        return True

    def mentions(self, text: str, since: float = -1.0) -> bool:
        """Say whether the last complaint has this text in it, and came after ``since``. Case is ignored."""
        return self._when > since and text.lower() in self.last.lower()

    def recent_error(self) -> str:
        """Return what NATS's client has complained of, if that was just now, behind a colon; else nothing."""
        last = self.client.last_error
        if self.last and time.monotonic() - self._when < 5:
            return f": {self.last}"
        return f": {error_text(last)}" if last is not None else ""

    def explain_failure(self, error: BaseException) -> str:
        """Say why there is no connection, and what to do."""
        text = (self.last or _NO_ANSWER) if isinstance(error, TimeoutError) else error_text(error)
        if self.last and self.last not in text:
            text = self.last if text == _NO_SERVERS else f"{text} ({self.last})"
        if "authorization" in text.lower():
            where = "in the URL (USER:PASSWORD@, TOKEN@, creds=, nkey=) or the environment (NATS_USER and so on)"
            return f"{text}: it wants another login, {where}"
        refused = "refused" in text or "Connect call failed" in text
        return f"{text}; is nats-server running there?" if refused else text

    def timeout_error(self, late: TimeoutError) -> ServiceUnavailable:
        """Return the error for a link that is not open in time."""
        if not self.last:
            return NatsTimeout(f"NATS at {self._place} does not answer")
        return ServiceUnavailable(f"cannot reach NATS at {self._place}: {self.explain_failure(late)}")

    def describe_loss(self) -> str:
        """Say why messages may have been lost."""
        return (self.recent_error() or ": ").removeprefix(": ") or (
            "this process, or the way to it, is too slow for what it is sent (a slow consumer), or NATS was restarted"
        )

    def recent_refusal(self) -> str:
        """Return what NATS has refused, if it just did, behind a colon; else nothing."""
        return self.recent_error() if time.monotonic() - self._when < 2 else ""


def error_text(error: BaseException) -> str:
    """Return what an error of NATS's client says; never what it was given to log in with."""
    return str(error).removeprefix("nats: ") or type(error).__name__
