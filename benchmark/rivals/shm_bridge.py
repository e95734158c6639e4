"""shm-rpc-bridge: through shared memory and semaphores, for one client at a time.

In two forms: its calls, whose arguments go as JSON, and its transport with msgspec instead, as its documentation
advises who needs more than JSON.
"""

from __future__ import annotations

import base64
import contextlib
import logging
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import msgspec
from shm_rpc_bridge import RPCClient, RPCServer
from shm_rpc_bridge.exceptions import RPCTimeoutError, RPCTransportError
from shm_rpc_bridge.transport.transport_chooser import SharedMemoryTransport

from benchmark.processes import Rendezvous
from benchmark.work import add, echo

#: Bytes for a request and as many for an answer: more than the largest payload takes.
_SIZE: Final = 16 << 20
#: Seconds for a call; a server that waits wakes up so often.
_TIMEOUT: Final = 60.0
_encode: Final = msgspec.msgpack.Encoder().encode
_decode: Final = msgspec.msgpack.Decoder().decode


def _echo_bytes(value: str) -> str:
    """JSON has no bytes: they go as base64."""
    return base64.b64encode(echo(base64.b64decode(value))).decode("ascii")


def _name(place: Rendezvous) -> str:
    """Return the name of the files in /dev/shm."""
    return Path(place.directory).name


def serve(place: Rendezvous, ready: Callable[[], None]) -> None:
    """Run the server of calls."""
    logging.getLogger("shm_rpc_bridge").setLevel(logging.ERROR)  # The package warns at its end.
    end = signal.getsignal(signal.SIGTERM)
    with RPCServer(_name(place), _SIZE, _TIMEOUT) as server:
        # Its own handler closes the server under a request that is being answered.
        signal.signal(signal.SIGTERM, end)
        server.register("add", add)
        server.register("echo", echo)
        server.register("echo_bytes", _echo_bytes)
        ready()
        server.start()


def serve_transport(place: Rendezvous, ready: Callable[[], None]) -> None:
    """Run the server of calls over the package's transport."""
    functions: dict[str, Callable[..., Any]] = {"add": add, "echo": echo}
    with contextlib.closing(SharedMemoryTransport.create(_name(place), _SIZE, _TIMEOUT)) as transport:
        ready()
        while True:
            try:
                request = transport.receive_request()
            except RPCTimeoutError:
                continue
            except RPCTransportError as error:
                if transport.is_caused_by_a_signal(error):
                    return  # The semaphore has swallowed what the signal's handler raised.
                raise
            name, arguments = _decode(request)
            transport.send_response(_encode(functions[name](*arguments)))


class _Client:
    def __init__(self, client: RPCClient) -> None:
        self._call = client.call

    def add(self, a: int, b: int) -> Any:
        return self._call("add", a=a, b=b)

    def echo(self, value: Any) -> Any:
        if isinstance(value, bytes):
            return base64.b64decode(self._call("echo_bytes", value=base64.b64encode(value).decode("ascii")))
        return self._call("echo", value=value)


class _TransportClient:
    def __init__(self, transport: SharedMemoryTransport) -> None:
        self._transport = transport

    def _call(self, name: str, *arguments: Any) -> Any:
        self._transport.send_request(_encode((name, arguments)))
        return _decode(self._transport.receive_response())

    def add(self, a: int, b: int) -> Any:
        return self._call("add", a, b)

    def echo(self, value: Any) -> Any:
        return self._call("echo", value)


@contextlib.contextmanager
def connect(place: Rendezvous) -> Iterator[_Client]:
    """Yield a client of its calls."""
    with RPCClient(_name(place), _SIZE, _TIMEOUT) as client:
        yield _Client(client)


@contextlib.contextmanager
def connect_transport(place: Rendezvous) -> Iterator[_TransportClient]:
    """Yield a client over its transport."""
    with contextlib.closing(SharedMemoryTransport.open(_name(place), _SIZE, _TIMEOUT)) as transport:
        yield _TransportClient(transport)
