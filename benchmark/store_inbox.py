"""Messages one way through the inbox of our store, as a rival's are written.

The receiver takes each as bytes of its own. As many as there is room for may lie there; what is there no room for, the
sender puts again.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from typing import Final

import shmrpc
from benchmark.processes import Rendezvous

_NAME: Final = "messages"
#: The size that InterProcessPyObjects has.
_ROOM: Final = "1000MiB"
_PATIENCE: Final = 30.0


def _open() -> shmrpc.sync.Store:
    return shmrpc.sync.store(_NAME, _ROOM)


def serve(place: Rendezvous, ready: Callable[[], None]) -> None:
    """Run the receiver, which gets the number of messages and replies with the sum of their last bytes."""
    with _open() as store, shmrpc.sync.queue("orders") as orders, shmrpc.sync.queue("answers") as answers:
        ready()
        while True:
            inbox = store.inbox
            answers.put(sum(inbox.take(_PATIENCE)[-1] for _ in range(orders.get())))


class _Client:
    def __init__(self, store: shmrpc.sync.Store, orders: shmrpc.sync.Queue, answers: shmrpc.sync.Queue) -> None:
        self._store, self._orders, self._answers = store, orders, answers

    def bulk(self, data: bytes, messages: int) -> None:
        put = self._store.inbox.put
        self._orders.put(messages)
        for _ in range(messages):
            while True:
                try:
                    put(data)
                    break
                except shmrpc.StoreFull:
                    time.sleep(0.0001)
        assert self._answers.get(_PATIENCE) == messages * data[-1]


@contextlib.contextmanager
def connect(place: Rendezvous) -> Iterator[_Client]:
    """Yield the sender."""
    with _open() as store, shmrpc.sync.queue("orders") as orders, shmrpc.sync.queue("answers") as answers:
        yield _Client(store, orders, answers)
