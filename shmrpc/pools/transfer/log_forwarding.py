"""Forwarding of log records from workers to the pool's process, whose loggers handle them as their own."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
import pickle
import socket
from typing import Any, Final

logger = logging.getLogger("shmrpc.pool")

#: Maximum bytes of a packet. Records are far smaller; the text of a larger one is cut off.
_MAX_PACKET: Final = 1 << 17
#: Characters that remain of a text that is cut off.
_CUT_LENGTH: Final = 8192
#: Maximum number of records that are handled in one iteration of the event loop.
_RECORDS_PER_ITERATION: Final = 64
#: Levels of loggers by name; "" is the root logger.
Levels = dict[str, int]


def socket_pair() -> tuple[socket.socket, socket.socket]:
    """Return the two ends of a worker's log socket: the pool's, which does not block, and the worker's."""
    pool_end, worker_end = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_CLOEXEC)
    pool_end.setblocking(False)
    return pool_end, worker_end


def current_levels() -> Levels:
    """Return the levels of the loggers of this process that have one."""
    known = {
        name: made.level for name, made in logging.root.manager.loggerDict.items() if isinstance(made, logging.Logger)
    }
    return {"": logging.root.level, **{name: level for name, level in known.items() if level}}


def forward_records(end: socket.socket, levels: Levels) -> None:
    """Send the log records of this worker to the pool's process from now on, and set the levels of its loggers.

    Does nothing if the root logger has a handler. The caller keeps ``end`` open.
    """
    if logging.root.handlers:
        return
    logging.root.addHandler(_SocketHandler(end))
    for name, level in levels.items():
        logging.getLogger(name or None).setLevel(level)


class _SocketHandler(logging.Handler):
    """A handler that sends each record at once, so that records of a task that kills its worker arrive too."""

    def __init__(self, end: socket.socket) -> None:
        super().__init__()
        self._end = end

    def emit(self, record: logging.LogRecord) -> None:
        """Send a record; do nothing once the socket is closed or the pool has ended."""
        try:
            if self._end.fileno() >= 0:  # The socket is closed when the worker is about to end.
                with contextlib.suppress(ConnectionError):  # The pool has ended.
                    self._send(record)
        except Exception:
            self.handleError(record)

    def _send(self, record: logging.LogRecord) -> None:
        """Send a record; leave out fields that cannot be pickled, and cut off texts that are too long for a packet.

        Waits while the socket is full. Raises OSError if the record cannot be sent.
        """
        text = record.getMessage()
        traceback = record.exc_text
        if record.exc_info and not traceback:
            traceback = logging.Formatter().formatException(record.exc_info)
        fields: dict[str, Any] = {**record.__dict__, "msg": text, "args": None, "exc_info": None, "exc_text": traceback}
        try:
            data = pickle.dumps(fields, pickle.HIGHEST_PROTOCOL)
        except Exception:  # Fields that the program has added cannot be pickled.
            data = pickle.dumps({name: value for name, value in fields.items() if _is_plain(value)})
        try:
            if len(data) <= _MAX_PACKET:
                self._end.send(data)
                return
        except OSError as error:
            if error.errno != errno.EMSGSIZE:
                raise
        for name in ("msg", "exc_text"):
            if fields[name]:
                fields[name] = f"{fields[name][:_CUT_LENGTH]}... ({len(fields[name]):,} characters)"
        kept = {name: value for name, value in fields.items() if name in _STANDARD_FIELDS or value is None}
        self._end.send(pickle.dumps(kept))


def _is_plain(value: Any) -> bool:
    """Return True for None, a text and a number."""
    return value is None or isinstance(value, str | int | float)


#: Fields that every record has.
_STANDARD_FIELDS: Final = frozenset(logging.makeLogRecord({}).__dict__)


class LogReceiver:
    """The pool's end of a worker's log socket, which the receiver closes, in the running event loop of the pool."""

    def __init__(self, end: socket.socket) -> None:
        self._end, self._loop = end, asyncio.get_running_loop()
        self._loop.add_reader(end.fileno(), self._read)

    def _read(self) -> None:
        """Handle some of the records that have arrived; close the socket if the worker has ended."""
        for _ in range(_RECORDS_PER_ITERATION):
            try:
                data = self._end.recv(_MAX_PACKET)
            except BlockingIOError:
                return
            except OSError:
                data = b""
            if not data:
                self.close()
                return
            _handle(data)

    def close(self) -> None:
        """Handle the records that have arrived, and close the socket. Idempotent."""
        if self._end.fileno() < 0:
            return
        self._loop.remove_reader(self._end.fileno())
        with contextlib.suppress(OSError):
            while data := self._end.recv(_MAX_PACKET):
                _handle(data)
        self._end.close()


def _handle(data: bytes) -> None:
    """Pass a record to the logger of its name; log an error if that fails."""
    try:
        record = logging.makeLogRecord(pickle.loads(data))
        target = logging.getLogger(record.name)
        if target.isEnabledFor(record.levelno):
            target.handle(record)
    except Exception:
        logger.exception("cannot log the record of a worker")
