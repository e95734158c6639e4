"""Commands and their results by TCP, as pickles; or the command by TCP and its result in shared memory."""

from __future__ import annotations

import contextlib
import pickle
import socket
import struct
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final, NamedTuple

import shmrpc
from benchmark.command_tasks import TASKS
from benchmark.processes import Rendezvous

_LENGTH: Final = struct.Struct("<Q")
#: Bytes of the memory for results.
_MEMORY: Final = 16 << 20


class Command(NamedTuple):
    """A command, and the way of its result: ``socket``, or memory, ``protected`` by a lock or not."""

    task: str
    size: Any
    by: str = "socket"  # Or "protected", or "unprotected".


class _Wire:
    """Pickles over a socket, each behind its length."""

    def __init__(self, connection: socket.socket) -> None:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._connection = connection
        self._file = connection.makefile("rb")

    def send(self, value: Any) -> None:
        data = pickle.dumps(value, pickle.HIGHEST_PROTOCOL)
        self._connection.sendall(_LENGTH.pack(len(data)) + data)

    def receive(self) -> Any:
        (length,) = _LENGTH.unpack(self._read(_LENGTH.size))
        return pickle.loads(self._read(length))

    def _read(self, size: int) -> bytes:
        data = self._file.read(size)
        if len(data) < size:
            raise EOFError("the other side is gone")
        return data


def _memory() -> contextlib.closing[shmrpc.sync.Memory]:
    """Return the memory for results."""
    return contextlib.closing(shmrpc.sync.memory("results", _MEMORY))


def _guard(memory: shmrpc.sync.Memory, by: str) -> contextlib.AbstractContextManager[Any]:
    """Return the lock of the memory for a protected way, and a context that does nothing otherwise."""
    return memory.lock if by == "protected" else contextlib.nullcontext()


def serve(place: Rendezvous, ready: Callable[[], None]) -> None:
    """Run commands, at a port that is written into a file."""
    with socket.create_server(("127.0.0.1", 0)) as listener, _memory() as memory:
        Path(place.socket("port")).write_text(str(listener.getsockname()[1]))
        ready()
        while True:
            connection, _ = listener.accept()
            with connection, contextlib.suppress(EOFError):
                wire = _Wire(connection)
                while True:
                    command: Command = wire.receive()
                    result = TASKS[command.task](command.size)
                    if command.by == "socket":
                        wire.send(result)
                        continue
                    data = result if isinstance(result, bytes) else result.data.cast("B")
                    with _guard(memory, command.by):
                        memory.buf[: len(data)] = data
                    wire.send(len(data))


@contextlib.contextmanager
def connect(place: Rendezvous) -> Iterator[Callable[..., Any]]:
    """Yield a function that has a command run and returns its result."""
    import numpy as np  # Only arrays need it.

    with contextlib.ExitStack() as stack:
        memory = stack.enter_context(_memory())
        port = int(Path(place.socket("port")).read_text())
        wire = _Wire(stack.enter_context(socket.create_connection(("127.0.0.1", port))))

        def do(task: str, size: Any, by: str = "socket") -> Any:
            wire.send(Command(task, size, by))
            told = wire.receive()
            if by == "socket":
                return told
            with _guard(memory, by):
                data = bytes(memory.buf[:told])
            return data if task == "bytes" else np.frombuffer(data, np.int64)

        yield do
