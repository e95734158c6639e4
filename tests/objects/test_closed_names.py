"""Names that are closed or could not be opened: nothing is left, though their objects and errors are referred to."""

from __future__ import annotations

import asyncio
import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import shmrpc
import shmrpc.sync
from tests.helpers.member_process import MemberProcess
from tests.helpers.server_process import InThread, eventually

#: A name that no other run of these tests has.
OURS = f"closed{os.getpid()}"
LARGE = 100_000

IN_LOOPS: dict[str, Callable[[str], Any]] = {
    "memory": lambda name: shmrpc.memory(name, LARGE),
    "semaphore": lambda name: shmrpc.Semaphore(name, 3),
    "lock": shmrpc.Lock,
    "event": shmrpc.Event,
    "signal": shmrpc.Signal,
    "queue": shmrpc.queue,
    "topic": shmrpc.topic,
    "subscription": shmrpc.subscribe,
    "store": shmrpc.store,
    "store with an owner": lambda name: shmrpc.store(name, single_writer=True),
}
IN_THREADS: dict[str, str] = {
    "memory": f"sync.memory(name, {LARGE})",
    "semaphore": "sync.Semaphore(name, 3)",
    "lock": "sync.Lock(name)",
    "event": "sync.Event(name)",
    "signal": "sync.Signal(name)",
    "queue": "sync.queue(name)",
    "topic": "sync.topic(name)",
    "subscription": "sync.subscribe(name)",
    "store": "sync.store(name)",
    "store with an owner": "sync.store(name, single_writer=True)",
}


def descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


def mapped() -> int:
    """Return the number of memory mappings of our names and their parts."""
    lines = Path("/proc/self/maps").read_text().splitlines()
    return sum(OURS in line or "/memfd:shmrpc" in line for line in lines)


def files(runtime: Path) -> list[str]:
    """Return the files of our names, where they are met and in /dev/shm."""
    return [name for place in (runtime, Path("/dev/shm")) for name in os.listdir(place) if OURS in name]


@pytest.fixture(scope="module", autouse=True)
def watcher() -> None:
    """Start the thread that watches other members, which has descriptors of its own and stays."""
    with closing(shmrpc.sync.Event(OURS)) as event, pytest.raises(shmrpc.WaitTimeout):
        event.wait(0.01)


@pytest.fixture
def other() -> Iterator[MemberProcess]:
    """Another process."""
    with MemberProcess() as member:
        yield member
        member.close()  # The member leaves no file, unlike a killed one.


# --- close() ---


@pytest.mark.parametrize("kind", IN_LOOPS)
async def test_a_closed_name_that_is_referred_to_has_no_descriptor_and_no_memory(kind: str, runtime: Path) -> None:
    before = descriptors(), mapped()
    kept = [IN_LOOPS[kind](f"{OURS}-{number}") for number in range(3)]
    assert mapped() > before[1]
    for each in kept:
        each.close()
    # The loop has not turned.
    assert (descriptors(), mapped()) == before
    assert files(runtime) == []
    for each in kept:
        assert "closed" in repr(each)


async def test_objects_that_were_used_and_waited_for_are_given_back_too(runtime: Path) -> None:
    before = descriptors(), mapped()
    memory = shmrpc.memory(f"{OURS}-m", LARGE)
    memory.buf[0] = 1
    memory.array(10)[:] = 2
    holder = shmrpc.sync.memory(f"{OURS}-m", LARGE)
    InThread(holder.lock.acquire).join()
    with pytest.raises(shmrpc.WaitTimeout):
        await memory.lock.acquire(0.01)
    queue = shmrpc.queue(f"{OURS}-q")
    queue.put_nowait(bytes(LARGE))
    claim = queue.claim_nowait()
    with pytest.raises(shmrpc.QueueEmpty):
        await queue.get(0.01)
    topic, subscription = shmrpc.topic(f"{OURS}-t"), shmrpc.subscribe(f"{OURS}-t")
    topic.publish_nowait(bytes(LARGE))
    with pytest.raises(shmrpc.WaitTimeout):
        while True:
            await subscription.get(0.01)
    store = shmrpc.store(f"{OURS}-s")
    store["a"] = [1, 2]
    inner = store["a"]
    with pytest.raises(shmrpc.WaitTimeout):
        await inner.changed(0.01)
    for each in (memory, holder, queue, topic, subscription, store):
        each.close()
    assert (descriptors(), mapped()) == before
    assert files(runtime) == []
    with pytest.raises(shmrpc.LocalProtocolError, match="closed"):
        claim.ack()
    with pytest.raises(shmrpc.LocalProtocolError, match="is closed"):
        memory.buf  # noqa: B018


async def test_waits_of_a_name_that_is_closed_end_and_give_their_places_back() -> None:
    before = descriptors()
    queue, event = shmrpc.queue(OURS), shmrpc.Event(f"{OURS}-e")
    waits = [asyncio.create_task(queue.get()), asyncio.create_task(event.wait())]
    threads = [InThread(shmrpc.sync.queue(OURS).get), InThread(shmrpc.sync.Event(f"{OURS}-e").wait)]
    await asyncio.sleep(0.01)
    with closing(queue), closing(event):
        pass
    for wait in waits:
        with pytest.raises(shmrpc.LocalProtocolError, match="is closed"):
            await wait
    # Two uses of each name are left, of which these threads wait: those end with the handle that is dropped.
    for name in (OURS, f"{OURS}-e"):
        with closing(shmrpc.sync.attach(name)) as again:
            if isinstance(again, shmrpc.sync.Event):
                again.set()
            elif isinstance(again, shmrpc.sync.Queue):
                again.put_nowait(1)
    assert threads[0].join() == 1
    threads[1].join()
    del threads
    assert eventually(lambda: descriptors() == before)


def test_views_of_a_memory_stay_and_give_it_back_with_the_last(runtime: Path) -> None:
    before = mapped()
    memory = shmrpc.memory(OURS, LARGE)
    view, array = memory.buf, memory.array(LARGE)
    array[:] = 3
    memory.close()
    assert files(runtime) == [], "its name goes at once"
    assert mapped() == before + 1
    assert bytes(view[:10]) == b"\3" * 10
    array[5] = 4
    del view
    assert (array[5], array.sum()) == (4, 3 * (LARGE - 1) + 4)
    with closing(shmrpc.memory(OURS, LARGE)) as new:
        assert new.buf[0] == 0, "another one of this name is another one"
    del array
    assert mapped() == before


def test_a_view_of_an_item_of_a_closed_queue_is_unchanged() -> None:
    before = mapped()
    queue = shmrpc.sync.queue(OURS)
    queue.put(np.full(LARGE, 7, "u1"))
    claim = queue.claim()
    array = claim.value
    with pytest.raises(shmrpc.LocalProtocolError, match="is closed"), queue.reserve(LARGE) as room:
        queue.close()
        assert mapped() == before + 1
        assert array.sum() == 7 * LARGE
        room[:] = 0
    del array, claim, room
    assert mapped() == before


def test_items_that_threads_put_while_a_queue_is_closed_are_there_or_refused(other: MemberProcess) -> None:
    other.do(f"q = sync.queue('{OURS}')")
    counts = []

    def put(queue: Any) -> None:
        count = 0
        with pytest.raises(shmrpc.LocalProtocolError, match="is closed"):
            while True:
                queue.put_nowait(b"x" * (count % 2 * 40_000))  # Large ones are copied without the GIL.
                count += 1
        counts.append(count)

    for _ in range(6):
        queue = shmrpc.sync.queue(OURS)
        threads = [threading.Thread(target=put, args=(queue,)) for _ in range(3)]
        for thread in threads:
            thread.start()
        while queue.qsize() < 10:
            time.sleep(0)
        queue.close()
        for thread in threads:
            thread.join()
        got = other.do("result = 0\nwhile not q.empty(): result += len(q.get_many())")
        assert len(counts) == 3
        # An item whose put was interrupted by the close may be there.
        assert sum(counts) <= got <= sum(counts) + 3
        counts.clear()


# --- a failed open ---

#: Functions that take away a resource which a process needs to open a name.
LACKS = {
    "addresses": "size = int(open('/proc/self/statm').read().split()[0]) * 4096 + (1 << 20);"
    " resource.setrlimit(resource.RLIMIT_AS, (size, -1))",
    "room for a file": "resource.setrlimit(resource.RLIMIT_FSIZE, (0, -1))",
    "room for memory": "resource.setrlimit(resource.RLIMIT_FSIZE, (400, -1))",
}
ALL = {
    "addresses": "resource.setrlimit(resource.RLIMIT_AS, (-1, -1))",
    "room for a file": "resource.setrlimit(resource.RLIMIT_FSIZE, (-1, -1))",
    "room for memory": "resource.setrlimit(resource.RLIMIT_FSIZE, (-1, -1))",
}


#: The kinds that need many addresses.
BIG = ("queue", "topic", "store", "store with an owner")


@pytest.mark.parametrize(
    ("kind", "lack"), [(kind, lack) for kind in IN_THREADS for lack in LACKS if kind in BIG or lack != "addresses"]
)
def test_a_name_that_cannot_be_opened_leaves_nothing(kind: str, lack: str, other: MemberProcess, runtime: Path) -> None:
    # The first use imports modules and starts what needs more than the name.
    other.do(f"import resource; name = '{OURS}-0'; {IN_THREADS[kind]}.close(); name = '{OURS}'")
    other.do(f"""
errors = []
{LACKS[lack]}
try:
    {IN_THREADS[kind]}
except Exception as error:
    errors.append(error)
{ALL[lack]}
result = [type(error).__name__ for error in errors]
""")
    assert files(runtime) == [], "though the error, and what it refers to, is there"
    assert other.do("result = [type(error).__name__ for error in errors]") == ["SharedMemoryError"]
    other.do(f"{IN_THREADS[kind]}.close()")
    assert files(runtime) == []


def test_a_handle_that_is_refused_leaves_nothing(runtime: Path) -> None:
    for make in (
        lambda: shmrpc.store(OURS, busy_timeout="long"),  # type: ignore[arg-type]
        lambda: shmrpc.subscribe(OURS, slow_policy="never"),  # type: ignore[arg-type]
        lambda: shmrpc.queue(OURS, codec="xml"),  # type: ignore[arg-type]
        lambda: shmrpc.topic(OURS, codec="xml"),  # type: ignore[arg-type]
    ):
        with pytest.raises((TypeError, ValueError)) as raised:
            make()
        assert files(runtime) == [], raised.value
