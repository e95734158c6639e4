"""The log of failed calls."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from typing import Final

from shmrpc.errors import ApplicationError, InvalidArguments
from shmrpc.exception_parts import class_name
from shmrpc.values import registry
from shmrpc.wire.failure import CallRejected, traceback_of

#: A child of the server's logger, so that configuring that one configures this one.
logger = logging.getLogger("shmrpc.server.failures")

#: Seconds for which further equal failures are only counted.
QUIET_PERIOD: Final = 10.0
#: Kinds of rejections that are mistakes of the endpoint: its result cannot be sent.
_MISTAKES: Final = frozenset({"encode", "size"})
#: The failed endpoint in words; the class of the exception and the location where it was raised.
_FailureKey = tuple[str, str]


def is_expected(error: BaseException) -> bool:
    """Return True if an error is of use only to the caller, so that the server need not log it as a failure.

    These errors are the ones that the endpoint raised on purpose (ApplicationError or a registered class), a
    cancellation, and rejections of the call. A rejection of the result, which cannot be encoded or is too large, is a
    mistake of the endpoint: return False.
    """
    if isinstance(error, CallRejected):
        return error.kind not in _MISTAKES
    if isinstance(error, (ApplicationError, InvalidArguments, asyncio.CancelledError)):
        return True
    return registry.entry_of(type(error)) is not None


class FailureLog:
    """The log of a server's failed calls, with tracebacks, in which equal failures are counted.

    Failures are equal if they have the same endpoint, class and line of code.
    """

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        #: Failures that are only counted for now: the count since the last message, and the timer of the next message.
        self._quiet: dict[_FailureKey, tuple[int, asyncio.Handle]] = {}

    def log(self, service: str, endpoint: str, error: BaseException) -> None:
        """Log a failed call whose caller has received the error, or has disconnected, unless the error is expected."""
        if not is_expected(error):
            self._log(f"{service}.{endpoint}() failed", error)

    def log_one_way(self, service: str, endpoint: str, error: BaseException) -> None:
        """Log a failed one-way call, also with an expected error. ``endpoint``: "" if it is unknown."""
        what = f"{service}.{endpoint}()" if endpoint else f"a call of service {service}"
        self._log(f"{what}, called one way, failed", error)

    def close(self) -> None:
        """Log the counts of the failures that were not logged, and stop the timers."""
        for key, (count, handle) in self._quiet.items():
            handle.cancel()
            if count:
                self._log_count(key, count)
        self._quiet.clear()

    def _log(self, what: str, error: BaseException) -> None:
        """Log a failure, or only count it if an equal one was logged a moment ago."""
        key = (what, _class_and_location(error))
        known = self._quiet.get(key)
        if known is not None:
            self._quiet[key] = known[0] + 1, known[1]
            return
        if QUIET_PERIOD:
            self._quiet[key] = 0, self._loop.call_later(QUIET_PERIOD, self._end_quiet_period, key)
        if isinstance(error, CallRejected) and error.kind in _MISTAKES:  # Its traceback has internal frames only.
            _write(f"{what}: {error}")
            return
        remark = ""
        if not isinstance(error, (Exception, asyncio.CancelledError)):  # Would end a program elsewhere.
            remark = f": its {type(error).__qualname__} ended that call, and nothing else"
        _write(what + remark, error)

    def _end_quiet_period(self, key: _FailureKey) -> None:
        """Log how often a failure has occurred again in its quiet period, and start another period if it has."""
        count, _ = self._quiet.pop(key)
        if count:  # The failures may continue.
            self._log_count(key, count)
            self._quiet[key] = 0, self._loop.call_later(QUIET_PERIOD, self._end_quiet_period, key)

    def _log_count(self, key: _FailureKey, count: int) -> None:
        """Log how often a failure has occurred again."""
        what, sort = key
        _write(f"{what} {count} more time{'' if count == 1 else 's'}: {sort}")


def _write(message: str, error: BaseException | None = None) -> None:
    """Log a message at level ERROR, with the shortened traceback that the caller receives. Raises nothing."""
    if not logger.isEnabledFor(logging.ERROR):
        return
    exc_info = None if error is None else (type(error), error, error.__traceback__)
    record = logger.makeRecord(logger.name, logging.ERROR, __file__, 0, "%s", (message,), exc_info)
    if error is not None:
        # Formatters use exc_text unchanged. Formatting a SyntaxError with unusual arguments would raise.
        record.exc_text = traceback_of(error).rstrip()
    # The caller gets its reply even if a filter or handler of the program's logging raises.
    with contextlib.suppress(Exception):
        logger.handle(record)


def _class_and_location(error: BaseException) -> str:
    """Return a text with the class of an exception and the location where it was raised."""
    trace, where = error.__traceback__, ""
    while trace is not None:
        code = trace.tb_frame.f_code
        where = f" in {code.co_filename}, line {trace.tb_lineno}"
        trace = trace.tb_next
    kind = f"{class_name(type(error))} ({error.kind})" if isinstance(error, CallRejected) else class_name(type(error))
    return f"{kind.removeprefix('builtins.')}{where}"
