"""What is logged of calls that fail."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from typing import Final

from shmrpc.errors import ApplicationError, InvalidArguments, class_name
from shmrpc.values import registry
from shmrpc.wire.failure import CallRejected, traceback_of

#: Its parent is the server's logger: a program that configures that one configures this one too.
logger = logging.getLogger("shmrpc.server.failures")

#: Seconds for which the same failure is only counted.
QUIET_PERIOD: Final = 10.0
#: The kinds of rejections that are a mistake of the endpoint's: what it returned cannot be sent.
_MISTAKES: Final = frozenset({"encode", "size"})
#: What has failed; the class of the exception, and where it was raised.
_FailureKey = tuple[str, str]


def is_expected(error: BaseException) -> bool:
    """Whether an endpoint fails like this on purpose, or by no fault of its own: only its caller is told."""
    if isinstance(error, CallRejected):
        return error.kind not in _MISTAKES
    if isinstance(error, (ApplicationError, InvalidArguments, asyncio.CancelledError)):
        return True
    return registry.entry_of(type(error)) is not None


class FailureLog:
    """Logs the failures of a server's calls with their tracebacks, and counts those that are the same.

    Two are the same if they are of one endpoint and of one class, raised in one line of the program.
    """

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        #: Those that are only counted for now: the count since the last message, and the timer of the next one.
        self._quiet: dict[_FailureKey, tuple[int, asyncio.Handle]] = {}

    def log(self, service: str, endpoint: str, error: BaseException) -> None:
        """Logs a failed call whose caller is told, or has gone."""
        if not is_expected(error):
            self._log(f"{service}.{endpoint}() failed", error)

    def log_one_way(self, service: str, endpoint: str, error: BaseException) -> None:
        """Logs a failed call of which nobody waits to hear. ``endpoint``: "" if it is not known."""
        what = f"{service}.{endpoint}()" if endpoint else f"a call of service {service}"
        self._log(f"{what}, called one way, failed", error)

    def close(self) -> None:
        """Logs the counts that are left."""
        for key, (count, handle) in self._quiet.items():
            handle.cancel()
            if count:
                self._log_count(key, count)
        self._quiet.clear()

    def _log(self, what: str, error: BaseException) -> None:
        key = (what, _class_and_location(error))
        known = self._quiet.get(key)
        if known is not None:
            self._quiet[key] = known[0] + 1, known[1]
            return
        if QUIET_PERIOD:
            self._quiet[key] = 0, self._loop.call_later(QUIET_PERIOD, self._end_quiet, key)
        if isinstance(error, CallRejected) and error.kind in _MISTAKES:  # Its traceback has our own frames alone.
            _write(f"{what}: {error}")
            return
        words = ""
        if not isinstance(error, (Exception, asyncio.CancelledError)):  # Which elsewhere ends a program.
            words = f": its {type(error).__qualname__} ended that call, and nothing else"
        _write(what + words, error)

    def _end_quiet(self, key: _FailureKey) -> None:
        count, _ = self._quiet.pop(key)
        if count:  # It may go on like this.
            self._log_count(key, count)
            self._quiet[key] = 0, self._loop.call_later(QUIET_PERIOD, self._end_quiet, key)

    def _log_count(self, key: _FailureKey, count: int) -> None:
        what, sort = key
        _write(f"{what} {count} more time{'' if count == 1 else 's'}: {sort}")


def _write(message: str, error: BaseException | None = None) -> None:
    """Writes to the log; of an error the traceback that its caller gets: bounded, and text whatever the error is."""
    if not logger.isEnabledFor(logging.ERROR):
        return
    exc_info = None if error is None else (type(error), error, error.__traceback__)
    record = logger.makeRecord(logger.name, logging.ERROR, __file__, 0, "%s", (message,), exc_info)
    if error is not None:
        # Formatters take it as it is. To format a SyntaxError of odd arguments would raise.
        record.exc_text = traceback_of(error).rstrip()
    # If a filter or a handler of the program's log fails, the call's caller is told all the same.
    with contextlib.suppress(Exception):
        logger.handle(record)


def _class_and_location(error: BaseException) -> str:
    """The class of an exception, and where it was raised."""
    trace, where = error.__traceback__, ""
    while trace is not None:
        code = trace.tb_frame.f_code
        where = f" in {code.co_filename}, line {trace.tb_lineno}"
        trace = trace.tb_next
    kind = f"{class_name(type(error))} ({error.kind})" if isinstance(error, CallRejected) else class_name(type(error))
    return f"{kind.removeprefix('builtins.')}{where}"
