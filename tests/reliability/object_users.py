"""Uses of a shared object that another process may corrupt: all of its operations, with short deadlines.

Each process is forked, so that the test sees how it ends.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import traceback
from collections import Counter
from collections.abc import Awaitable, Callable
from typing import Any, Final

import numpy as np

import shmrpc
import shmrpc.sync
from shmrpc.discovery.members import inspect_all_objects

#: Seconds after which a process counts as hung.
HANGS: Final = 60
#: Seconds of the deadline of each operation.
SOON: Final = 0.01

#: Capacity of a queue: items, and bytes.
QUEUE_ITEMS: Final = 20
QUEUE_MEMORY: Final = 1 << 20
#: Bytes for the values of a store.
STORE_MEMORY: Final = 1 << 20
#: Items of a queue: one that shares a chunk, and one with a chunk of its own.
SMALL: Final = {"number": 7}
ARRAY: Final = np.arange(5_000)
#: Contents of a store.
TREE: Final[dict[str, Any]] = {
    "n": 1,
    "tree": {"a": [1, "a text that is long", {"deep": ["down"]}], "b": 2.5},
    "list": list(range(100, 0, -1)),
    "set": {1, "a member", (2, "a tuple in a set")},
    "bytes": bytearray(b"x" * 5000),
    "array": ARRAY,
}

#: Functions that open an object by its name, for a loop and for threads.
OPENERS: Final[dict[str, tuple[Callable[[str], Any], Callable[[str], Any]]]] = {
    "semaphore": (lambda name: shmrpc.Semaphore(name, 2), lambda name: shmrpc.sync.Semaphore(name, 2)),
    "lock": (shmrpc.Lock, shmrpc.sync.Lock),
    "event": (shmrpc.Event, shmrpc.sync.Event),
    "signal": (shmrpc.Signal, shmrpc.sync.Signal),
    "memory": (lambda name: shmrpc.memory(name, 5000), lambda name: shmrpc.sync.memory(name, 5000)),
    "queue": (
        lambda name: shmrpc.queue(name, QUEUE_ITEMS, max_memory=QUEUE_MEMORY, max_deliveries=2),
        lambda name: shmrpc.sync.queue(name, QUEUE_ITEMS, max_memory=QUEUE_MEMORY, max_deliveries=2),
    ),
    "store": (
        lambda name: shmrpc.store(name, STORE_MEMORY, busy_timeout=SOON),
        lambda name: shmrpc.sync.store(name, STORE_MEMORY, busy_timeout=SOON),
    ),
}
#: Exceptions that using a corrupt value may raise, as Python's own values do.
CORRUPT_VALUE_ERRORS: Final = (LookupError, TypeError, ValueError, AttributeError, ArithmeticError, RecursionError)


class Outcomes:
    """Counts of the results of uses of an object. Exceptions other than errors of ours are raised."""

    def __init__(self) -> None:
        self.ends: Counter[str] = Counter()
        #: Texts of the errors of the class `kept_class`, which report corrupt memory.
        self.texts: set[str] = set()
        self.kept_class: type[shmrpc.ShmrpcError] = shmrpc.RemoteProtocolError
        #: Exceptions that a loop logged.
        self.unexpected_errors: list[str] = []

    def note(self, use: Callable[[], object], wrong: tuple[type[Exception], ...] = ()) -> Any:
        """Carry out one use and count its result. `wrong` has further exceptions that the use may raise."""
        try:
            result = use()
        except shmrpc.ShmrpcError as error:
            self._failed(error)
            return None
        except wrong as error:
            self.ends[type(error).__name__] += 1
            return None
        self.ends["done"] += 1
        return result

    async def note_in_loop(self, use: Awaitable[object], wrong: tuple[type[Exception], ...] = ()) -> None:
        """Await one use and count its result, as `note` does."""
        try:
            await use
        except shmrpc.ShmrpcError as error:
            self._failed(error)
        except wrong as error:
            self.ends[type(error).__name__] += 1
        else:
            self.ends["done"] += 1

    def _failed(self, error: shmrpc.ShmrpcError) -> None:
        self.ends[type(error).__name__] += 1
        if isinstance(error, self.kept_class):
            self.texts.add(str(error))


def use(outcomes: Outcomes, held: Any) -> None:
    """Carry out all operations of an object that is open for threads."""
    note = outcomes.note
    kind = type(held).__name__.removeprefix("Blocking").lower()
    if kind == "memory":
        note(lambda: held.buf.__setitem__(slice(0, 3), bytes(held.buf[-3:])))
        note(lambda: held.array(1, "i8").sum())
        held = note(lambda: held.lock)
    if kind == "event":
        for step in (held.set, lambda: held.wait(SOON), held.clear, lambda: held.wait(SOON), held.is_set):
            note(step)
        return
    if kind == "signal":
        for step in (lambda: held.signal(300), lambda: held.wait(SOON), held.drain, lambda: held.wait(SOON)):
            note(step)
        return
    if kind == "queue":
        use_queue(outcomes, held)
        return
    if kind == "store":
        use_store(outcomes, held)
        return
    for step in (lambda: held.acquire(SOON), lambda: held.acquire(SOON), held.release, held.release):
        note(step)


def use_queue(outcomes: Outcomes, held: shmrpc.sync.Queue) -> None:
    """Carry out all operations of a queue that is open for threads."""
    note = outcomes.note
    for item in (SMALL, ARRAY, b"x" * 20_000):
        note(lambda item=item: held.put(item, SOON))  # type: ignore[misc]
    note(lambda: held.put_many([SMALL] * 4, SOON))
    note(lambda: fill(held))
    note(lambda: held.peek(QUEUE_ITEMS))
    note(held.stats)
    claims = [note(lambda: held.claim(SOON)) for _ in range(3)]
    note(lambda: held.claim(SOON, lease_timeout=SOON / 10))
    for claim in filter(None, claims):
        note(lambda claim=claim: read_in_place(claim))  # type: ignore[misc]
    for claim, end in zip(claims, ("ack", "nack"), strict=False):
        if claim is not None:
            note(getattr(claim, end))
    del claims[:]
    note(lambda: held.get(SOON))
    with contextlib.suppress(ValueError):  # A corrupt count may disagree with the items received.
        note(held.task_done)
    note(lambda: len(held.get_many(5, SOON)))
    note(lambda: held.dead_letters.claim_nowait().nack())
    note(lambda: held.dead_letters.get_many_nowait())
    note(lambda: held.join(SOON))
    note(held.qsize)
    while note(lambda: len(held.get_many_nowait(QUEUE_ITEMS))):
        pass


def fill(held: shmrpc.sync.Queue) -> None:
    """Put an array that is filled in place."""
    with held.reserve(ARRAY.shape, "i8", SOON) as filled:
        filled[:] = 1


def read_in_place(claim: shmrpc.Claim) -> None:
    """Read all of an item in place."""
    value = claim.value
    if isinstance(value, np.ndarray | bytes | memoryview):
        bytes(value)


async def use_in_loop(outcomes: Outcomes, held: Any) -> None:
    """Carry out operations that wait in a loop."""
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(lambda _, context: outcomes.unexpected_errors.append(str(context)))
    kind = type(held).__name__.lower()
    if kind in ("event", "signal"):
        await outcomes.note_in_loop(held.wait(SOON))
        return
    if kind == "queue":
        await use_queue_in_loop(outcomes, held)
        return
    if kind == "store":
        await use_store_in_loop(outcomes, held)
        return
    held = held.lock if kind == "memory" else held
    await asyncio.gather(*(outcomes.note_in_loop(held.acquire(SOON)) for _ in range(2)))
    outcomes.note(held.release)


async def use_queue_in_loop(outcomes: Outcomes, held: shmrpc.Queue) -> None:
    """Put, wait and claim in a loop, some of it concurrently."""
    note = outcomes.note_in_loop
    await note(held.put(ARRAY, SOON))
    await note(held.put_many([SMALL] * (QUEUE_ITEMS - 1), SOON))
    await asyncio.gather(note(held.put(SMALL, SOON)), note(fill_in_loop(held)), note(claim_in_loop(held)))
    await asyncio.gather(note(held.get_many(QUEUE_ITEMS, SOON)), note(held.get(SOON)), note(held.join(SOON)))
    outcomes.note(lambda: held.shutdown(immediate=True))


async def fill_in_loop(held: shmrpc.Queue) -> None:
    async with held.reserve(ARRAY.shape, "i8", SOON) as filled:
        filled[:] = 1


async def claim_in_loop(held: shmrpc.Queue) -> None:
    async with held.claim(SOON) as claim:
        read_in_place(claim)


def use_store(outcomes: Outcomes, held: shmrpc.sync.Store) -> None:
    """Carry out all operations of a store that is open for threads."""

    def note(use: Callable[[], object]) -> Any:
        return outcomes.note(use, CORRUPT_VALUE_ERRORS)

    for key, value in TREE.items():
        note(lambda key=key, value=value: held.__setitem__(key, value))  # type: ignore[misc]
    note(held.copy)
    note(held.stats)
    note(lambda: [list(held), held.items(), len(held), "n" in held])
    note(lambda: shmrpc.atomic.add(held, "n", 1))
    note(lambda: change_store(held))
    note(lambda: bytes(held["bytes"]))
    note(lambda: held["array"].sum())
    note(lambda: held["tree"].wait_changed(SOON))
    for message in (SMALL, ARRAY):
        note(lambda message=message: held.inbox.put(message))  # type: ignore[misc]
    note(lambda: held.inbox.read(SOON))
    note(lambda: held.inbox.take(SOON))
    note(lambda: held.inbox.take(SOON))
    note(lambda: held["list"].sort())
    for key in TREE:
        note(lambda key=key: held.pop(key))  # type: ignore[misc]
    note(held.clear)


def change_store(held: shmrpc.sync.Store) -> None:
    """Change much of a store in one transaction."""
    with held.transaction(SOON):
        held["tree"]["a"].append([1, "another text"])
        held["list"].extend(range(200))
        held["set"].add("a member of the set")
        del held["list"][:100]
        del held["tree"]["b"]
        held["n"] = 7


async def use_store_in_loop(outcomes: Outcomes, held: shmrpc.Store) -> None:
    """Carry out operations of a store that wait in a loop."""
    note = outcomes.note_in_loop

    async def change() -> None:
        async with held.transaction(SOON):
            held["n"] = 1

    await asyncio.gather(*(note(change(), CORRUPT_VALUE_ERRORS) for _ in range(2)))
    await asyncio.gather(note(held.changed(SOON)), note(held.inbox.take(SOON), CORRUPT_VALUE_ERRORS))


def inspect_and_attach(outcomes: Outcomes, name: str) -> None:
    """Inspect an object without opening it, then attach to it."""
    outcomes.note(lambda: shmrpc.members(name))
    outcomes.note(lambda: inspect_all_objects(lambda text: None))
    outcomes.note(lambda: shmrpc.sync.attach(name, SOON).close())


def open_and_use(outcomes: Outcomes, kind: str, name: str) -> None:
    """Open an object, once for threads and once for a loop, and carry out all its operations."""
    inspect_and_attach(outcomes, name)
    in_loop, in_threads = OPENERS[kind]
    for opener in (in_threads, in_loop):
        held = outcomes.note(lambda opener=opener: opener(name))  # type: ignore[misc]
        if held is None:
            continue
        if opener is in_threads:
            use(outcomes, held)
        else:
            asyncio.run(use_in_loop(outcomes, held))
        outcomes.note(held.close)


class ForkedProcess:
    """A forked process that does some work and reports the result. Its own alarm kills it if it hangs."""

    def __init__(self, work: Callable[[Outcomes, Callable[[], None]], None]) -> None:
        (self._reports, writes), (reads, self._permissions) = os.pipe(), os.pipe()
        self.pid = os.fork()
        if self.pid:
            os.close(writes)
            os.close(reads)
            return
        os.close(self._reports)
        os.close(self._permissions)
        signal.alarm(HANGS)
        code = 1

        def step() -> None:
            """Report that this step is reached, and wait until the test lets the process go on."""
            os.write(writes, b"\n")
            os.read(reads, 1)

        try:
            outcomes = Outcomes()
            work(outcomes, step)
            assert not outcomes.unexpected_errors, outcomes.unexpected_errors
            os.write(writes, json.dumps([outcomes.ends, sorted(outcomes.texts)]).encode())
            code = 0
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(code)

    def step(self) -> None:
        """Wait until the process reaches its next step."""
        os.read(self._reports, 1)

    def go_on(self) -> None:
        with contextlib.suppress(BrokenPipeError):
            os.write(self._permissions, b"\n")

    def wait_until_killed(self) -> None:
        """Wait until the process is killed."""
        os.close(self._reports)
        os.close(self._permissions)
        assert os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1]) == -signal.SIGKILL

    def end(self) -> tuple[Counter[str], set[str]]:
        """Return counts of the uses' results, and error texts. Raises AssertionError if the process hung or failed."""
        report = b""
        while part := os.read(self._reports, 1 << 16):
            report += part
        os.close(self._reports)
        os.close(self._permissions)
        status = os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])
        assert status != -signal.SIGALRM, "the process hangs"
        assert status == 0, f"the process has ended with {status}"
        ends, texts = json.loads(report)
        return Counter(ends), set(texts)
