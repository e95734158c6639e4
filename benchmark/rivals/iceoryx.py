"""iceoryx2: requests and answers, and messages that are published, through shared memory, with msgspec.

Both sides poll and never sleep, as in its own benchmark: its events are system calls, and an event there and back takes
longer by itself than such a call. After many failed polls a side yields the CPU.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final, NamedTuple

import iceoryx2 as iox2
import msgspec

from benchmark.processes import Rendezvous
from benchmark.work import MessageTally, add, echo

_encode: Final = msgspec.msgpack.Encoder().encode
_decode: Final = msgspec.msgpack.Decoder().decode
BYTES: Final = iox2.Slice[ctypes.c_uint8]
#: Bytes that there is room for at first; for a larger message more is allocated.
_ROOM: Final = 1 << 16
#: Messages that may be published and not yet taken.
_BUFFERED: Final = 8
#: Clients over the time of a server: one that was killed keeps its place for a while.
_CLIENTS: Final = 8
#: Number of failed reads before a side yields its CPU.
_LOOKS: Final = 2000


class _Services(NamedTuple):
    """The services that each side opens."""

    calls: Any
    messages: Any


def prefix(place: Rendezvous) -> str:
    """Return all that is made in /dev/shm has a name that begins so."""
    return f"{Path(place.directory).name}_"


def node_of(place: Rendezvous) -> Any:
    """Return the node with which a process opens the services of this rendezvous."""
    iox2.set_log_level(iox2.LogLevel.Fatal)
    config = iox2.config.default()
    config.global_cfg.root_path = iox2.Path.new(f"{place.directory}/")
    config.global_cfg.prefix = iox2.FileName.new(prefix(place))
    return (
        iox2.NodeBuilder.new()
        .config(config)
        .signal_handling_mode(iox2.SignalHandlingMode.Disabled)
        .create(iox2.ServiceType.Ipc)
    )


def _open(place: Rendezvous) -> _Services:
    node = node_of(place)
    name = iox2.ServiceName.new("benchmark")
    # Little memory: the same samples are used again and again, and stay in the cache.
    calls = (
        node.service_builder(name)
        .request_response(BYTES, BYTES)
        .max_clients(_CLIENTS)
        .max_servers(1)
        .max_active_requests_per_client(1)
        .max_loaned_requests(1)
        .max_response_buffer_size(1)
        .max_borrowed_responses_per_pending_response(1)
        .open_or_create()
    )
    messages = (
        node.service_builder(name)
        .publish_subscribe(BYTES)
        .max_publishers(_CLIENTS)
        .max_subscribers(1)
        .enable_safe_overflow(False)  # The publisher waits for room: no message is lost.
        .subscriber_max_buffer_size(_BUFFERED)
        .open_or_create()
    )
    return _Services(calls, messages)


def grows(builder: Any) -> Any:
    """Return a port whose memory grows with what is sent."""
    return builder.initial_max_slice_len(_ROOM).allocation_strategy(iox2.AllocationStrategy.PowerOfTwo).create()


def send(loan: Any, data: bytes) -> Any:
    """Copy bytes into what was loaned, and sends it."""
    ctypes.memmove(loan.payload_ptr, data, len(data))
    return loan.assume_init().send()


def as_bytes(message: Any) -> memoryview:
    """Return its bytes where they lie, until it is deleted."""
    view: memoryview = message.payload().as_memory_view()
    return view.cast("B")


def sought(receive: Callable[[], Any]) -> Any:
    """Return the next received sample, after polling for it."""
    while True:
        for _ in range(_LOOKS):
            if (found := receive()) is not None:
                return found
        os.sched_yield()


def remove(place: Rendezvous) -> None:
    """Remove what processes have left that were killed."""
    for path in Path("/dev/shm").glob(f"{prefix(place)}*"):
        path.unlink(missing_ok=True)


def serve(place: Rendezvous, ready: Callable[[], None]) -> None:
    """Run the server."""
    try:
        with contextlib.ExitStack() as stack:
            services = _open(place)
            server = grows(services.calls.server_builder())
            stack.callback(server.delete)
            subscriber = services.messages.subscriber_builder().create()
            stack.callback(subscriber.delete)
            ready()
            _answer(server, subscriber)
    finally:
        remove(place)


def _answer(server: Any, subscriber: Any) -> None:
    taken = MessageTally()
    functions: dict[str, Callable[..., Any]] = {"add": add, "echo": echo, "taken": taken.taken}
    receive, receive_sample = server.receive, subscriber.receive
    while True:
        for _ in range(_LOOKS):
            # A sample that was published before a request arrives before the request.
            request = receive()
            while (sample := receive_sample()) is not None:
                taken.take(as_bytes(sample))
                sample.delete()
            if request is not None:
                name, arguments = _decode(as_bytes(request))
                answer = _encode(functions[name](*arguments))
                send(request.loan_slice_uninit(len(answer)), answer)
                request.delete()
                break
        else:
            os.sched_yield()


class _Client:
    def __init__(self, client: Any, publisher: Any) -> None:
        self._client, self._publisher = client, publisher

    def _call(self, name: str, *arguments: Any) -> Any:
        data = _encode((name, arguments))
        pending = send(self._client.loan_slice_uninit(len(data)), data)
        response = sought(pending.receive)
        result = _decode(as_bytes(response))
        response.delete()
        pending.delete()
        return result

    def add(self, a: int, b: int) -> Any:
        return self._call("add", a, b)

    def echo(self, value: Any) -> Any:
        return self._call("echo", value)

    def bulk(self, data: bytes, messages: int) -> None:
        loan = self._publisher.loan_slice_uninit
        for _ in range(messages):
            send(loan(len(data)), data)
        assert self._call("taken") == [messages, messages * data[-1]]


@contextlib.contextmanager
def connect(place: Rendezvous) -> Iterator[_Client]:
    """Yield a client."""
    with contextlib.ExitStack() as stack:
        services = _open(place)
        client = grows(services.calls.client_builder())
        stack.callback(client.delete)
        publisher = grows(services.messages.publisher_builder())
        stack.callback(publisher.delete)
        yield _Client(client, publisher)
