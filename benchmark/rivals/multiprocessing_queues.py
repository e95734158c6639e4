"""multiprocessing's Queue and SimpleQueue. They have no batches: items go one by one, or a list of them is an item."""

from __future__ import annotations

import contextlib
import functools
import multiprocessing
from collections.abc import Iterator
from multiprocessing.queues import Queue, SimpleQueue
from typing import Any, Final

from benchmark.processes import Rendezvous
from benchmark.queue_work import COPIED, End, Part, Way, baton, copied, one_by_one
from benchmark.subjects import Loop

#: Items that may wait.
_MOST: Final = 10_000

_fork: Final = multiprocessing.get_context("fork")


class _Inherited:
    """A queue that all processes inherit."""

    loop: Loop = "none"

    def __init__(self, place: Rendezvous, queue: Queue[Any] | SimpleQueue[Any], lists: bool) -> None:
        self.place, self._queue, self._lists = place, queue, lists

    @contextlib.contextmanager
    def open(self, part: Part) -> Iterator[End]:
        """Yield the end of this process."""
        queue, put, get = self._queue, self._queue.put, self._queue.get
        say_over, is_over = baton((lambda left: put([left])) if self._lists else put, part)

        def end() -> None:
            say_over()
            if isinstance(queue, Queue):
                # A thread sends what was put: the writer has not ended before it has.
                queue.close()
                queue.join_thread()

        if self._lists:
            yield End(put, put, get, lambda most: get(), end, is_over)
        else:
            arrays = {COPIED: lambda: copied(put, get, is_kept=isinstance(queue, Queue))}
            yield End(put, one_by_one(put), get, lambda most: [get()], end, is_over, arrays=arrays)


@contextlib.contextmanager
def _connect(place: Rendezvous, simple: bool, lists: bool) -> Iterator[Way]:
    # A list stands for about a hundred items.
    most = _MOST // 100 if lists else _MOST
    yield _Inherited(place, _fork.SimpleQueue() if simple else _fork.Queue(most), lists)


connect_queue = functools.partial(_connect, simple=False, lists=False)
connect_queue_lists = functools.partial(_connect, simple=False, lists=True)
connect_simple = functools.partial(_connect, simple=True, lists=False)
connect_simple_lists = functools.partial(_connect, simple=True, lists=True)
