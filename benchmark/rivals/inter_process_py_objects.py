"""InterProcessPyObjects: messages one way through one piece of shared memory, whose sides take turns.

As its own benchmark does it, in the faster, synchronous form: the sender puts messages there for as long as there is
room, the receiver takes them out and destroys them, a shared list says whose turn it is, and nobody sleeps. A
message is taken to be processed when its length and its last byte have been looked at. The time is the sender's,
from before the first message until it reads in the shared list that the receiver has processed them all.

Two processes as of :mod:`benchmark.processes`; the sender makes the memory, and takes its name away as soon as both
have it, so that nothing is left of them however they end.
"""

from __future__ import annotations

import importlib
import os
import time
import warnings
from multiprocessing.connection import Connection
from multiprocessing.shared_memory import SharedMemory
from typing import Any, Final

#: The bytes of memory that its own benchmark takes: enough for all messages at once.
SIZE: Final = 1000 << 20
#: Seconds for the other side to come.
_PATIENCE: Final = 30

#: Places in the shared list: the sum of the last bytes when all messages are processed, and whether the receiver
#: has taken out all that was there.
_SEEN, _EMPTY = 0, 1


def _package(connection: Connection) -> Any:
    """The package; without it this process ends after it has said why."""
    with warnings.catch_warnings():
        # It warns of every version of Python that is newer than it.
        warnings.simplefilter("ignore")
        try:
            return importlib.import_module("ipc_py_objects")
        except ImportError as error:
            connection.send(f"cannot be imported: {error}")
            os._exit(1)


def send(name: str, connection: Connection) -> None:
    """The main function of the sender; each order is the size and the number of messages, as parameters."""
    package = _package(connection)
    memory = package.SharedMemory(name, create=True, size=SIZE)
    connection.send("ready")
    memory.wait_consumer_ready(time_limit=_PATIENCE)
    _unlink(memory.name)
    with package.wait_my_turn(memory):
        state = memory.put_message([0, True])
    for parameters in _orders(connection):
        before = time.process_time()
        result = _send(package, memory, state, **parameters)
        connection.send({**result, "cpu": time.process_time() - before})


def _send(package: Any, memory: Any, state: Any, *, size: int, messages: int) -> dict[str, Any]:
    data, left = b"\1" * size, messages
    with package.wait_my_turn(memory):
        state[_SEEN], state[_EMPTY] = 0, True
    start = time.perf_counter_ns()
    while left:
        with package.wait_my_turn(memory, periodic_sleep_time=None):
            if state[_EMPTY]:
                try:
                    while left:
                        memory.put_message(data)
                        left -= 1
                except package.FreeMemoryChunkNotFoundError:
                    pass  # The rest when there is room again.
                state[_EMPTY] = False
    seen = 0
    while not seen:
        with package.wait_my_turn(memory, periodic_sleep_time=None):
            seen = state[_SEEN]
    seconds = (time.perf_counter_ns() - start) / 1e9
    assert seen == messages
    return {"latencies": [], "calls": messages, "seconds": seconds}


def receive(name: str, connection: Connection) -> None:
    """The main function of the receiver; each order is the number of messages to come, as a parameter."""
    package = _package(connection)
    memory = package.SharedMemory(name)
    memory.init_consumer(time_limit=_PATIENCE)
    with package.wait_my_turn_when_has_messages(memory):
        state = memory.take_message()
    connection.send("ready")
    for parameters in _orders(connection):
        _receive(package, memory, state, **parameters)
        connection.send({})


def _receive(package: Any, memory: Any, state: Any, *, messages: int) -> None:
    left, seen = messages, 0
    while left:
        with package.wait_my_turn_when_has_messages(memory, periodic_sleep_time=None):
            while memory.has_messages():
                message, place = memory.take_message_2()
                memory.destroy_obj(place)
                seen += message[len(message) - 1]
                left -= 1
            state[_EMPTY] = True
            if not left:
                state[_SEEN] = seen


def _orders(connection: Connection) -> Any:
    """The parameters of each order. At the end the process ends at once: it has nothing to clean up."""
    try:
        while (order := connection.recv()) is not None:
            yield order[1]
    except EOFError:
        pass
    os._exit(0)


def _unlink(name: str) -> None:
    known = SharedMemory(name)
    known.close()
    known.unlink()
