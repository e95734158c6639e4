"""The forced exit of a server process that does not end by itself."""

from __future__ import annotations

import _thread
import contextlib
import logging
import os
import queue
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import thread as thread_pools
from types import FrameType
from typing import Final

from shmrpc.host import exit_cleanup

logger = logging.getLogger("shmrpc.server")

#: Folder of Python's standard library.
_STANDARD_LIBRARY: Final = os.path.dirname(os.__file__) + os.sep
#: Folder of shmrpc.
_PACKAGE: Final = os.path.dirname(os.path.dirname(__file__)) + os.sep

#: Exit code of a process that was ended by force.
FORCED_EXIT_CODE: Final = 1
#: Seconds that cancelled handlers, lifespans, threads and exit handlers have to end after a second signal.
QUICK_STOP_SECONDS: Final = 2.0
#: Seconds within which a repeated signal counts as one: `timeout` signals the process and also its group.
_REPEAT_SECONDS: Final = 0.5
#: Seconds for the last log message: code that hangs may hold a lock of logging, or the pipe of the log may be full.
_LOG_SECONDS: Final = 3.0


class StopSignals:
    """A filter for signals that are delivered twice. Safe in signal handlers."""

    def __init__(self) -> None:
        self._last: tuple[int, float] | None = None

    def is_repeat(self, number: int) -> bool:
        """Return True if the last recorded signal was the same, within half a second; record the signal otherwise."""
        now = time.monotonic()
        if self._last is not None and self._last[0] == number and now - self._last[1] < _REPEAT_SECONDS:
            return True
        self._last = number, now
        return False


class ForcedExit:
    """A deadline after which a thread ends this process.

    ``describe_running`` returns descriptions of what still runs in the server, for the log. Only code that never
    releases the GIL can delay the exit; a task, thread or exit handler that hangs cannot.
    """

    def __init__(self, describe_running: Callable[[], Sequence[str]]) -> None:
        self._describe_running = describe_running
        # Deadlines, in seconds of time.monotonic(). No other kind of queue is safe in a signal handler.
        self._deadlines: queue.SimpleQueue[float] = queue.SimpleQueue()
        self._is_started = False
        # Locks as events: the first is released at the deadline, the second after the last log message.
        self._due, self._is_logged = _thread.allocate_lock(), _thread.allocate_lock()
        self._due.acquire()
        self._is_logged.acquire()

    def schedule(self, seconds: float) -> None:
        """End the process within these seconds, or by an earlier deadline, with code 1. Safe in signal handlers.

        Does not wait. A deadline cannot be revoked: only the process's own end comes before it.
        """
        self._deadlines.put(time.monotonic() + seconds)
        if not self._is_started:
            self._is_started = True
            # Not threading.Thread, which takes locks: a signal handler may have interrupted their holder.
            # Both threads start now, because CPython 3.12 starts none while it waits for others to end.
            with contextlib.suppress(RuntimeError):  # No thread can be started, or Python is shutting down.
                _thread.start_new_thread(self._wait_and_exit, ())
                _thread.start_new_thread(self._log_and_clean_up, ())

    def _wait_and_exit(self) -> None:
        """Wait for the deadline and the last log message, then end the process."""
        end = self._deadlines.get()
        while True:
            try:
                left = min(end - time.monotonic(), threading.TIMEOUT_MAX)
                end = min(end, self._deadlines.get(timeout=max(0.0, left)))
            except queue.Empty:
                break
        self._due.release()
        self._is_logged.acquire(timeout=_LOG_SECONDS)
        os._exit(FORCED_EXIT_CODE)

    def _log_and_clean_up(self) -> None:
        """Wait for the deadline, remove names, kill children, and log what did not end."""
        self._due.acquire()
        try:
            running = [*self._describe_running(), *_describe_busy_threads()]
            exit_cleanup.release_all()
            _kill_children()
            logger.error("ended by force, because this did not end: %s", "; ".join(running) or "an exit handler")
            logging.shutdown()
            sys.stdout.flush()
        finally:
            self._is_logged.release()


def _kill_children() -> None:
    """Kill the processes of multiprocessing's pools, which would wait forever for work."""
    multiprocessing = sys.modules.get("multiprocessing")
    for child in multiprocessing.active_children() if multiprocessing is not None else ():
        child.kill()


def _describe_busy_threads() -> Iterator[str]:
    """Yield the position of each thread that Python would wait for, and of the main thread if user code occupies it."""
    frames = sys._current_frames()
    for thread in threading.enumerate():
        frame = frames.get(thread.ident or 0)
        if thread.daemon or frame is None or _is_idle(frame):
            continue
        nearest = _innermost_user_frame(frame)
        if thread is threading.main_thread():
            if nearest is None or nearest.f_code.co_filename.startswith(_PACKAGE):
                continue  # The event loop waits, or Python shuts down.
            yield f"the main thread {_describe_position(nearest)}"
        else:
            yield f"thread {thread.name} {_describe_position(nearest or frame)}"


def _describe_position(frame: FrameType) -> str:
    """Return the function, file and line of a frame."""
    code = frame.f_code
    return f"in {code.co_name}() ({code.co_filename}:{frame.f_lineno})"


def _innermost_user_frame(frame: FrameType) -> FrameType | None:
    """Return the innermost frame outside Python's standard library; return None if there is none."""
    for outer, _ in traceback.walk_stack(frame):
        path = outer.f_code.co_filename
        if not path.startswith((_STANDARD_LIBRARY, "<frozen ")) or "-packages" in path:
            return outer
    return None


def _is_idle(frame: FrameType) -> bool:
    """Return True if this is the innermost frame of an idle thread of a thread pool."""
    return frame.f_code.co_filename == thread_pools.__file__ and frame.f_code.co_name == "_worker"
