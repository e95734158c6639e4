"""Tasks for the workers of tests of pools."""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import gc
import itertools
import logging
import multiprocessing.util
import os
import random
import signal
import sys
import threading
import time
import types
from pathlib import Path
from typing import Any, Final

import numpy as np

import shmrpc
from shmrpc.pools.handler_processes import HandlerProcesses
from tests.helpers import traces


def add(a: int, b: int = 1) -> int:
    return a + b


def same(value: Any) -> Any:
    return value


def pid(*ignored: Any) -> int:
    return os.getpid()


def pid_after(seconds: float) -> int:
    time.sleep(seconds)
    return os.getpid()


def slow(seconds: float) -> float:
    time.sleep(seconds)
    return seconds


def slow_call(value: Any, function: Any = None) -> Any:
    """Return the function of a value, or the value, after a while."""
    time.sleep(0.002)
    return value if function is None else function(value)


def wait_for(path: str) -> str:
    """Wait for a file, if a path is given."""
    while path and not Path(path).exists():
        time.sleep(0.01)
    return path


def seen(value: Any, *ignored: Any) -> tuple[int, int, bool]:
    """Return the process id, the identity of an array here, and True if it is writable."""
    return os.getpid(), id(value), value.flags.writeable


async def seen_later(value: Any, *ignored: Any) -> tuple[int, int, bool]:
    return seen(value)


def shared_files(*ignored: Any) -> set[int]:
    """Return the inodes of the shared files that this process has mapped."""
    lines = [line.split() for line in Path("/proc/self/maps").read_text().splitlines()]
    return {int(words[4]) for words in lines if len(words) > 5 and words[5].startswith("/memfd:shmrpc-shared")}


def pid_and(function: Any) -> tuple[int, Any]:
    return os.getpid(), function()


def nested_broadcast() -> float:
    with shmrpc.sync.pool(2) as pool:
        return float(pool.submit(total, pool.broadcast(np.ones(1000))).result())


def made_functions() -> int:
    """Return the number of this module's functions that the worker has."""
    return sum(isinstance(each, types.FunctionType) and each.__name__ == "made" for each in gc.get_objects())


def open_files() -> list[str]:
    """Return the open files of this process, ordered by descriptor."""
    time.sleep(0.1)  # Lets the other worker get a task too.
    return traces.open_files()


def drawn(seconds: float) -> tuple[float, float]:
    """Return random numbers."""
    time.sleep(seconds)
    return random.random(), float(np.random.random())


async def handled_here(value: int) -> tuple[int, int]:
    """Run a task in the handler processes of a server inside a worker."""
    processes = HandlerProcesses()
    try:
        return os.getpid(), await processes.run(add, [value], {"b": 2})
    finally:
        await processes.close()


def add_to(values: list[int]) -> int:
    values.append(1)
    return len(values)


def spin(path: str) -> None:
    """Write the process id to a file, then compute without end."""
    Path(path).write_text(str(os.getpid()))
    while True:
        pass


def stubborn(path: str) -> None:
    """Compute and ignore interrupts."""
    Path(path).write_text(str(os.getpid()))
    while True:
        with contextlib.suppress(BaseException):
            time.sleep(1)


def hold(path: str) -> None:
    """Compute without end in C, with the GIL."""
    Path(path).write_text(str(os.getpid()))
    sum(itertools.repeat(1))


def note(path: str, value: Any) -> Any:
    """Add a line to a file."""
    with Path(path).open("a") as file:
        file.write(f"{value}\n")
    return value


def noted(path: str, value: Any) -> Any:
    """Record the begin and the end in a file; the value 13 kills the worker, once."""
    note(path, f"begun {value}")
    if value == 13 and not Path(f"{path}.died").exists():
        Path(f"{path}.died").touch()
        die()
    note(path, f"ended {value}")
    return value


def die(*ignored: Any) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def leave(status: int) -> None:
    os._exit(status)


def exit_(status: int) -> None:
    sys.exit(status)


def stop(*ignored: Any) -> None:
    """Stop its worker, as a debugger would."""
    os.kill(os.getpid(), signal.SIGSTOP)


def fork(path: str, how: str) -> int:
    """Fork; the child records itself, and returns, raises, or exits, as if it were the worker."""
    child = os.fork()
    if child:
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    note(path, os.getpid())
    if how == "raise":
        raise ValueError("in the child")
    if how == "exit":
        sys.exit(3)
    return 7


async def fork_in_loop(path: str, how: str) -> int:
    child = os.fork()
    if child:
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])  # noqa: ASYNC222 - takes a moment
    note(path, os.getpid())
    if how == "wait":
        await asyncio.sleep(1000)
    return 7


class Own(Exception):
    def __init__(self, code: int, text: str) -> None:
        super().__init__(code, text)
        self.code = code


class Unpicklable(Exception):
    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.lock = sys._getframe()


def fail(kind: str) -> None:
    raise {"own": Own(7, "seven"), "value": ValueError("wrong"), "unpicklable": Unpicklable("no pickle")}[kind]


def fail_at(value: int) -> int:
    if value == 5:
        raise ValueError("five")
    return value


def lock() -> Any:
    return sys._getframe()


def lock_of(value: Any) -> Any:
    return lock()


class OwnError(Exception):
    """An error to which, unlike a ValueError, weak references can be made."""


def fail_own(**ignored: int) -> None:
    raise OwnError


async def fail_own_later() -> None:
    raise OwnError


async def later(value: Any) -> Any:
    await asyncio.sleep(0.01)
    return value


async def wait_for_ever(path: str) -> None:
    note(path, "begun")
    try:
        await asyncio.sleep(1000)
    finally:
        note(path, "ended")


async def fail_later() -> None:
    await asyncio.sleep(0)
    raise Own(1, "later")


def load(value: int, path: str = "") -> dict[str, Any]:
    if path:
        note(path, os.getpid())
    return {"value": value, "calls": 0}


def count() -> int:
    state = shmrpc.worker().state
    state["calls"] += 1
    return int(state["value"])


def broken() -> None:
    raise RuntimeError("the model is not there")


def number() -> int:
    return shmrpc.worker().number


def environment(name: str) -> str | None:
    return os.environ.get(name)


def affinity() -> set[int]:
    return os.sched_getaffinity(0)


def fill(size: int) -> int:
    return len(bytearray(size))


def total(array: np.ndarray[Any, Any]) -> float:
    return float(array.sum())


def zeros(size: int) -> np.ndarray[Any, Any]:
    return np.zeros(size)


def speak(text: str) -> None:
    print(text)  # noqa: T201


def log(name: str, level: int, text: str, how: str = "") -> None:
    """Log a text in one of several ways."""
    spoken = logging.getLogger(name)
    if how == "exception":
        try:
            raise ValueError(text)
        except ValueError:
            spoken.exception("it went wrong")
    else:
        extra = {"frame": sys._getframe(), "answer": 42} if how == "extra" else None
        spoken.log(level, "%s, of %d", text, len(text), extra=extra)
    if how == "die":
        die()


def configure(path: str) -> None:
    """Configure a program's own logging in a worker."""
    logging.basicConfig(filename=path, level=logging.DEBUG)


def write_over(words: list[int]) -> None:
    """Overwrite the words that this worker shares with its pool, as a bug in C would."""
    for line in Path("/proc/self/maps").read_text().splitlines():
        if "memfd:shmrpc-progress" in line:
            start = int(line.partition("-")[0], 16)
            page = (ctypes.c_uint64 * 512).from_address(start)
            for slot in (0, 1):
                page[slot * 16], page[slot * 16 + 1] = words


def overwrite_and_work(words: list[int]) -> str:
    """Overwrite the shared words, and return after a while."""
    time.sleep(0.002)
    write_over(words)
    return "truth"


#: The stores that this worker has opened.
_stores: Final[dict[str, shmrpc.sync.Store]] = {}


def counted(path: str, store: str, number: int) -> Any:
    """Record and return the number; return an object of a store instead of 50."""
    with open(path, "a") as file:
        file.write(f"{number:07}\n")
    if number != 50:
        return number
    opened = _stores.setdefault(store, shmrpc.sync.store(store))
    opened["it"] = {"a": 1}
    return opened["it"]


async def nested(values: list[int]) -> list[int]:
    async with shmrpc.pool(3) as pool:
        return [value async for value in pool.map(add, values)]


def nested_blocking(values: list[int]) -> list[int]:
    with shmrpc.sync.pool(3) as pool:
        return list(pool.map(add, values))


class Counter:
    def __init__(self, start: int) -> None:
        self.start = start

    def plus(self, value: int) -> int:
        return self.start + value


class Called:
    def __call__(self, value: int) -> int:
        return -value


def entered(directory: str, number: int) -> int:
    """Record the start and the end of a task in its worker's ledger.

    Each record has sixteen bytes, so none crosses a page of the file, and no kill leaves a part of one.
    """
    with open(f"{directory}/{os.getpid()}", "a", buffering=1) as file:
        file.write(f"b{number:014}\n")
        time.sleep(0.0002)
        file.write(f"e{number:014}\n")
    return number


def leave_thread(go: str) -> None:
    """Leave a thread that waits for a file, and an exit function of multiprocessing; each writes a file at its end."""

    def wait() -> None:
        while not Path(go).exists():
            time.sleep(0.01)
        Path(go).with_name("thread").touch()

    multiprocessing.util.Finalize(None, Path(go).with_name("finalizer").touch, exitpriority=1)
    threading.Thread(target=wait).start()
