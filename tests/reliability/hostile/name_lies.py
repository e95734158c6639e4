"""A hostile member of a name: what it writes into the memory, and what becomes of those who use the name meanwhile."""

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
from tests.reliability.hostile.liars import word
from tests.reliability.name_users import (
    ARRAY,
    HANGS,
    OPENERS,
    QUEUE_MEMORY,
    SMALL,
    STORE_MEMORY,
    TREE,
    WRONG,
    Outcomes,
    Told,
    look,
    see,
    use,
    use_anew,
    use_in_loop,
)

#: Seconds for which sleepers sleep while a lie is told.
ASLEEP: Final = 0.1

#: Bytes of the header of a region, and offsets of what stands behind it: see core/src/objects/memory/layout.rs.
HEADER: Final = 40
CONTROL: Final = 64
#: Where all members are told of a lie.
POISON: Final = range(64, 88)
MEMBERS: Final = 128
MEMBER_SIZE: Final = 32
SETS: Final = (8320, 12544)
SLOTS: Final = 256
LOOKING: Final = 16768
PERMITS: Final = 16832
#: The third wait set of a queue, and where a queue begins: see core/src/queue/layout.rs.
DONE_SET: Final = 65536
QUEUE: Final = 131072
CLAIMS: Final = QUEUE + 4096
CLAIM_SIZE: Final = 64
MOST_CLAIMS: Final = 4096
#: Where the words of a queue stand that say where its first and its last chunk are, and its first item.
CHUNKS: Final = (QUEUE + 64, QUEUE + 80)
FIRST_ITEM: Final = QUEUE + 72
#: What the queue's memory is shared out by, with its journal: see core/src/shared_heap/allocator/mod.rs.
JOURNAL: Final = CLAIMS + MOST_CLAIMS * CLAIM_SIZE
BOOKS: Final = JOURNAL + 4096
FILLING: Final = BOOKS + 8192
MAP: Final = FILLING + 65536
PAGES: Final = MAP + 8192
#: Where a store begins, and what it begins with: see core/src/store/mod.rs.
STORE: Final = QUEUE
ROOTS: Final = tuple(STORE + at for at in (8, 16, 24))
PINS: Final = STORE + 64
WATCHES: Final = PINS + 16 + 16 * 4096
STORE_BOOKS: Final = (WATCHES + 8 + 24 * 1024 + 4095) & ~4095
_STORE_PAGES: Final = STORE_MEMORY // 4096 * 2
STORE_MAP: Final = STORE_BOOKS + 8192
#: Its log, which is its end: see core/src/shared_heap/redo_log/mod.rs.
LOG: Final = STORE_MAP + (_STORE_PAGES * 16 + 4095 & ~4095) + _STORE_PAGES * 4096
LOG_SIZE: Final = 16 << 20
#: Bytes by which whoever is lied to may grow: what Python's allocator keeps.
GROWTH: Final = 32 << 20
#: Where the slots of a wait set begin in it.
AT_SLOTS: Final = 128


#: The offset of a word; or the place of a word which says where something is, and how far behind that it stands.
Place = int | tuple["Place", int]


def words(kind: str) -> list[Place]:
    """The offsets of all fields, of the first of many that are alike some."""
    found = [*range(0, HEADER, 8), *range(CONTROL, MEMBERS, 8)]
    for slot in (0, 1, 2, 255):
        found += [MEMBERS + slot * MEMBER_SIZE + at for at in (0, 8)]
    for start in SETS:
        found += [start + 8 * n for n in (0, 1, 3)]  # The bits, and those of slots that there are not.
        found.append(start + 64)
        found += [start + AT_SLOTS + 8 * n for n in (0, 1, 2, SLOTS - 1)]
        found += [start + AT_SLOTS + 8 * (SLOTS + n) for n in (0, 1)]
    permits = {"semaphore": 2, "event": 0, "signal": 0, "queue": 0, "store": 0}.get(kind, 1)
    found += [LOOKING, *(PERMITS + 8 * n for n in range(permits))]
    more = {"queue": _words_of_queue, "store": words_of_store}.get(kind)
    return [*found, *more()] if more is not None else [*found]


def _words_of_queue() -> Iterator[Place]:
    yield from (DONE_SET, DONE_SET + 64, DONE_SET + AT_SLOTS)
    yield from range(QUEUE, QUEUE + 136, 8)
    yield from (QUEUE + 192 + 8 * slot for slot in (0, 1, SLOTS - 1))  # What members have got.
    for claim in (0, 1, 2, MOST_CLAIMS - 1):
        yield from range(CLAIMS + claim * CLAIM_SIZE, CLAIMS + (claim + 1) * CLAIM_SIZE, 8)
    yield from range(JOURNAL, JOURNAL + 32, 8)  # The lease, and what was found.
    yield from range(JOURNAL + 64, JOURNAL + 112, 8)  # The journal, and two of its entries.
    yield from range(BOOKS, BOOKS + 48, 8)
    yield from (BOOKS + 64, BOOKS + 96, BOOKS + 128, BOOKS + 128 + 8 * 47, BOOKS + 4096, BOOKS + 4096 + 2048)
    yield from (FILLING + 8 * n for n in range(6))
    yield from (MAP + 8 * n for n in (0, 1, 2, 3, 8, 9, 32, 33))
    for chunk in CHUNKS:
        yield from ((chunk, at) for at in (0, 8, 16, 24, 64, 72))  # A chunk, its first item, and what that holds.
    yield from ((FIRST_ITEM, at) for at in (0, 8))


def words_of_store() -> Iterator[Place]:
    """The offsets of the fields that only a store has."""
    yield from (DONE_SET, DONE_SET + 64, DONE_SET + AT_SLOTS)
    yield from (STORE, *ROOTS)
    yield from (PINS + 8 * n for n in range(5))
    yield from (WATCHES + 8 * n for n in range(7))
    yield from (STORE_BOOKS + 8 * n for n in range(6))
    yield from (STORE_BOOKS + at for at in (64, 96, 128, 128 + 8 * 47, 4096, 4096 + 2048))
    yield from (STORE_MAP + 8 * n for n in (0, 1, 2, 3, 8, 9, 32, 33))
    yield from (LOG + 8 * n for n in range(4))  # The lease, and what was found.
    yield from (LOG + at for at in (40, 48, 64, 72, 80, 88, 96, 104))
    for root in ROOTS:
        yield from ((root, at) for at in (0, 8, 16, 24))  # The head of a container, and what it has.
        yield from (((root, 24), at) for at in (0, 8, 16, 24, 32, 48))
    entry = ((ROOTS[0], 24), 16 + 8 * 8)  # The entries of the dict that is the store: of eight slots at first.
    for number in range(6):
        at = entry[1] + 16 * number
        yield from ((entry[0], at), (entry[0], at + 8))  # A key, and its value.
        yield from ((((ROOTS[0], 24), at + 8), behind) for behind in (0, 8, 24))  # The head of that value.
        yield from (((((ROOTS[0], 24), at + 8), 24), behind) for behind in (0, 8))


def found_at(memory: int, place: Place) -> int:
    """Where a word is now: a multiple of 8 within the memory, whatever says so."""
    if isinstance(place, int):
        return place
    pointer, behind = place
    # A cell of a store has the type of what lies there in its high half.
    at = (int.from_bytes(os.pread(memory, 8, found_at(memory, pointer)), sys.byteorder) & (1 << 40) - 1) + behind
    return min(at, os.fstat(memory).st_size - 8) & ~7


def values(living: int, dead: int, dice: random.Random) -> dict[str, int]:
    """What a liar writes."""
    return {
        "zero": 0,
        "ones": 2**64 - 1,
        "one": 1,
        "two": 2,
        "three": 3,
        "the number of a living member": living,
        "the number of a dead member": dead,
        "a place of a living sleeper": (living - 1 & 0xFFFF_FFFF) << 8 | 2,
        "anything": word(dice),
    }


def number(memory: int, slot: int) -> int:
    """The number of the member of a slot."""
    entry: int = struct.unpack("=Q", os.pread(memory, 8, MEMBERS + slot * MEMBER_SIZE))[0]
    return (entry >> 32) << 32 | slot + 1


def memory_of(name: str) -> Path | None:
    """The memory of a name, if it has one."""
    found = list(Path("/dev/shm").glob(f"shmrpc.{name}@*"))
    return found[0] if found else None


def _descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


def _knows(kind: str, name: str) -> Callable[[Outcomes, Callable[[], None]], None]:
    """A member that has used the name before the lie, and goes on with it; threads and a loop of it sleep meanwhile."""

    def work(outcomes: Outcomes, step: Callable[[], None]) -> None:
        in_loop, in_threads = OPENERS[kind]
        witness = shmrpc.sync.Semaphore(f"{name}-witness")
        witness.acquire(0)
        held, awaited, kept = in_threads(name), in_loop(name), list[shmrpc.Claim]()
        use(outcomes, held)
        assert not outcomes.texts
        step()  # Now somebody joins, and dies.
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
        step()  # Now the lie is told.
        use(outcomes, held)
        asyncio.run(use_in_loop(outcomes, awaited))
        look(outcomes, name)
        for sleeper in sleepers:
            sleeper.join()
        step()  # Now others use the name.
        use(outcomes, held)
        for claim in kept:
            outcomes.note(lambda claim=claim: see(claim))  # type: ignore[misc]
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
    """Lets a queue have something of everything, and be full. The claims that are held."""
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
    """Lets a store have something of everything."""
    held.update(TREE)
    held.inbox.put(SMALL)


def _sleep(outcomes: Outcomes, kind: str, held: Any) -> None:
    if kind == "store":
        outcomes.note(lambda: held["tree"].wait_changed(ASLEEP), WRONG)
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


def _dies(kind: str, name: str) -> Callable[[Outcomes, Callable[[], None]], None]:
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


def _works(kind: str, name: str) -> Callable[[Outcomes, Callable[[], None]], None]:
    """Whoever opens the name once all liars and those whom they lied to are gone finds it as new."""

    def work(outcomes: Outcomes, step: Callable[[], None]) -> None:
        use_anew(outcomes, kind, name)
        assert not outcomes.texts, outcomes.texts

    return work


def tell_one(kind: str, name: str, place: Place, what: str, seed: int) -> tuple[Counter[str], set[str]]:
    """Tells one lie: what became of all who use the name."""
    knows = Told(_knows(kind, name))
    knows.step()
    Told(_dies(kind, name)).killed()
    knows.go_on()
    knows.step()
    path = memory_of(name)
    assert path is not None
    memory = os.open(path, os.O_RDWR)
    at = found_at(memory, place)
    # A queue may grow, but not beyond the pages that there are addresses for: it counts those that have memory itself.
    # So may a store: whoever reads all of its log has memory for that.
    most = {"queue": PAGES + 2 * QUEUE_MEMORY, "store": LOG + LOG_SIZE - STORE_MEMORY}
    size = most.get(kind, os.fstat(memory).st_blocks * 512)
    told = values(number(memory, 0), number(memory, 1), random.Random(seed))
    os.pwrite(memory, struct.pack("=Q", told[what]), at)
    knows.go_on()
    knows.step()
    ends, texts = Told(lambda outcomes, _: use_anew(outcomes, kind, name)).end()
    knows.go_on()
    for more_ends, more_texts in (knows.end(), Told(_works(kind, name)).end()):
        ends += more_ends
        texts |= more_texts
    assert os.fstat(memory).st_blocks * 512 <= size, "it has grown"
    os.close(memory)
    assert memory_of(name) is None
    return ends, texts


#: A lie: the kind of the name, a word, and what is written there.
Lie = tuple[str, Place, str]


def tell(lies: list[Lie], workers: int, seed: int) -> tuple[dict[str, int], list[str], list[str]]:
    """Tells many lies, in so many processes: how all uses have ended, what was said of them, and what went wrong."""
    pipes = []
    for worker in range(workers):
        reads, writes = os.pipe()
        if os.fork() == 0:
            os.close(reads)
            _tell(lies[worker::workers], seed, writes)
            os._exit(0)
        os.close(writes)
        pipes.append(reads)
    ends, texts, wrong = Counter[str](), set[str](), list[str]()
    for reads in pipes:
        with open(reads) as said:
            more_ends, more_texts, more_wrong = json.load(said)
        ends.update(more_ends)
        texts.update(more_texts)
        wrong += more_wrong
        os.wait()
    return dict(ends), sorted(texts), wrong


def _tell(lies: list[Lie], seed: int, writes: int) -> None:
    ends, texts, wrong = Counter[str](), set[str](), list[str]()
    for number, (kind, place, what) in enumerate(lies):
        name = f"lie{os.getpid()}"
        try:
            more_ends, more_texts = tell_one(kind, name, place, what, seed + number)
        except Exception:
            wrong.append(f"{what} at byte {place} of a {kind}: {traceback.format_exc()}")
            break  # What is left of it would disturb the others.
        ends += more_ends
        texts |= more_texts
    os.write(writes, json.dumps([ends, sorted(texts), wrong]).encode())


# --- one who scribbles without end ---


#: Names that are scribbled over, and their kinds.
Scribbled = dict[str, str]


def scribble(seconds: float, users: int, seed: int) -> tuple[dict[str, int], list[str]]:
    """Lets users do everything with all kinds of names while somebody writes anything into the memory of each.

    Returns how the uses have ended, and what was said. Raises AssertionError if one has died, hung or grown.
    """
    end = time.monotonic() + seconds
    names = {f"{kind}{number}-{os.getpid()}": kind for kind in OPENERS for number in range(2)}
    scribbler = os.fork()
    if not scribbler:
        try:
            _scribble(names, random.Random(seed))
        finally:
            traceback.print_exc()
            os._exit(1)
    told = [Told(_uses(names, end, seed + number)) for number in range(users)]
    ends, texts = Counter[str](), set[str]()
    try:
        for each in told:
            more_ends, more_texts = each.end()
            ends += more_ends
            texts |= more_texts
    finally:
        os.kill(scribbler, signal.SIGKILL)
        status = os.waitstatus_to_exitcode(os.waitpid(scribbler, 0)[1])
    assert status == -signal.SIGKILL, "the scribbler has ended"
    for name, kind in names.items():
        Told(_mends(kind, name)).end()
    return dict(ends), sorted(texts)


def _scribble(names: Scribbled, dice: random.Random) -> None:
    """Writes near what is there, or anything, into the memories that there are; now and then it cuts one off."""
    while True:
        time.sleep(dice.random() ** 4 * 0.02)
        for name, kind in names.items():
            path = memory_of(name)
            if path is None:
                continue
            try:
                memory = os.open(path, os.O_RDWR)
            except FileNotFoundError:  # It was removed meanwhile.
                continue
            chosen, size = words(kind), os.fstat(memory).st_size
            for _ in range(int(dice.random() ** 3 * 50) if size else 0):
                at = found_at(memory, dice.choice(chosen)) if dice.random() < 0.9 else dice.randrange(size // 8) * 8
                if POISON.start <= at < POISON.stop and dice.random() < 0.8:
                    continue
                found = int.from_bytes(os.pread(memory, 8, at), "little")
                near = (found + dice.choice((-1, 1)), found ^ 1 << dice.randrange(64), word(dice), 0, found & 0xFF)
                if at + 8 <= size:
                    os.pwrite(memory, (dice.choice(near) & 2**64 - 1).to_bytes(8, "little"), at)
            if dice.random() < 0.01:
                os.ftruncate(memory, dice.choice((0, 100, 4096, 8192, 2 * size)))
            os.close(memory)


def _uses(names: Scribbled, end: float, seed: int) -> Callable[[Outcomes, Callable[[], None]], None]:
    def work(outcomes: Outcomes, step: Callable[[], None]) -> None:
        dice = random.Random(seed)
        before = 0
        while time.monotonic() < end:
            name, kind = dice.choice(list(names.items()))
            signal.alarm(HANGS)
            use_anew(outcomes, kind, name)
            grown, before = before and _resident() - before, before or _resident()
            assert grown < GROWTH, f"it has grown by {grown:,} bytes"
            assert _descriptors() < 50

    return work


def _resident() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGESIZE")


def _mends(kind: str, name: str) -> Callable[[Outcomes, Callable[[], None]], None]:
    """Whoever opens a name once all others are gone may find what they left; once it has closed it, all is as new."""

    def work(outcomes: Outcomes, step: Callable[[], None]) -> None:
        use_anew(Outcomes(), kind, name)
        use_anew(outcomes, kind, name)
        assert not outcomes.texts, outcomes.texts
        assert memory_of(name) is None

    return work
