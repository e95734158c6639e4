"""InterProcessPyObjects: messages one way through one piece of shared memory, whose sides take turns.

The synchronous form of its own benchmark, which is faster: the sender puts messages there while there is room, the
receiver takes them out and destroys them, a shared list has the current side, and neither side sleeps meanwhile. A
socket tells the receiver when that is, and that the sender is gone. The memory's name is taken away as soon as both
sides have it, so that nothing is left of them however they end.
"""

from __future__ import annotations

import contextlib
import multiprocessing.connection
import os
import warnings
from collections.abc import Callable, Iterator
from multiprocessing.connection import Connection, Listener
from multiprocessing.shared_memory import SharedMemory
from pathlib import Path
from typing import Any, Final

from benchmark.processes import NotStarted, Rendezvous

with warnings.catch_warnings():
    # The package warns of every version of Python that is newer than itself.
    warnings.simplefilter("ignore")
    import ipc_py_objects

#: The bytes of memory that its own benchmark takes: enough for all messages at once.
_SIZE: Final = 1000 << 20
#: Seconds for the other side to come, or to give the turn away.
_PATIENCE: Final = 10.0
#: Turns without a message after which the receiver looks whether the sender is still there.
_TURNS: Final = 1000

#: Places in the shared list: the sum of the last bytes when all messages are processed, and whether the receiver
#: has taken out all that was there.
_SEEN, _EMPTY = 0, 1


class Trial:
    """The package's own class, with a limit for the wait for a side that has ended."""

    def __init__(self, memory: Any) -> None:
        self._memory = memory

    def __enter__(self) -> None:
        if not self._memory.wait_my_turn(_PATIENCE, periodic_sleep_time=None):
            raise ConnectionError("the other side keeps the turn")

    def __exit__(self, *error: object) -> None:
        self._memory.release()


def serve(place: Rendezvous, ready: Callable[[], None]) -> None:
    """Run the receiver, for one sender after the other."""
    room = os.statvfs("/dev/shm")
    if room.f_bavail * room.f_frsize < _SIZE:
        raise NotStarted(f"it needs {_SIZE >> 20} MiB of /dev/shm")
    with Listener(place.socket(), "AF_UNIX") as listener:
        ready()
        while True:
            with contextlib.suppress(EOFError, ConnectionError), listener.accept() as connection:
                _serve_one(connection)


def _serve_one(connection: Connection) -> None:
    memory = ipc_py_objects.SharedMemory(connection.recv())
    memory.init_consumer(_PATIENCE)
    connection.send("ready")
    messages = connection.recv()
    with Trial(memory):
        state = memory.take_message()
    while True:
        _receive(memory, state, messages, connection)
        messages = connection.recv()


def _receive(memory: Any, state: Any, messages: int, connection: Connection) -> None:
    turn, left, seen, idle = Trial(memory), messages, 0, 0
    while left:
        with turn:
            idle += 1
            while memory.has_messages():
                message, place = memory.take_message_2()
                memory.destroy_obj(place)
                seen += message[len(message) - 1]
                left -= 1
                idle = 0
            state[_EMPTY] = True
            if not left:
                state[_SEEN] = seen
        if idle == _TURNS:
            idle = 0
            if connection.poll():
                raise EOFError  # The receiver reports only after all messages.


class _Client:
    def __init__(self, memory: Any, state: Any, connection: Connection) -> None:
        self._memory, self._state, self._connection = memory, state, connection

    def bulk(self, data: bytes, messages: int) -> None:
        memory, state, turn, left = self._memory, self._state, Trial(self._memory), messages
        with turn:
            state[_SEEN], state[_EMPTY] = 0, True
        self._connection.send(messages)
        while left:
            with turn:
                if state[_EMPTY]:
                    try:
                        while left:
                            memory.put_message(data)
                            left -= 1
                    except ipc_py_objects.FreeMemoryChunkNotFoundError:
                        pass  # The rest when there is room again.
                    state[_EMPTY] = False
        seen = 0
        while not seen:
            with turn:
                seen = state[_SEEN]
        assert seen == messages * data[-1]


@contextlib.contextmanager
def connect(place: Rendezvous) -> Iterator[_Client]:
    """Yield the sender, which makes the memory."""
    name = f"{Path(place.directory).name}-{os.getpid()}"
    with multiprocessing.connection.Client(place.socket(), "AF_UNIX") as connection:
        try:
            memory = ipc_py_objects.SharedMemory(name, create=True, size=_SIZE)
            connection.send(name)
            connection.recv()
        finally:
            unlink(name)
        with Trial(memory):
            state = memory.put_message([0, True])
        yield _Client(memory, state, connection)


def unlink(name: str) -> None:
    """Take the name of a memory away."""
    with contextlib.suppress(FileNotFoundError):
        known = SharedMemory(name)
        known.close()
        known.unlink()
