"""multiprocessing's Queue: one for requests and one for answers, which both sides inherit."""

from __future__ import annotations

import contextlib
import multiprocessing
from collections.abc import Callable, Iterator
from multiprocessing.queues import Queue
from typing import Any, Final, NamedTuple

from benchmark.processes import Rendezvous
from benchmark.work import MessageTally, add, echo

#: Messages under way, so that who puts faster than the other gets has to wait.
_MOST: Final = 1000


class Queues(NamedTuple):
    """The queues that both sides inherit."""

    requests: Queue[tuple[str, tuple[Any, ...]]]
    answers: Queue[Any]


def make() -> Queues:
    """Return the queues, for processes that are spawned."""
    context = multiprocessing.get_context("spawn")
    return Queues(context.Queue(_MOST), context.Queue(_MOST))


def serve(place: Rendezvous, ready: Callable[[], None]) -> None:
    """Run the server."""
    requests, answers = place.shared
    answers.cancel_join_thread()  # At the end there may be no reader of what is left.
    taken = MessageTally()
    functions: dict[str, Callable[..., Any]] = {"add": add, "echo": echo, "taken": taken.taken}
    ready()
    while True:
        name, arguments = requests.get()
        if name == "take":
            taken.take(*arguments)
        else:
            answers.put(functions[name](*arguments))


class _Client:
    def __init__(self, queues: Queues) -> None:
        self._put, self._get = queues.requests.put, queues.answers.get

    def _call(self, name: str, *arguments: Any) -> Any:
        self._put((name, arguments))
        return self._get()

    def add(self, a: int, b: int) -> Any:
        return self._call("add", a, b)

    def echo(self, value: Any) -> Any:
        return self._call("echo", value)

    def bulk(self, data: bytes, messages: int) -> None:
        for _ in range(messages):
            self._put(("take", (data,)))
        assert self._call("taken") == [messages, messages * data[-1]]


@contextlib.contextmanager
def connect(place: Rendezvous) -> Iterator[_Client]:
    """Yield a client."""
    place.shared.requests.cancel_join_thread()
    yield _Client(place.shared)
