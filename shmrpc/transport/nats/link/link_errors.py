"""Errors of NATS and its client, and their explanations for users."""

from __future__ import annotations

import logging
import time
from typing import Any, Final

from shmrpc.errors import ServiceUnavailable
from shmrpc.host.log_throttle import LogThrottle
from shmrpc.transport.nats import subjects

logger = logging.getLogger("shmrpc.nats")

#: Seconds that one attempt to connect to NATS may take.
CONNECT_TIMEOUT: Final = 2
#: Text of NATS's client after it has tried each server. It has reported the reasons before.
_NO_SERVERS: Final = "no servers available for connection"
#: Possible reasons for no answer.
_NO_ANSWER: Final = (
    f"no answer within {CONNECT_TIMEOUT} s: the address is wrong, its host is down, or a firewall is in the way"
)


class NatsTimeout(ServiceUnavailable):
    """Error for a NATS that has not answered in time."""


class LinkErrors:
    """Recent errors of one link, and texts about them."""

    def __init__(self, address: str) -> None:
        self._address = address
        #: Client of NATS; None until it is created.
        self.client: Any = None
        #: Text and time of the last error.
        self.last = ""
        self._when = 0.0
        self._refusals = LogThrottle()
        #: Reason why NATS does not permit requests for status; "" if it has not refused any.
        self.status_refusal = ""

    def record(self, error: Exception, *, is_open: bool) -> bool:
        """Record an error, and log it if the link is open.

        Returns False if an open link is only refused a request for status, for which permission is optional: then only
        keeps the text in ``status_refusal``, and logs it for debugging.
        """
        if is_open and f'"{subjects.STATUS}"' in str(error) and "publish" in str(error).lower():
            logger.debug("NATS at %s: %s", self._address, error)  # Optional requests do not require permission.
            self.status_refusal = error_text(error)
            return False
        has_no_answer = isinstance(error, TimeoutError) and not is_open
        self.last, self._when = _NO_ANSWER if has_no_answer else error_text(error), time.monotonic()
        if is_open:  # A peer may repeatedly name subjects that are not permitted.
            kind = type(error), self.last.partition('"')[0]
            logger.log(self._refusals.level_for(kind, logging.WARNING), "NATS at %s: %s", self._address, self.last)
        return True

    def mentions(self, text: str, since: float = -1.0) -> bool:
        """Return True if the last error contains ``text``, ignoring case, and occurred after the time ``since``."""
        return self._when > since and text.lower() in self.last.lower()

    def recent_error(self) -> str:
        """Return the error recorded in the last five seconds, or else the last one of NATS's client, after a colon.

        Return "" if there is none. ``client`` must be set.
        """
        last = self.client.last_error
        if self.last and time.monotonic() - self._when < 5:
            return f": {self.last}"
        return f": {error_text(last)}" if last is not None else ""

    def explain_failure(self, error: BaseException) -> str:
        """Return the reason why connecting failed, with a remedy if one is known."""
        text = (self.last or _NO_ANSWER) if isinstance(error, TimeoutError) else error_text(error)
        if self.last and self.last not in text:
            text = self.last if text == _NO_SERVERS else f"{text} ({self.last})"
        if "authorization" in text.lower():
            where = "in the URL (USER:PASSWORD@, TOKEN@, creds=, nkey=) or the environment (NATS_USER and so on)"
            return f"{text}: it wants another login, {where}"
        refused = "refused" in text or "Connect call failed" in text
        return f"{text}; is nats-server running there?" if refused else text

    def timeout_error(self, late: TimeoutError) -> ServiceUnavailable:
        """Return the error for a link that did not open in time: NatsTimeout if no error was recorded."""
        if not self.last:
            return NatsTimeout(f"NATS at {self._address} does not answer")
        return ServiceUnavailable(f"cannot reach NATS at {self._address}: {self.explain_failure(late)}")

    def describe_loss(self) -> str:
        """Return the text of :meth:`recent_error` without the colon, or a general reason for lost messages."""
        return (self.recent_error() or ": ").removeprefix(": ") or (
            "this process or its network is too slow (a slow consumer), or NATS was restarted"
        )

    def recent_refusal(self) -> str:
        """Return the error recorded in the last two seconds, such as a refusal, after a colon; "" if there is none."""
        return self.recent_error() if time.monotonic() - self._when < 2 else ""


def error_text(error: BaseException) -> str:
    """Return the text of an error of NATS's client, which never contains the login."""
    return str(error).removeprefix("nats: ") or type(error).__name__
