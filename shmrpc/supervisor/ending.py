"""The end of a process that serves: whatever still runs then, it comes in time."""

from __future__ import annotations

import _thread
import contextlib
import logging
import os
import queue
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import thread as pools
from types import FrameType
from typing import Final

from shmrpc.host import held_names

logger = logging.getLogger("shmrpc.server")

#: Where Python's own modules are.
_LIBRARY: Final = os.path.dirname(os.__file__) + os.sep
#: Where shmrpc's are.
_OURS: Final = os.path.dirname(os.path.dirname(__file__)) + os.sep

#: The exit code of a process that had to be ended.
FORCED: Final = 1
#: Seconds after a second signal that cancelled handlers, lifespans, threads and exit handlers have to end.
AT_ONCE: Final = 2.0
#: Seconds in which a signal that comes again is the same one: `timeout` sends it to the process and to its group.
_SAME_SIGNAL: Final = 0.5
#: Seconds that the last words may take: whoever hangs may hold a lock of the log, or nobody reads it.
_LAST_WORDS: Final = 3.0


class StopSignals:
    """Tells a signal to stop from the one before it, delivered twice. A signal handler may use it."""

    def __init__(self) -> None:
        self._last: tuple[int, float] | None = None

    def is_repeat(self, number: int) -> bool:
        """Whether this signal is one that came within the last half second, to be ignored."""
        now = time.monotonic()
        if self._last is not None and self._last[0] == number and now - self._last[1] < _SAME_SIGNAL:
            return True
        self._last = number, now
        return False


class LastResort:
    """Ends this process when its time is over, from a thread of its own.

    ``running``: what of the server still runs then, for the log. Nothing that hangs can hold it up: no task, thread or
    exit handler; only code that never lets go of the GIL.
    """

    def __init__(self, running: Callable[[], Sequence[str]]) -> None:
        self._running = running
        # Of all queues this is the one that a signal handler may use.
        self._times: queue.SimpleQueue[float] = queue.SimpleQueue()
        self._is_watching = False
        #: Held until it is time to end, and until it is said what did not.
        self._due, self._ended = _thread.allocate_lock(), _thread.allocate_lock()
        self._due.acquire()
        self._ended.acquire()

    def within(self, seconds: float) -> None:
        """The process ends within so many seconds; the soonest time counts. A signal handler may call it."""
        self._times.put(time.monotonic() + seconds)
        if not self._is_watching:
            self._is_watching = True
            # Not threading.Thread, which takes locks: a signal handler may have interrupted their holder.
            # Both at once: CPython 3.12 starts no thread any more while it waits for others to end.
            with contextlib.suppress(RuntimeError):  # No thread can be had, or Python is about to end.
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
        """Leaves nothing behind, and says what did not end, once that is due."""
        self._due.acquire()
        try:
            running = [*self._running(), *_busy_threads()]
            held_names.release_all()
            _kill_children()
            logger.error("ended by force, since this did not end: %s", "; ".join(running) or "an exit handler")
            logging.shutdown()
            sys.stdout.flush()
        finally:
            self._ended.release()


def _kill_children() -> None:
    """Without this process those of multiprocessing's pools would wait for ever for something to do."""
    multiprocessing = sys.modules.get("multiprocessing")
    for child in multiprocessing.active_children() if multiprocessing is not None else ():
        child.kill()


def _busy_threads() -> Iterator[str]:
    """The threads for which Python would wait, and the main one if the user's code holds it; and where they are."""
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
    outer: FrameType | None = frame
    while outer is not None:
        path = outer.f_code.co_filename
        if not path.startswith((_LIBRARY, "<frozen ")) or "-packages" in path:
            return outer
        outer = outer.f_back
    return None


def _is_idle(frame: FrameType) -> bool:
    """Whether it is the innermost one of a pool's thread that has nothing to do."""
    return frame.f_code.co_filename == pools.__file__ and frame.f_code.co_name == "_worker"
