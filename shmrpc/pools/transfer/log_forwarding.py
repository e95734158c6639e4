"""What workers log, on its way to the pool's process, whose loggers handle it as if it were their own."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
import pickle
import socket
from typing import Any, Final

logger = logging.getLogger("shmrpc.pool")

#: Bytes of a packet. A record is far smaller; of one that is not, the text is cut off.
_LARGEST: Final = 1 << 17
#: Characters of a text that is cut off.
_KEPT: Final = 8192
#: Records that are handled in a turn of the loop.
_TURN: Final = 64
#: The levels of loggers by their names; that of the root has none.
Levels = dict[str, int]


def pair() -> tuple[socket.socket, socket.socket]:
    """The two ends of a worker's way: the pool's, which does not block, and the worker's."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_CLOEXEC)
    ours.setblocking(False)
    return ours, theirs


def levels() -> Levels:
    """The levels that are set in this process."""
    known = {
        name: made.level for name, made in logging.root.manager.loggerDict.items() if isinstance(made, logging.Logger)
    }
    return {"": logging.root.level, **{name: level for name, level in known.items() if level}}


def forward(end: socket.socket, wanted: Levels) -> None:
    """In a worker: from now on its records go to the pool's process, unless it has handlers of its own."""
    if logging.root.handlers:
        return
    logging.root.addHandler(_Sender(end))
    for name, level in wanted.items():
        logging.getLogger(name or None).setLevel(level)


class _Sender(logging.Handler):
    """Sends records: at once, so that those of a task with which the worker dies arrive too."""

    def __init__(self, end: socket.socket) -> None:
        super().__init__()
        self._end = end

    def emit(self, record: logging.LogRecord) -> None:
        try:
            if self._end.fileno() >= 0:  # Else this worker ends.
                with contextlib.suppress(ConnectionError):  # The pool has gone.
                    self._send(record)
        except Exception:
            self.handleError(record)

    def _send(self, record: logging.LogRecord) -> None:
        text = record.getMessage()
        traceback = record.exc_text
        if record.exc_info and not traceback:
            traceback = logging.Formatter().formatException(record.exc_info)
        said: dict[str, Any] = {**record.__dict__, "msg": text, "args": None, "exc_info": None, "exc_text": traceback}
        try:
            data = pickle.dumps(said, pickle.HIGHEST_PROTOCOL)
        except Exception:  # What the program has added cannot be sent.
            data = pickle.dumps({name: value for name, value in said.items() if _is_plain(value)})
        try:
            if len(data) <= _LARGEST:
                self._end.send(data)
                return
        except OSError as error:
            if error.errno != errno.EMSGSIZE:
                raise
        for name in ("msg", "exc_text"):
            if said[name]:
                said[name] = f"{said[name][:_KEPT]}... ({len(said[name]):,} characters)"
        self._end.send(pickle.dumps({name: value for name, value in said.items() if name in _KNOWN or value is None}))


def _is_plain(value: Any) -> bool:
    return value is None or isinstance(value, str | int | float)


#: What each record has.
_KNOWN: Final = frozenset(logging.makeLogRecord({}).__dict__)


class Logs:
    """The pool's end of a worker's way, in its loop."""

    def __init__(self, end: socket.socket) -> None:
        self._end, self._loop = end, asyncio.get_running_loop()
        self._loop.add_reader(end.fileno(), self._read)

    def _read(self) -> None:
        for _ in range(_TURN):
            try:
                data = self._end.recv(_LARGEST)
            except BlockingIOError:
                return
            except OSError:
                data = b""
            if not data:
                self.close()
                return
            _handle(data)

    def close(self) -> None:
        """Handles what is there, and ends. Again: nothing."""
        if self._end.fileno() < 0:
            return
        self._loop.remove_reader(self._end.fileno())
        with contextlib.suppress(OSError):
            while data := self._end.recv(_LARGEST):
                _handle(data)
        self._end.close()


def _handle(data: bytes) -> None:
    try:
        record = logging.makeLogRecord(pickle.loads(data))
        there = logging.getLogger(record.name)
        if there.isEnabledFor(record.levelno):
            there.handle(record)
    except Exception:
        logger.exception("a worker's record cannot be logged")
