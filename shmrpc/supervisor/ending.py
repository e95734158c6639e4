"""Ends a process that serves in time, whatever still runs in it."""

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
from concurrent.futures import thread as pools
from types import FrameType
from typing import Final

from shmrpc.host import exit_cleanup

logger = logging.getLogger("shmrpc.server")

#: The folder of Python's own modules.
_LIBRARY: Final = os.path.dirname(os.__file__) + os.sep
#: The folder of shmrpc's modules.
_OURS: Final = os.path.dirname(os.path.dirname(__file__)) + os.sep

#: The exit code of a process that had to be ended.
FORCED: Final = 1
#: Seconds after a second signal that cancelled handlers, lifespans, threads and exit handlers have to end.
AT_ONCE: Final = 2.0
#: Seconds within which a repeated signal counts as one: `timeout` sends it to the process and to its group.
_SAME_SIGNAL: Final = 0.5
#: Seconds that the last words may take: what hangs may hold a lock of the log, or nobody may read the log.
_LAST_WORDS: Final = 3.0


class StopSignals:
    """Recognises a signal that is delivered twice. Signal handlers may use it."""

    def __init__(self) -> None:
        self._last: tuple[int, float] | None = None

    def is_repeat(self, number: int) -> bool:
        """Whether this signal has come within the last half second, and is to be ignored."""
        now = time.monotonic()
        if self._last is not None and self._last[0] == number and now - self._last[1] < _SAME_SIGNAL:
            return True
        self._last = number, now
        return False


class LastResort:
    """Ends this process when its time is over, from a thread of its own.

    ``running`` tells what of the server still runs then, for the log. No task, thread or exit handler that hangs can
    hold it up; only code that never releases the GIL can.
    """

    def __init__(self, running: Callable[[], Sequence[str]]) -> None:
        self._running = running
        # The only kind of queue that a signal handler may use.
        self._times: queue.SimpleQueue[float] = queue.SimpleQueue()
        self._is_watching = False
        #: One is held until it is time to end, the other until the log says what did not end.
        self._due, self._ended = _thread.allocate_lock(), _thread.allocate_lock()
        self._due.acquire()
        self._ended.acquire()

    def within(self, seconds: float) -> None:
        """End the process within these seconds, or within fewer if told so before. A signal handler may call it."""
        self._times.put(time.monotonic() + seconds)
        if not self._is_watching:
            self._is_watching = True
            # Not threading.Thread, which takes locks: a signal handler may have interrupted their holder.
            # Both threads now: CPython 3.12 starts none while it waits for others to end.
            with contextlib.suppress(RuntimeError):  # No thread can be started, or Python is about to end.
                _thread.start_new_thread(self._watch, ())
                _thread.start_new_thread(self._end, ())

    def _watch(self) -> None:
        end = self._times.get()
        while True:
            try:
                left = min(end - time.monotonic(), threading.TIMEOUT_MAX)
                end = min(end, self._times.get(timeout=max(0.0, left)))
            except queue.Empty:
                break
        self._due.release()
        self._ended.acquire(timeout=_LAST_WORDS)
        os._exit(FORCED)

    def _end(self) -> None:
        """Once it is due: leave nothing behind, and log what did not end."""
        self._due.acquire()
        try:
            running = [*self._running(), *_busy_threads()]
            exit_cleanup.release_all()
            _kill_children()
            logger.error("ended by force, since this did not end: %s", "; ".join(running) or "an exit handler")
            logging.shutdown()
            sys.stdout.flush()
        finally:
            self._ended.release()


def _kill_children() -> None:
    """Kill the processes of multiprocessing's pools, which would wait forever for work."""
    multiprocessing = sys.modules.get("multiprocessing")
    for child in multiprocessing.active_children() if multiprocessing is not None else ():
        child.kill()


def _busy_threads() -> Iterator[str]:
    """The threads for which Python would wait, and the main one if the user's code holds it; each with its place."""
    frames = sys._current_frames()
    for thread in threading.enumerate():
        frame = frames.get(thread.ident or 0)
        if thread.daemon or frame is None or _is_idle(frame):
            continue
        nearest = _nearest(frame)
        if thread is threading.main_thread():
            if nearest is None or nearest.f_code.co_filename.startswith(_OURS):
                continue  # The loop waits, or Python ends.
            yield f"the main thread {_place(nearest)}"
        else:
            yield f"thread {thread.name} {_place(nearest or frame)}"


def _place(frame: FrameType) -> str:
    code = frame.f_code
    return f"in {code.co_name}() ({code.co_filename}:{frame.f_lineno})"


def _nearest(frame: FrameType) -> FrameType | None:
    """The innermost frame that is not in Python's library; None if all of them are."""
    for outer, _ in traceback.walk_stack(frame):
        path = outer.f_code.co_filename
        if not path.startswith((_LIBRARY, "<frozen ")) or "-packages" in path:
            return outer
    return None


def _is_idle(frame: FrameType) -> bool:
    """Whether a thread whose innermost frame this is belongs to a pool and has nothing to do."""
    return frame.f_code.co_filename == pools.__file__ and frame.f_code.co_name == "_worker"
