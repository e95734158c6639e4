"""pyzmq without a loop over ``ipc://``: REQ and REP for calls, a DEALER and a ROUTER in a thread beside it for bulk.

Large messages are sent from where they lie; pyzmq copies small ones all the same, which costs less.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from typing import Any, Final

import msgspec
import zmq

from benchmark.processes import Rendezvous
from benchmark.work import MessageTally, add, echo

#: Messages of bulk, which may be megabytes each, that either side holds before the sender waits.
_BULK_MARK: Final = 32

_encode: Final = msgspec.msgpack.Encoder().encode
_decode: Final = msgspec.msgpack.Decoder().decode


def _take(bulk: zmq.Socket[bytes]) -> None:
    """Look at messages, whose memory is the receiver's own, and at one without content says what came."""
    senders: dict[bytes, MessageTally] = {}
    with contextlib.suppress(zmq.ContextTerminated), bulk:
        while True:
            sender, message = bulk.recv(), bulk.recv(copy=False)
            if len(message):
                senders.setdefault(sender, MessageTally()).take(message.buffer)
            else:
                bulk.send(sender, zmq.SNDMORE)
                bulk.send(_encode(senders.pop(sender).taken()))


def serve(place: Rendezvous, ready: Callable[[], None]) -> None:
    """Run the server."""
    functions: dict[str, Callable[..., Any]] = {"add": add, "echo": echo}
    context = zmq.Context()
    bulk = context.socket(zmq.ROUTER)
    bulk.rcvhwm = _BULK_MARK
    bulk.bind(f"ipc://{place.socket('bulk')}")
    threading.Thread(target=_take, args=(bulk,), daemon=True).start()
    try:
        with context.socket(zmq.REP) as calls:
            calls.linger = 0
            calls.bind(f"ipc://{place.socket('calls')}")
            ready()
            while True:
                name, arguments = _decode(calls.recv())
                calls.send(_encode(functions[name](*arguments)), copy=False)
    finally:
        context.term()


class _Client:
    def __init__(self, context: zmq.Context[zmq.Socket[bytes]], place: Rendezvous) -> None:
        self._context, self._place = context, place
        self._calls = context.socket(zmq.REQ)
        self._calls.connect(f"ipc://{place.socket('calls')}")
        self._bulk: zmq.Socket[bytes] | None = None

    def close(self) -> None:
        """End it."""
        self._calls.close(0)
        if self._bulk is not None:
            self._bulk.close(0)

    def _call(self, name: str, *arguments: Any) -> Any:
        self._calls.send(_encode((name, arguments)), copy=False)
        return _decode(self._calls.recv())

    def add(self, a: int, b: int) -> Any:
        return self._call("add", a, b)

    def echo(self, value: Any) -> Any:
        return self._call("echo", value)

    def bulk(self, data: bytes, messages: int) -> None:
        if self._bulk is None:
            self._bulk = self._context.socket(zmq.DEALER)
            self._bulk.sndhwm = _BULK_MARK
            self._bulk.connect(f"ipc://{self._place.socket('bulk')}")
        for _ in range(messages):
            self._bulk.send(data, copy=False)
        self._bulk.send(b"")
        assert _decode(self._bulk.recv()) == [messages, messages * data[-1]]


@contextlib.contextmanager
def connect(place: Rendezvous) -> Iterator[_Client]:
    """Yield a client. All of a process share a context, and so the thread that writes and reads for them."""
    with contextlib.closing(_Client(zmq.Context.instance(), place)) as client:
        yield client
