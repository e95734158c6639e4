"""faster-fifo: a queue each way, made by who starts both sides, with msgspec instead of its pickle."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from queue import Empty
from typing import Any, Final, NamedTuple

import msgspec
from faster_fifo import Queue

from benchmark.processes import Rendezvous
from benchmark.work import MessageTally, add, echo

#: Bytes of each queue: one of the largest messages, and as little more as keeps it in the cache.
_SIZE: Final = 8 << 20
#: Bytes after which no further message is taken at once: more of them would go through memory and not the cache.
_AT_ONCE: Final = 1 << 20
#: Bytes of messages that are put there together.
_GATHER: Final = 1 << 17
#: Seconds to wait. Nothing interrupts a wait, not even a signal: the server ends after so long.
_LOOK: Final = 0.5
_PATIENCE: Final = 60.0


class _Queues(NamedTuple):
    requests: Queue
    answers: Queue


def _queue() -> Queue:
    queue = Queue(_SIZE, dumps=msgspec.msgpack.encode, loads=msgspec.msgpack.decode)
    queue.max_bytes_to_read = _AT_ONCE
    return queue


def make() -> _Queues:
    """Make the queues that both sides inherit."""
    return _Queues(_queue(), _queue())


def serve(place: Rendezvous, ready: Callable[[], None]) -> None:
    """Run the server."""
    requests, answers = place.shared
    taken = MessageTally()
    functions: dict[str, Callable[..., Any]] = {"add": add, "echo": echo, "taken": taken.taken}
    ready()
    while True:
        try:
            # All that are there, with one look at the queue.
            messages = requests.get_many(timeout=_LOOK)
        except Empty:
            continue
        for name, arguments in messages:
            if name == "take":
                taken.take(*arguments)
            else:
                answers.put(functions[name](*arguments), timeout=_PATIENCE)


class _Client:
    def __init__(self, queues: _Queues) -> None:
        self._requests, self._answers = queues

    def _call(self, name: str, *arguments: Any) -> Any:
        self._requests.put((name, arguments), timeout=_PATIENCE)
        return self._answers.get(timeout=_PATIENCE)

    def add(self, a: int, b: int) -> Any:
        return self._call("add", a, b)

    def echo(self, value: Any) -> Any:
        return self._call("echo", value)

    def bulk(self, data: bytes, messages: int) -> None:
        message, at_once = ("take", (data,)), max(1, _GATHER // len(data))
        for start in range(0, messages, at_once):
            self._requests.put_many([message] * min(at_once, messages - start), timeout=_PATIENCE)
        assert self._call("taken") == [messages, messages * data[-1]]


@contextlib.contextmanager
def connect(place: Rendezvous) -> Iterator[_Client]:
    """Yield a client."""
    yield _Client(place.shared)
