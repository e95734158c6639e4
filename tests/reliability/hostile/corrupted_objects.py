"""A hostile member of a shared object: values that it writes into the memory, and the results of all who use it."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import random
import signal
import struct
import sys
import threading
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import shmrpc
import shmrpc.sync
from tests.reliability.hostile.hostile_peers import word
from tests.reliability.object_users import (
    ARRAY,
    CORRUPT_VALUE_ERRORS,
    HANGS,
    OPENERS,
    QUEUE_MEMORY,
    SMALL,
    STORE_MEMORY,
    TREE,
    ForkedProcess,
    Outcomes,
    inspect_and_attach,
    open_and_use,
    read_in_place,
    use,
    use_in_loop,
)

#: Seconds for which sleepers sleep during the corruption.
ASLEEP: Final = 0.1

#: Bytes of the header of a region, and offsets of the parts behind it: see core/src/objects/memory/layout.rs.
HEADER: Final = 40
CONTROL: Final = 64
#: Offsets of the words that announce a corruption to all members.
POISON: Final = range(64, 88)
MEMBERS: Final = 128
MEMBER_SIZE: Final = 32
SETS: Final = (8320, 12544)
SLOTS: Final = 256
SPINNER: Final = 16768
PERMITS: Final = 16832
#: The third wait set of a queue, and where a queue begins: see core/src/queue/layout.rs.
DONE_SET: Final = 65536
QUEUE: Final = 131072
CLAIMS: Final = QUEUE + 4096
CLAIM_SIZE: Final = 64
MAX_CLAIMS: Final = 4096
#: Offsets of the words of a queue that refer to its first and last chunk, and to its first item.
CHUNKS: Final = (QUEUE + 64, QUEUE + 80)
FIRST_ITEM: Final = QUEUE + 72
#: Offsets of the queue's journal, allocator metadata and pages: see core/src/shared_heap/allocator/mod.rs.
JOURNAL: Final = CLAIMS + MAX_CLAIMS * CLAIM_SIZE
ALLOCATOR: Final = JOURNAL + 4096
UNFINISHED_ALLOCS: Final = ALLOCATOR + 8192
MAP: Final = UNFINISHED_ALLOCS + 65536
PAGES: Final = MAP + 8192
#: Offsets of a store and of its first tables: see core/src/store/mod.rs.
STORE: Final = QUEUE
ROOTS: Final = tuple(STORE + at for at in (8, 16, 24))
PINS: Final = STORE + 64
VERSIONS: Final = PINS + 16 + 16 * 4096
STORE_ALLOCATOR: Final = (VERSIONS + 8 + 24 * 1024 + 4095) & ~4095
_STORE_PAGES: Final = STORE_MEMORY // 4096 * 2
STORE_MAP: Final = STORE_ALLOCATOR + 8192
#: Offset of the store's log, the last part of the memory: see core/src/shared_heap/redo_log/mod.rs.
LOG: Final = STORE_MAP + (_STORE_PAGES * 16 + 4095 & ~4095) + _STORE_PAGES * 4096
LOG_SIZE: Final = 16 << 20
#: Bytes by which a user of a corrupt object may grow: memory that Python's allocator keeps.
GROWTH: Final = 32 << 20
#: Offset of the slots within a wait set.
SLOTS_OFFSET: Final = 128


#: The offset of a word; or that of a word that refers to a block, and an offset within the block.
FieldOffset = int | tuple["FieldOffset", int]


def field_offsets(kind: str) -> list[FieldOffset]:
    """Return the offsets of all fields of an object; of many alike, those of some."""
    found = [*range(0, HEADER, 8), *range(CONTROL, MEMBERS, 8)]
    for slot in (0, 1, 2, 255):
        found += [MEMBERS + slot * MEMBER_SIZE + at for at in (0, 8)]
    for start in SETS:
        found += [start + 8 * n for n in (0, 1, 3)]  # The bits, and those of slots that do not exist.
        found.append(start + 64)
        found += [start + SLOTS_OFFSET + 8 * n for n in (0, 1, 2, SLOTS - 1)]
        found += [start + SLOTS_OFFSET + 8 * (SLOTS + n) for n in (0, 1)]
    permits = {"semaphore": 2, "event": 0, "signal": 0, "queue": 0, "store": 0}.get(kind, 1)
    found += [SPINNER, *(PERMITS + 8 * n for n in range(permits))]
    more = {"queue": _queue_fields, "store": store_fields}.get(kind)
    return [*found, *more()] if more is not None else [*found]


def _queue_fields() -> Iterator[FieldOffset]:
    yield from (DONE_SET, DONE_SET + 64, DONE_SET + SLOTS_OFFSET)
    yield from range(QUEUE, QUEUE + 136, 8)
    yield from (QUEUE + 192 + 8 * slot for slot in (0, 1, SLOTS - 1))  # The slots of members.
    for claim in (0, 1, 2, MAX_CLAIMS - 1):
        yield from range(CLAIMS + claim * CLAIM_SIZE, CLAIMS + (claim + 1) * CLAIM_SIZE, 8)
    yield from range(JOURNAL, JOURNAL + 32, 8)  # The lock, and the recovery.
    yield from range(JOURNAL + 64, JOURNAL + 112, 8)  # The journal, and two of its entries.
    yield from range(ALLOCATOR, ALLOCATOR + 48, 8)
    yield from (
        ALLOCATOR + 64,
        ALLOCATOR + 96,
        ALLOCATOR + 128,
        ALLOCATOR + 128 + 8 * 47,
        ALLOCATOR + 4096,
        ALLOCATOR + 4096 + 2048,
    )
    yield from (UNFINISHED_ALLOCS + 8 * n for n in range(6))
    yield from (MAP + 8 * n for n in (0, 1, 2, 3, 8, 9, 32, 33))
    for chunk in CHUNKS:
        yield from ((chunk, at) for at in (0, 8, 16, 24, 64, 72))  # A chunk, its first item, and the value of that.
    yield from ((FIRST_ITEM, at) for at in (0, 8))


def store_fields() -> Iterator[FieldOffset]:
    """Yield the offsets of the fields that only a store has."""
    yield from (DONE_SET, DONE_SET + 64, DONE_SET + SLOTS_OFFSET)
    yield from (STORE, *ROOTS)
    yield from (PINS + 8 * n for n in range(5))
    yield from (VERSIONS + 8 * n for n in range(7))
    yield from (STORE_ALLOCATOR + 8 * n for n in range(6))
    yield from (STORE_ALLOCATOR + at for at in (64, 96, 128, 128 + 8 * 47, 4096, 4096 + 2048))
    yield from (STORE_MAP + 8 * n for n in (0, 1, 2, 3, 8, 9, 32, 33))
    yield from (LOG + 8 * n for n in range(4))  # The lock, and the recovery.
    yield from (LOG + at for at in (40, 48, 64, 72, 80, 88, 96, 104))
    for root in ROOTS:
        yield from ((root, at) for at in (0, 8, 16, 24))  # The head of a container, and its parts.
        yield from (((root, 24), at) for at in (0, 8, 16, 24, 32, 48))
    entry = ((ROOTS[0], 24), 16 + 8 * 8)  # The entries of the dict that is the store: of eight slots at first.
    for member_number in range(6):
        at = entry[1] + 16 * member_number
        yield from ((entry[0], at), (entry[0], at + 8))  # A key, and its value.
        yield from ((((ROOTS[0], 24), at + 8), behind) for behind in (0, 8, 24))  # The head of that value.
        yield from (((((ROOTS[0], 24), at + 8), 24), behind) for behind in (0, 8))


def resolve_offset(memory: int, place: FieldOffset) -> int:
    """Return the current offset of a word: a multiple of 8 within the memory, for all contents of the references."""
    if isinstance(place, int):
        return place
    pointer, behind = place
    # A cell of a store has the type of the referenced value in its high half.
    at = (int.from_bytes(os.pread(memory, 8, resolve_offset(memory, pointer)), sys.byteorder) & (1 << 40) - 1) + behind
    return min(at, os.fstat(memory).st_size - 8) & ~7


def values(living: int, dead: int, dice: random.Random) -> dict[str, int]:
    """Return the values that a hostile member writes, by name."""
    return {
        "zero": 0,
        "ones": 2**64 - 1,
        "one": 1,
        "two": 2,
        "three": 3,
        "the member_number of a living member": living,
        "the member_number of a dead member": dead,
        "a place of a living sleeper": (living - 1 & 0xFFFF_FFFF) << 8 | 2,
        "anything": word(dice),
    }


def member_number(memory: int, slot: int) -> int:
    """Return the number of the member in a slot."""
    entry: int = struct.unpack("=Q", os.pread(memory, 8, MEMBERS + slot * MEMBER_SIZE))[0]
    return (entry >> 32) << 32 | slot + 1


def memory_of(name: str) -> Path | None:
    """Return the path of an object's memory, or None if it has none."""
    found = list(Path("/dev/shm").glob(f"shmrpc.{name}@*"))
    return found[0] if found else None


def _descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


def _established_member(kind: str, name: str) -> Callable[[Outcomes, Callable[[], None]], None]:
    """Return the work of a member that uses the object before and after the corruption; its threads and loop sleep."""

    def work(outcomes: Outcomes, step: Callable[[], None]) -> None:
        in_loop, in_threads = OPENERS[kind]
        witness = shmrpc.sync.Semaphore(f"{name}-witness")
        witness.acquire(0)
        held, awaited, kept = in_threads(name), in_loop(name), list[shmrpc.Claim]()
        use(outcomes, held)
        assert not outcomes.texts
        step()  # The test starts a member here that dies.
        held_lock = held.lock if kind == "memory" else held
        if kind == "queue":
            kept = _half_used(held)
        elif kind == "store":
            _fill(held)
            seen = held["bytes"]
            assert len(seen)
        elif kind not in ("event", "signal"):
            held_lock.acquire(HANGS)
        sleepers = [threading.Thread(target=_sleep, args=(outcomes, kind, held)) for _ in range(2)]
        sleepers.append(threading.Thread(target=lambda: asyncio.run(_sleep_in_loop(outcomes, kind, awaited))))
        before = _descriptors()
        for sleeper in sleepers:
            sleeper.start()
        time.sleep(ASLEEP / 4)
        step()  # The test corrupts the memory here.
        use(outcomes, held)
        asyncio.run(use_in_loop(outcomes, awaited))
        inspect_and_attach(outcomes, name)
        for sleeper in sleepers:
            sleeper.join()
        step()  # The test lets other processes use the object here.
        use(outcomes, held)
        for claim in kept:
            outcomes.note(lambda claim=claim: read_in_place(claim))  # type: ignore[misc]
        del kept[:]
        assert _descriptors() < before + 20
        witness.release()
        witness.acquire(0)
        assert {each.pid: each.holds for each in shmrpc.members(witness.name)} == {os.getpid(): 1}
        witness.close()
        held.close()
        awaited.close()

    return work


def _half_used(held: shmrpc.sync.Queue) -> list[shmrpc.Claim]:
    """Put items of all kinds into a queue until it is full; return the outstanding claims."""
    for item in (ARRAY, b"x" * 20_000, *[SMALL] * 3):
        held.put(item, HANGS)
    for _ in range(2):
        held.claim(HANGS).nack()  # Once it comes back, then it is a dead letter.
    claims = [held.claim(HANGS) for _ in range(3)]
    claims.pop().nack()
    with contextlib.suppress(shmrpc.QueueFull):
        while True:
            held.put_nowait(SMALL)
    return claims


def _fill(held: shmrpc.sync.Store) -> None:
    """Put values of all kinds into a store."""
    held.update(TREE)
    held.inbox.put(SMALL)


def _sleep(outcomes: Outcomes, kind: str, held: Any) -> None:
    if kind == "store":
        outcomes.note(lambda: held["tree"].wait_changed(ASLEEP), CORRUPT_VALUE_ERRORS)
        return
    if kind == "queue":
        outcomes.note(lambda: held.put(SMALL, ASLEEP))
        outcomes.note(lambda: held.join(ASLEEP))
        return
    waiting = (held.lock if kind == "memory" else held).acquire if kind not in ("event", "signal") else held.wait
    outcomes.note(lambda: waiting(ASLEEP))


async def _sleep_in_loop(outcomes: Outcomes, kind: str, held: Any) -> None:
    if kind == "store":
        await asyncio.gather(outcomes.note_in_loop(held.changed(ASLEEP)), outcomes.note_in_loop(held.changed(ASLEEP)))
        return
    if kind == "queue":
        await asyncio.gather(*(outcomes.note_in_loop(held.put(SMALL, ASLEEP)) for _ in range(2)))
        return
    waiting = (held.lock if kind == "memory" else held).acquire if kind not in ("event", "signal") else held.wait
    await outcomes.note_in_loop(waiting(ASLEEP))


def _dying_member(kind: str, name: str) -> Callable[[Outcomes, Callable[[], None]], None]:
    def work(outcomes: Outcomes, step: Callable[[], None]) -> None:
        held = OPENERS[kind][1](name)
        if kind == "queue":
            held.put_many([SMALL] * 3)
            kept = held.get(), held.claim(), held.reserve(ARRAY.shape, "i8").__enter__()
            assert kept
        elif kind == "store":
            _fill(held)
            seen = held["bytes"]
            held.transaction().__enter__()
            held["list"].append(list(seen[:10]))
        elif kind not in ("event", "signal"):
            (held.lock if kind == "memory" else held).acquire(HANGS)
        os.kill(os.getpid(), signal.SIGKILL)

    return work


def _newcomer(kind: str, name: str) -> Callable[[Outcomes, Callable[[], None]], None]:
    """Return the work of a process that opens the object after all other members have left, and finds it as new."""

    def work(outcomes: Outcomes, step: Callable[[], None]) -> None:
        open_and_use(outcomes, kind, name)
        assert not outcomes.texts, outcomes.texts

    return work


def corrupt_once(kind: str, name: str, place: FieldOffset, what: str, seed: int) -> tuple[Counter[str], set[str]]:
    """Write one corrupt value into an object's memory; return how the uses of all its members ended."""
    established = ForkedProcess(_established_member(kind, name))
    established.step()
    ForkedProcess(_dying_member(kind, name)).wait_until_killed()
    established.go_on()
    established.step()
    path = memory_of(name)
    assert path is not None
    memory = os.open(path, os.O_RDWR)
    at = resolve_offset(memory, place)
    # A queue may grow, but not beyond its addressable pages: it counts the pages that have memory itself.
    # So may a store: a process that reads all of its log allocates memory for that.
    most = {"queue": PAGES + 2 * QUEUE_MEMORY, "store": LOG + LOG_SIZE - STORE_MEMORY}
    size = most.get(kind, os.fstat(memory).st_blocks * 512)
    children = values(member_number(memory, 0), member_number(memory, 1), random.Random(seed))
    os.pwrite(memory, struct.pack("=Q", children[what]), at)
    established.go_on()
    established.step()
    ends, texts = ForkedProcess(lambda outcomes, _: open_and_use(outcomes, kind, name)).end()
    established.go_on()
    for more_ends, more_texts in (established.end(), ForkedProcess(_newcomer(kind, name)).end()):
        ends += more_ends
        texts |= more_texts
    assert os.fstat(memory).st_blocks * 512 <= size, "the memory has grown"
    os.close(memory)
    assert memory_of(name) is None
    return ends, texts


#: One corruption: the kind of the object, a word, and the value that is written there.
Corruption = tuple[str, FieldOffset, str]


def corrupt_all(corruptions: list[Corruption], workers: int, seed: int) -> tuple[dict[str, int], list[str], list[str]]:
    """Write many corrupt values, in several processes; return counts of results, error texts, and failures."""
    pipes = []
    for worker in range(workers):
        reads, writes = os.pipe()
        if os.fork() == 0:
            os.close(reads)
            _corrupt_some(corruptions[worker::workers], seed, writes)
            os._exit(0)
        os.close(writes)
        pipes.append(reads)
    ends, texts, wrong = Counter[str](), set[str](), list[str]()
    for reads in pipes:
        with open(reads) as report:
            more_ends, more_texts, more_wrong = json.load(report)
        ends.update(more_ends)
        texts.update(more_texts)
        wrong += more_wrong
        os.wait()
    return dict(ends), sorted(texts), wrong


def _corrupt_some(corruptions: list[Corruption], seed: int, writes: int) -> None:
    ends, texts, wrong = Counter[str](), set[str](), list[str]()
    for member_number, (kind, place, what) in enumerate(corruptions):
        name = f"corrupt{os.getpid()}"
        try:
            more_ends, more_texts = corrupt_once(kind, name, place, what, seed + member_number)
        except Exception:
            wrong.append(f"{what} at byte {place} of a {kind}: {traceback.format_exc()}")
            break  # The remains of this object would disturb the next ones.
        ends += more_ends
        texts |= more_texts
    os.write(writes, json.dumps([ends, sorted(texts), wrong]).encode())


# --- a process that overwrites memory without end ---


#: Objects that are overwritten at random, and their kinds.
OverwrittenObjects = dict[str, str]


def overwrite_at_random(seconds: float, users: int, seed: int) -> tuple[dict[str, int], list[str]]:
    """Let users do everything with all kinds of objects while another process overwrites the memory of each at random.

    Returns counts of the uses' results, and error texts. Raises AssertionError if a user has died, hung or grown.
    """
    end = time.monotonic() + seconds
    names = {f"{kind}{member_number}-{os.getpid()}": kind for kind in OPENERS for member_number in range(2)}
    overwriter = os.fork()
    if not overwriter:
        try:
            _overwrite_at_random(names, random.Random(seed))
        finally:
            traceback.print_exc()
            os._exit(1)
    children = [ForkedProcess(_random_uses(names, end, seed + member_number)) for member_number in range(users)]
    ends, texts = Counter[str](), set[str]()
    try:
        for each in children:
            more_ends, more_texts = each.end()
            ends += more_ends
            texts |= more_texts
    finally:
        os.kill(overwriter, signal.SIGKILL)
        status = os.waitstatus_to_exitcode(os.waitpid(overwriter, 0)[1])
    assert status == -signal.SIGKILL, "the process that overwrites memory has ended"
    for name, kind in names.items():
        ForkedProcess(_repeated_newcomer(kind, name)).end()
    return dict(ends), sorted(texts)


def _overwrite_at_random(names: OverwrittenObjects, dice: random.Random) -> None:
    """Write values near the current ones, or random ones, into the memories of objects; sometimes truncate a memory."""
    while True:
        time.sleep(dice.random() ** 4 * 0.02)
        for name, kind in names.items():
            path = memory_of(name)
            if path is None:
                continue
            try:
                memory = os.open(path, os.O_RDWR)
            except FileNotFoundError:  # Another process has removed it.
                continue
            chosen, size = field_offsets(kind), os.fstat(memory).st_size
            for _ in range(int(dice.random() ** 3 * 50) if size else 0):
                at = (
                    resolve_offset(memory, dice.choice(chosen))
                    if dice.random() < 0.9
                    else dice.randrange(size // 8) * 8
                )
                if POISON.start <= at < POISON.stop and dice.random() < 0.8:
                    continue
                found = int.from_bytes(os.pread(memory, 8, at), "little")
                near = (found + dice.choice((-1, 1)), found ^ 1 << dice.randrange(64), word(dice), 0, found & 0xFF)
                if at + 8 <= size:
                    os.pwrite(memory, (dice.choice(near) & 2**64 - 1).to_bytes(8, "little"), at)
            if dice.random() < 0.01:
                os.ftruncate(memory, dice.choice((0, 100, 4096, 8192, 2 * size)))
            os.close(memory)


def _random_uses(names: OverwrittenObjects, end: float, seed: int) -> Callable[[Outcomes, Callable[[], None]], None]:
    def work(outcomes: Outcomes, step: Callable[[], None]) -> None:
        dice = random.Random(seed)
        before = 0
        while time.monotonic() < end:
            name, kind = dice.choice(list(names.items()))
            signal.alarm(HANGS)
            open_and_use(outcomes, kind, name)
            grown, before = before and _resident() - before, before or _resident()
            assert grown < GROWTH, f"the process has grown by {grown:,} bytes"
            assert _descriptors() < 50

    return work


def _resident() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGESIZE")


def _repeated_newcomer(kind: str, name: str) -> Callable[[Outcomes, Callable[[], None]], None]:
    """Return the work of a process that opens an object twice: the second time it finds the object as new."""

    def work(outcomes: Outcomes, step: Callable[[], None]) -> None:
        open_and_use(Outcomes(), kind, name)
        open_and_use(outcomes, kind, name)
        assert not outcomes.texts, outcomes.texts
        assert memory_of(name) is None

    return work
