"""Types of pools."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterator
from typing import Any, assert_type

import shmrpc
import shmrpc.sync


def double(value: int) -> float:
    return value * 2.0


async def later(value: str) -> bytes:
    return value.encode()


def joined(number: int, text: str) -> str:
    return text * number


def load(path: str) -> dict[str, int]:
    return {path: 1}


async def in_a_loop() -> None:
    async with shmrpc.pool(4, initializer=load, initargs=["path"], memory="2GiB", affinity="spread") as pool:
        assert_type(pool, shmrpc.Pool)
        assert_type(await pool.run(double, 1), float)
        assert_type(await pool.run(later, "text"), bytes)
        assert_type(await pool.submit(double, 1), float)
        assert_type(pool.submit(later, "text"), shmrpc.TaskFuture[bytes])
        assert_type(pool.map(double, [1, 2]), AsyncGenerator[float, None])
        assert_type(pool.map(later, ["text"], ordered=False, on_progress="texts"), AsyncGenerator[bytes, None])
        assert_type(pool.map(joined, [1], ["text"], on_progress=print), AsyncGenerator[str, None])
        assert_type(await pool.broadcast({"a": 1}), dict[str, int])
        assert_type(await pool.scatter([1.5, 2.5]), list[float])
        assert_type(await pool.do("lambda a: a", [1]), list[Any])
        await pool.run(double, "text")  # type: ignore[call-overload]
        pool.submit(joined, 1)  # type: ignore[call-overload]
        pool.resize(8)
        assert_type(pool.stats(), shmrpc.PoolStats)
    shmrpc.pool(4, affinity="all")  # type: ignore[arg-type]
    shmrpc.pool(4, workers_per_cpu=1)  # type: ignore[call-arg]


def in_threads() -> None:
    with shmrpc.sync.pool(4) as pool:
        assert_type(pool.submit(double, 1).result(), float)
        assert_type(pool.map(double, [1], on_progress="doubling"), Iterator[float])
        assert_type(pool.scatter(["a"]), list[str])


def in_a_worker() -> Any:
    assert_type(shmrpc.worker().number, int)
    return shmrpc.worker().state
