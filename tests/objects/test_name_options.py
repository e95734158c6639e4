"""Invalid arguments are refused at once, with the option, the expected value and the value that came."""

from __future__ import annotations

import asyncio
import copy
import math
import os
import pickle
from collections.abc import Callable, Iterator
from contextlib import closing
from typing import Any

import numpy as np
import pytest

import shmrpc

#: Arguments that a type checker rejects, too.
untyped: Any = shmrpc

OURS = f"options{os.getpid()}"
LOOP = "asyncio"


@pytest.fixture
def q() -> Iterator[shmrpc.sync.Queue]:
    with shmrpc.sync.queue(OURS) as opened:
        yield opened


@pytest.mark.parametrize("queue", [shmrpc.queue, shmrpc.sync.queue])
@pytest.mark.parametrize(
    ("option", "value", "error"),
    [
        ("maxsize", "5", TypeError),
        ("maxsize", 1.5, TypeError),
        ("maxsize", None, TypeError),
        ("maxsize", -1, ValueError),
        ("maxsize", 2**70, ValueError),
        ("max_memory", "foo", ValueError),
        ("max_memory", "64M", ValueError),
        ("max_memory", "inf GB", ValueError),
        ("max_memory", 1.5, TypeError),
        ("max_memory", 1, ValueError),
        ("max_deliveries", "2", TypeError),
        ("max_deliveries", -1, ValueError),
        ("raw", 1, TypeError),
        ("raw", "yes", TypeError),
    ],
)
def test_an_option_that_no_queue_can_have_is_refused(
    queue: Any, option: str, value: Any, error: type[Exception]
) -> None:
    with pytest.raises(error, match=f"^queue '{OURS}': {option}: expected .*, got {value!r}"):
        queue(OURS, **{option: value})
    assert not shmrpc.members(OURS)


@pytest.mark.parametrize(
    ("make", "error", "words"),
    [
        (lambda: untyped.Semaphore(OURS, None), TypeError, "permits: expected a whole number, got None"),
        (lambda: untyped.Semaphore(OURS, 1.5), TypeError, "permits: expected a whole number, got 1.5"),
        (lambda: untyped.sync.Semaphore(OURS, 0), ValueError, "permits: expected 1 to 65536, got 0"),
        (lambda: untyped.memory(OURS, "1MiB"), TypeError, "size: expected a number of bytes, got '1MiB'"),
        (lambda: untyped.sync.memory(OURS, 1.5), TypeError, "size: expected a number of bytes, got 1.5"),
        (lambda: untyped.memory(OURS, 1 << 40), ValueError, "expected a size of 1 byte to 64 GiB"),
        (lambda: untyped.Lock(OURS, reentrant="no"), TypeError, "reentrant: expected True or False, got 'no'"),
    ],
)
def test_an_option_that_no_name_can_have_is_refused(
    make: Callable[[], object], error: type[Exception], words: str
) -> None:
    with pytest.raises(error, match=words):
        make()


def test_numbers_of_numpy_are_numbers() -> None:
    with closing(untyped.memory(OURS, np.prod((4, 5)))) as memory:
        assert memory.size == 20
    with untyped.sync.queue(OURS, np.int64(3)) as q:
        q.put_many(range(3))
        assert q.get_many(np.uint8(2), np.float32(1)) == [0, 1]


@pytest.mark.parametrize("least", ["get_many", "get_many_nowait", "peek"])
@pytest.mark.parametrize(("value", "error"), [(0, ValueError), (-1, ValueError), (1.5, TypeError), ("3", TypeError)])
def test_a_number_of_items_that_is_none_is_refused(
    q: shmrpc.sync.Queue, least: str, value: Any, error: type[Exception]
) -> None:
    q.put(1)
    for asked in (getattr(q, least), q.dead_letters.get_many_nowait):
        with pytest.raises(error, match="number of items: expected .*, got"):
            asked(value)
    assert q.get_many(2**70) == [1]


#: Each method that may wait in a loop, where it has nothing to wait for: it checks the timeout all the same.
AWAITED: dict[str, Callable[[Any, Any], Any]] = {
    "put": lambda q, timeout: q.put(1, timeout),
    "put_many": lambda q, timeout: q.put_many([1], timeout),
    "get": lambda q, timeout: q.get(timeout),
    "get_many": lambda q, timeout: q.get_many(1, timeout),
    "claim": lambda q, timeout: q.claim(timeout),
    "lease": lambda q, timeout: q.claim(lease_timeout=timeout),
    "reserve": lambda q, timeout: q.reserve(1, timeout=timeout),
    "join": lambda q, timeout: q.join(timeout),
}
#: In threads True says that these block, as queue.Queue's do.
BLOCKING = ("put", "get")
WRONG_TIMES = [("1", TypeError), (True, TypeError), (1j, TypeError), (math.nan, ValueError)]


@pytest.mark.parametrize("what", AWAITED)
@pytest.mark.parametrize(("timeout", "error"), WRONG_TIMES, ids=str)
async def test_a_timeout_that_is_none_is_refused_though_nothing_waits(
    q: shmrpc.sync.Queue, what: str, timeout: Any, error: type[Exception]
) -> None:
    q.put_many([1, 2])
    if timeout is not True or what not in BLOCKING:
        with pytest.raises(error, match="timeout: expected .*, got"):
            AWAITED[what](q, timeout)
    with closing(shmrpc.queue(OURS)) as awaited, pytest.raises(error, match="timeout: expected .*, got"):
        await AWAITED[what](awaited, timeout)
    assert q.get_many_nowait() == [1, 2], "nothing was done"


@pytest.mark.parametrize(("timeout", "error"), WRONG_TIMES, ids=str)
async def test_a_timeout_of_other_names_that_is_none_is_refused(timeout: Any, error: type[Exception]) -> None:
    with (
        closing(shmrpc.Semaphore(f"{OURS}s")) as gate,
        closing(shmrpc.Lock(f"{OURS}l")) as lock,
        closing(shmrpc.Event(f"{OURS}e")) as event,
        closing(shmrpc.Signal(f"{OURS}i")) as ready,
    ):
        for wait in (gate.acquire, ready.wait, lock.acquire, event.wait):
            with pytest.raises(error, match="timeout: expected .*, got"):
                await wait(timeout)
        with pytest.raises(error, match="timeout: expected .*, got"):
            await shmrpc.attach(f"{OURS}s", timeout)
        face = shmrpc.sync
        blocking = face.Semaphore(f"{OURS}s"), face.Lock(f"{OURS}l"), face.Event(f"{OURS}e"), face.Signal(f"{OURS}i")
        for block in (blocking[0].acquire, blocking[1].acquire, blocking[2].wait, blocking[3].wait):
            with pytest.raises(error, match="timeout: expected .*, got"):
                block(timeout)
        for each in blocking:
            each.close()
        await asyncio.wait_for(lock.acquire(1.0), 60)  # No task has acquired it before.


@pytest.mark.parametrize(
    ("make", "name"),
    [
        (shmrpc.queue, "queue"),
        (shmrpc.sync.queue, "queue"),
        (shmrpc.memory, "memory"),
        (shmrpc.sync.memory, "memory"),
        (shmrpc.sync.attach, "attach"),
        (shmrpc.sync.Semaphore, "Semaphore"),
        (shmrpc.Lock, "Lock"),
        (shmrpc.sync.Event, "Event"),
    ],
)
def test_an_unknown_option_is_one_of_what_was_called(make: Any, name: str) -> None:
    with pytest.raises(TypeError, match=rf"^{name}\(\) got an unexpected keyword argument 'foo'"):
        make(OURS, foo=1)


@pytest.mark.parametrize("duplicate", [copy.copy, copy.deepcopy, pickle.dumps], ids=["copy", "deepcopy", "pickle"])
def test_an_object_of_one_process_is_not_copied(duplicate: Callable[[Any], object]) -> None:
    for face, face_name in ((shmrpc, "shmrpc"), (shmrpc.sync, "shmrpc.sync")):
        for kind, handle in (
            ("queue", face.queue(OURS)),
            ("semaphore", face.Semaphore(f"{OURS}s")),
            ("lock", face.Lock(f"{OURS}l")),
            ("event", face.Event(f"{OURS}e")),
            ("signal", face.Signal(f"{OURS}i")),
            ("memory", face.memory(f"{OURS}m", 10)),
        ):
            instead = rf"^{kind} '{handle.name}' cannot be .*other process: {face_name}\.attach\('{handle.name}'\)"
            with closing(handle), pytest.raises(TypeError, match=instead):
                duplicate(handle)
    with shmrpc.sync.queue(OURS) as q:
        q.put(1)
        with q.claim() as claim, pytest.raises(TypeError, match=rf"item 0 .*shmrpc\.sync\.queue\('{OURS}'\)"):
            duplicate(claim)
        with pytest.raises(TypeError, match=f"^dead_letters of queue '{OURS}' cannot be copied"):
            duplicate(q.dead_letters)
        assert q.stats().held == []
