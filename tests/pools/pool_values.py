"""Tasks for the tests of values on their way to workers and back."""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

import shmrpc


class Node:
    def __init__(self, following: Any = None) -> None:
        self.next = following


class Killer:
    """Kills the process that reads it, which leaves a mark in a file first."""

    def __init__(self, path: str) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return _die, (self.path,)


class KillerByCodec:
    """The same for one that is not pickled."""

    def __init__(self, path: str) -> None:
        self.path = path


def given(value: Any) -> Any:
    """Return a value; workers import this module for the task."""
    return value


def _die(path: str) -> None:
    with Path(path).open("a") as file:
        file.write("x")
    os._exit(3)


shmrpc.register(KillerByCodec, encode=lambda value: value.path, decode=_die)


class Unreadable:
    def __reduce__(self) -> tuple[Any, ...]:
        return _refuse, ()


def _refuse() -> None:
    raise ValueError("not me")


def noted(path: str, result: str) -> Any:
    """Leaves a mark in a file, and gives what is wanted."""
    with Path(path).open("a") as file:
        file.write("x")
    return {"": None, "unreadable": Unreadable(), "unsendable": threading.Lock()}[result]


def make_unreadable(value: Any) -> Unreadable:
    return Unreadable()


class Choosy(Exception):
    """One that pickle cannot make again."""

    def __init__(self, a: int, b: int) -> None:
        super().__init__(a)
        self.b = b


def fail_choosily() -> None:
    raise Choosy(1, 2)


def is_linked(nodes: list[Node]) -> bool:
    return nodes[0].next is nodes[1]


def is_next(first: Node, second: Node) -> bool:
    return first.next is second


def is_same(one: Any, other: Any) -> bool:
    return one is other


async def is_same_later(one: Any, other: Any) -> bool:
    return one is other


def is_one(both: Any) -> bool:
    first, second = both.values() if isinstance(both, dict) else both
    return first is second


def set_first(rows: list[list[int]]) -> list[list[int]]:
    rows[0][0] = 5
    return rows


def appended(row: list[int], other: list[int] | None = None) -> list[int]:
    row.append(1)
    if other is not None:
        other.append(1)
    return row


def twice(value: Any) -> list[Any]:
    made = [value]
    return [made, made]


def make_linked(value: Any) -> list[Node]:
    second = Node(value)
    return [Node(second), second]


def is_shared(node: Node) -> bool:
    """Return True if an array lies in a mapping of shared memory."""
    address = node.next.__array_interface__["data"][0]
    for line in Path("/proc/self/maps").read_text().splitlines():
        start, end = (int(each, 16) for each in line.split()[0].split("-"))
        if start <= address < end:
            return "shmrpc" in line
    return False


def written(node: Node) -> Node:
    node.next[0] = -1
    return node


def in_own_loop(value: int) -> int:
    async def later() -> int:
        await asyncio.sleep(0)
        return value + 1

    return asyncio.run(later())


def state() -> Any:
    return shmrpc.worker().state


def put(shared: Any, key: str, value: Any) -> None:
    shared[key] = value


class Header(ctypes.Structure):
    _fields_ = (("number", ctypes.c_int), ("size", ctypes.c_double))


def pickled_arrays() -> dict[str, Any]:
    """Arrays that travel as pickles."""
    record = np.dtype([("name", object), ("size", float)])
    return {
        "objects": np.array([1, "a", None], dtype=object),
        "no objects": np.array([], dtype=object),
        "masked": np.ma.masked_array([1, 2, 3], [True, False, False]),
        "texts": np.array(["a", "bb"], dtype=np.dtypes.StringDType()),
        "records of objects": np.array([("a", 1.5)], dtype=record),
        "a derived class": np.array([[1, 2]]).view(np.matrix),
    }


def looks(value: Any) -> Any:
    """Return the types and texts of a value and of all its parts."""
    if isinstance(value, dict):
        return {key: looks(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [type(value).__name__, *map(looks, value)]
    if isinstance(value, Node):
        return ["Node", looks(value.next)]
    if isinstance(value, ctypes.Structure):
        return ["ctypes", *(getattr(value, name) for name, *_ in value._fields_)]
    return [type(value).__name__, str(getattr(value, "dtype", "")), repr(value)]


def looks_of(*args: Any, **kwargs: Any) -> Any:
    return looks([list(args), kwargs])


async def looks_of_later(*args: Any, **kwargs: Any) -> Any:
    return looks_of(*args, **kwargs)


def looks_of_state() -> Any:
    return looks(shmrpc.worker().state)


def nested(name: str) -> Any:
    """Return values that each contain an array."""
    array = pickled_arrays()[name]
    return {"list": [array], "tuple": (1, array), "dict": {"in it": array}, "object": Node(array)}


def stop() -> Any:
    raise StopIteration(5)


async def stop_later() -> Any:
    raise StopIteration(5)


async def set_up(number: int) -> int:
    await asyncio.sleep(0)
    return number + 0


def nested_workers() -> int:
    with shmrpc.sync.pool(3) as pool:
        return int(pool._max_workers)


def nested_reprs() -> list[str]:
    executor = shmrpc.sync.pool(3)
    executor.shutdown()
    return [repr(shmrpc.pool(3)), repr(executor)]


async def halved(number: int) -> int:
    await asyncio.sleep(0)
    if number % 2:
        raise ValueError(f"{number} is odd")
    return number // 2


async def sleep_long(number: int) -> int:
    await asyncio.sleep(1000 * number)
    return number


def nested_async() -> list[Any]:
    """Run async functions in a blocking pool within a worker, and return their results."""
    with shmrpc.sync.pool(2) as pool:
        error = pool.submit(halved, 3).exception()
        return [pool.submit(halved, 4).result(), list(pool.map(halved, [2, 6])), str(error)]


async def nested_cancellations() -> list[Any]:
    """Cancel futures of a pool within a worker; return what that did, and the errors that reached the event loop."""
    loop, begun, go = asyncio.get_running_loop(), list[str](), asyncio.Event()
    errors = list[str]()
    loop.set_exception_handler(lambda _, context: errors.append(context["message"]))

    async def wait(name: str) -> str:
        begun.append(name)
        await go.wait()
        return name

    async def cancel_itself() -> None:
        raise asyncio.CancelledError

    try:
        async with shmrpc.pool(1) as pool:
            waiting, running = pool.submit(wait, "first"), pool.submit(wait, "second")
            ended = pool.submit(cancel_itself)
            answers = [waiting.cancel()]
            while not begun:
                await asyncio.sleep(0)
            answers.append(running.cancel())
            go.set()
            result = await running
            with contextlib.suppress(asyncio.CancelledError):
                await ended
            return [answers, waiting.cancelled(), result, ended.cancelled(), begun, errors]
    finally:
        loop.set_exception_handler(None)


def nested_shutdown() -> list[str]:
    """Use a blocking pool within a worker after its end; return the errors."""
    with shmrpc.sync.pool(2) as pool:
        begun = pool.map(abs, [-1, -2])
        assert next(begun) == 1
    assert list(begun) == [2]
    calls: list[Callable[[], object]] = [
        lambda: pool.submit(abs, -1),
        lambda: pool.map(abs, [-1]),
        lambda: pool.broadcast(1),
        lambda: pool.scatter([1]),
    ]
    errors = []
    for call in calls:
        try:
            call()
        except RuntimeError as error:
            errors.append(str(error))
    return errors
