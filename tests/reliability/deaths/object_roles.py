"""Roles of members of shared objects that die or are stopped: in threads, and in a loop."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable
from typing import Final

import shmrpc
import shmrpc.sync
from shmrpc.discovery.members import inspect_all_objects

#: Seconds of a wait that should time out.
_SOON: Final = 0.005
#: Seconds of a wait that should succeed.
_LONG: Final = 30.0


def in_threads() -> None:
    """Open objects of all kinds, use all their operations, and close them."""
    gate, lock = shmrpc.sync.Semaphore("gpu", 2), shmrpc.sync.Lock("config", reentrant=True)
    go, frame = shmrpc.sync.Event("go"), shmrpc.sync.memory("frame", 64)
    ready = shmrpc.sync.Signal("ready")
    again = shmrpc.sync.attach("gpu")
    with gate, lock, lock, frame.lock:
        frame.buf[0] = 1
        frame.array(4)[0] = 2
        with contextlib.suppress(shmrpc.WaitTimeout):
            ready.wait(_SOON)
        gate.acquire()
        with contextlib.suppress(shmrpc.WaitTimeout):
            again.acquire(_SOON)
        waiting = threading.Thread(target=_acquires, args=(gate,))
        waiting.start()
        gate.release()
        waiting.join()
    ready.signal(3)
    ready.wait()
    ready.drain()
    with contextlib.suppress(shmrpc.WaitTimeout):
        go.wait(_SOON)
    go.set()
    go.wait()
    go.clear()
    ready.stop()
    with contextlib.suppress(shmrpc.WaitStopped):
        go.is_set()
        ready.wait(_LONG)
    ready.resume()
    shmrpc.members("gpu")
    inspect_all_objects(print)
    for name in (again, gate, lock, go, frame, ready):
        name.close()
    _changes_a_store()


def _changes_a_store() -> None:
    with shmrpc.sync.store("world") as world:
        world.update(list=[3, 1, 2], set={1, "two"}, buffer=bytearray(10))
        with world.transaction():
            world["list"].append(world.pop("text", "a text that is long"))
            world.setdefault("sum", [1, 2, 3]).sort()
        with contextlib.suppress(ZeroDivisionError), world.transaction():
            world["sum"] = 1 // 0
        waiting = threading.Thread(target=_enters, args=(world,))
        with world.transaction():
            waiting.start()
            shmrpc.atomic.update(world, "n", lambda _: 1) if "n" in world else world.setdefault("n", 1)
        waiting.join()
        shmrpc.atomic.compare_and_set(world, "n", 1, shmrpc.atomic.add(world, "n", 1))
        world.inbox.put(len(world["buffer"]))
        world.inbox.read(_LONG)
        world.inbox.take(_LONG)
        for wait in (world.inbox.take, world.wait_changed):
            with contextlib.suppress(shmrpc.WaitTimeout):
                wait(_SOON)
        world.stats()
        left = world.copy()
        world.clear()
        world.update({"sum": sorted(left["sum"])})


def _enters(world: shmrpc.sync.Store) -> None:
    with world.transaction(_LONG):
        world["set"] |= {3}


def _acquires(gate: shmrpc.sync.Semaphore) -> None:
    gate.acquire(_LONG)
    gate.release()


async def _in_a_loop() -> None:
    gate, lock = shmrpc.Semaphore("gpu", 2), shmrpc.Lock("config")
    go, frame = shmrpc.Event("go"), shmrpc.memory("frame", 64)
    ready = shmrpc.Signal("ready")
    again = await shmrpc.attach("gpu")
    assert isinstance(again, shmrpc.Semaphore)
    async with gate, lock, frame.lock:
        await gate.acquire()
        waiting = [asyncio.create_task(again.acquire(_LONG)) for _ in range(3)]
        with contextlib.suppress(shmrpc.WaitTimeout):
            await gate.acquire(_SOON)
        waiting[1].cancel()
        gate.release()
        await waiting[0]
        again.release()
        await waiting[2]
        again.release()
        await gate.acquire()
        gate.release()
        await gate.acquire()
    gate.release()
    signalled = asyncio.create_task(ready.wait(_LONG))
    await asyncio.sleep(0)
    ready.signal(2)
    await signalled
    ready.drain()
    woken = asyncio.create_task(go.wait(_LONG))
    await asyncio.sleep(0)
    go.set()
    await woken
    go.clear()
    stopped = asyncio.create_task(ready.wait())
    await asyncio.sleep(0)
    ready.stop()
    await asyncio.wait([stopped])
    assert isinstance(stopped.exception(), shmrpc.WaitStopped)
    ready.resume()
    for name in (again, gate, lock, go, frame, ready):
        name.close()
    await _changes_a_store_in_a_loop()


async def _changes_a_store_in_a_loop() -> None:
    async with shmrpc.store("world") as world:
        entered = asyncio.create_task(_enters_in_a_loop(world))
        async with world.transaction():
            world["sum"] = [1, 2, 3]
            await asyncio.sleep(0)
        await entered
        taken, changed = asyncio.create_task(world.inbox.take(_LONG)), asyncio.create_task(world.changed(_LONG))
        await asyncio.sleep(0)
        world["n"] = 1
        await changed
        world.inbox.put(1)
        await taken
        for wait in (world.inbox.read, world.changed):
            with contextlib.suppress(shmrpc.WaitTimeout):
                await wait(_SOON)
        del world["n"]


async def _enters_in_a_loop(world: shmrpc.Store) -> None:
    async with world.transaction(_LONG):
        world["sum"].append(world["sum"].pop())


def in_a_loop() -> None:
    """Use objects in an event loop, with tasks that wait, time out and are stopped."""
    asyncio.run(_in_a_loop())


ROLES: Final[dict[str, Callable[[], None]]] = {"threads": in_threads, "loop": in_a_loop}
