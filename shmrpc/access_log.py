"""An interceptor that logs each call when it ends, for servers and clients.

::

    from shmrpc import access_log

    shmrpc.serve(calculator, interceptors=[access_log.interceptor()])

    INFO:shmrpc.access:calculator.add() pid=4711 uid=1000 0.042 ms ok

Arguments, results and the texts of exceptions are not logged: they may be secret.
"""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Iterator

from shmrpc.service.call import Call
from shmrpc.service.interceptors import SyncInterceptor
from shmrpc.service.outcome import outcome_of

__all__ = ["interceptor"]


def interceptor(logger: logging.Logger | str = "shmrpc.access", level: int = logging.INFO) -> SyncInterceptor:
    """Return an interceptor that logs one line for each call: service, endpoint, peer, duration and outcome.

    The peer is given as a process and a user. The outcome is ``ok``, ``cancelled``, ``deadline_exceeded``, the code of
    an ApplicationError, or the name of the exception's class. A stream is one call, which takes as long as the stream
    lasts. Formatters find the fields in the record as ``rpc_service``, ``rpc_endpoint``, ``rpc_peer_pid`` (0: unknown),
    ``rpc_peer_uid`` (-1: unknown), ``rpc_duration`` (in seconds) and ``rpc_outcome``. Exceptions are passed on.

    A server does not log calls that never begin: calls with wrong arguments, calls whose deadline has passed, and calls
    that it rejects as Overloaded.
    """
    log = logging.getLogger(logger) if isinstance(logger, str) else logger

    @contextlib.contextmanager
    def logged(call: Call) -> Iterator[None]:
        began = time.perf_counter()
        error: BaseException | None = None
        try:
            yield
        except BaseException as raised:
            error = raised
            raise
        finally:
            if log.isEnabledFor(level):
                _log_end(log, level, call, time.perf_counter() - began, outcome_of(call, error))

    return logged


def _log_end(log: logging.Logger, level: int, call: Call, seconds: float, outcome: str) -> None:
    """Log the line of a call that has ended."""
    log.log(
        level,
        "%s.%s() pid=%s uid=%s %.3f ms %s",
        call.service,
        call.endpoint,
        call.pid or "-",  # 0 and -1: unknown, for a caller on another host.
        call.uid if call.uid >= 0 else "-",
        seconds * 1e3,
        outcome,
        extra={
            "rpc_service": call.service,
            "rpc_endpoint": call.endpoint,
            "rpc_peer_pid": call.pid,
            "rpc_peer_uid": call.uid,
            "rpc_duration": seconds,
            "rpc_outcome": outcome,
        },
    )
