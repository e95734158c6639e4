"""Compare docs/object-format.md with the core: the offsets, and a member that knows only that page."""

from __future__ import annotations

import fcntl
import mmap
import os
import re
import struct
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import msgspec
import numpy as np
import pytest

import shmrpc
import shmrpc.sync
from shmrpc.host import cleanup
from tests.helpers.host_names import host_to_oneself
from tests.helpers.member_process import MemberProcess
from tests.helpers.server_process import eventually

PAGE = (Path(__file__).parents[2] / "docs" / "object-format.md").read_text()
OURS = f"page{os.getpid()}"


def rows(heading: str) -> dict[str, tuple[int, str, bool]]:
    """Return the offset of each row of a section's first table, its meaning, and True if it is marked."""
    section = PAGE[PAGE.index(f"\n## {heading}") :].split("\n## ", 2)[1]
    found = re.findall(r"^\| (\d+)( \*)? \| ([^|]+?) \| ([^|]*?) ?\|$", section, re.MULTILINE)
    return {f"{what} {at}": (int(at), meaning, bool(mark)) for at, mark, what, meaning in found}


def at(heading: str, what: str) -> int:
    return next(offset for name, (offset, _, _) in rows(heading).items() if name.startswith(what))


MEMORY, MEMBERS, SET = "2. The memory", "3. Members", "5. A wait set"
QUEUE, CLAIM, CHUNK = "6. A queue", "7. Claims", "8. Chunks and items"
UNDO_LOG = "9. The owner lock and the undo log"
TOPIC, SEAT, LOG = "10. A topic", "11. A seat", "12. The log of a publisher"
AT_MEMBERS, AT_PERMITS = at(MEMORY, "members"), at(MEMORY, "permits")
#: The offset of a queue, and of the pages of a queue of 1 MiB, behind the map of 16 bytes for each.
AT_QUEUE = int(re.findall(r"The queue itself begins at (\d+),", " ".join(PAGE.split()))[0])
AT_PAGES = AT_QUEUE + at(QUEUE, "map") + 16 * 512
#: The offsets at which a topic begins and ends.
AT_TOPIC = int(re.findall(r"The topic itself begins at (\d+),", " ".join(PAGE.split()))[0])
TOPIC_ENDS = AT_TOPIC + at(TOPIC, "seats") + 128 * 4096
FIRST_SET, SECOND_SET = (offset for name, (offset, _, _) in rows(MEMORY).items() if name.startswith("wait set"))


class Mapped:
    """The memory that a lock file names."""

    def __init__(self, runtime: Path) -> None:
        self.lock_file = runtime / f"{OURS}@shared.lock"
        text = self.lock_file.read_text()
        assert text.endswith("\n")
        self.name = text.removesuffix("\n")
        with open(f"/dev/shm/{self.name}", "r+b") as file:
            self.size = os.fstat(file.fileno()).st_size
            self._memory = mmap.mmap(file.fileno(), self.size)

    def __getitem__(self, offset: int) -> int:
        number: int = struct.unpack_from("=Q", self._memory, offset)[0]
        return number

    def __setitem__(self, offset: int, value: int) -> None:
        struct.pack_into("=Q", self._memory, offset, value)

    def half(self, offset: int) -> int:
        number: int = struct.unpack_from("=I", self._memory, offset)[0]
        return number

    def copy(self, offset: int, size: int) -> bytes:
        return self._memory[offset : offset + size]

    def close(self) -> None:
        self._memory.close()


@pytest.fixture
def member(runtime: Path) -> Iterator[MemberProcess]:
    """Another process, which holds the lock file so that this one may open and close it."""
    with MemberProcess() as process:
        yield process
    with host_to_oneself():  # The files of a killed last member stay until a clean-up.
        cleanup.clean()


def fnv(numbers: list[int]) -> int:
    value = 0xCBF29CE484222325
    for number in numbers:
        for byte in number.to_bytes(8, "little"):
            value = (value ^ byte) * 0x100000001B3 % (1 << 64)
    return value


@pytest.mark.parametrize(
    ("made", "kind", "size"),
    [
        ("sync.Semaphore({0!r}, 3)", 3, AT_PERMITS + 24),
        ("sync.Lock({0!r})", 4, AT_PERMITS + 8),
        ("sync.Event({0!r})", 5, AT_PERMITS),
        ("sync.memory({0!r}, 1000)", 2, 65536 + 1000),
        ("sync.queue({0!r}, 7, max_memory=1 << 20, max_deliveries=2, raw=True)", 6, AT_PAGES + 2 * (1 << 20)),
        ("sync.subscribe({0!r}, raw=True)", 7, TOPIC_ENDS),
    ],
)
def test_the_header_agrees_with_the_page(runtime: Path, member: MemberProcess, made: str, kind: int, size: int) -> None:
    member.do(f"it = {made.format(OURS)}")
    memory = Mapped(runtime)
    assert re.fullmatch(rf"shmrpc\.{OURS}@[a-z]+\.[0-9a-f]{{32}}", memory.name)
    assert memory[at(MEMORY, "magic")].to_bytes(8, sys.byteorder) == b"shmrpc\0\1"
    assert (memory.half(at(MEMORY, "version")), memory.half(at(MEMORY, "kind"))) == (2, kind)
    assert memory[at(MEMORY, "size")] == memory.size == size
    assert memory.half(at(MEMORY, "ready")) == 1
    # The core computes the signature from its own offsets.
    marked = [offset for offset, _, mark in rows(MEMORY).values() if mark]
    assert len(marked) == 11
    assert memory[at(MEMORY, "signature")] == fnv([*marked, 65536])
    assert memory[at(MEMORY, "amount")] == {3: 3, 4: 1, 5: 0, 9: 0, 2: 1000, 6: 1 << 20, 7: 0}[kind]
    bounds = at(MEMORY, "bounds")
    expected = {6: (7, 2 | 1 << 63), 7: (0, 1 << 63)}.get(kind, (0, 0))
    assert (memory[bounds], memory[bounds + 8]) == expected
    memory.close()


def test_the_state_of_members_agrees_with_the_page(runtime: Path, member: MemberProcess) -> None:
    member.do(f"it = sync.Semaphore({OURS!r}, 2); it.acquire()")
    memory = Mapped(runtime)
    entry = memory[AT_MEMBERS + at(MEMBERS, "entry")]
    number = entry >> 32 << 32 | 1
    assert entry & 1 == 1
    assert memory[AT_MEMBERS + at(MEMBERS, "since")] > 1_700_000_000 * 10**9
    assert (memory[AT_PERMITS], memory[AT_PERMITS + 8]) == (number, 0)
    assert _locked(memory.lock_file, 1) == member.pid
    assert _locked(memory.lock_file, 0) is None
    member.do("it.acquire()")
    member.begin("it.acquire()")
    place = FIRST_SET + at(SET, "slots")
    # Together, and more than once: at first the thread withdraws its announcement now and then, to run signal handlers.
    assert eventually(lambda: (memory[place] & 0xFFFF_FFFF, memory[FIRST_SET + at(SET, "bits")]) == (2, 1))
    assert memory[FIRST_SET + at(SET, "tickets")] == 1
    assert memory[SECOND_SET + at(SET, "tickets")] == 0
    memory.close()


def test_signals_are_counted_as_on_the_page(runtime: Path, member: MemberProcess) -> None:
    member.do(f"it = sync.Signal({OURS!r}); it.signal(5)")
    memory, signals = Mapped(runtime), at(MEMORY, "signals")
    assert memory[signals] == 5
    memory[signals] = 1
    member.do("it.wait(60)")
    assert memory[signals] == 0
    memory.close()


def test_an_event_counts_as_on_the_page(runtime: Path, member: MemberProcess) -> None:
    member.do(f"it = sync.Event({OURS!r})")
    memory, event = Mapped(runtime), at(MEMORY, "event")
    seen = [memory[event]]
    for step in ("set", "set", "clear", "set"):
        member.do(f"it.{step}()")
        seen.append(memory[event])
    assert seen == [0, 3, 3, 2, 5]
    member.do("it.clear()")
    memory[event] = memory[event] + 3
    member.do("it.wait(60)")
    memory.close()


class Chunks:
    """A queue, read by the page alone."""

    def __init__(self, memory: Mapped) -> None:
        self._memory = memory

    def word(self, what: str) -> int:
        return self._memory[AT_QUEUE + at(QUEUE, what)]

    def claim(self, index: int, what: str) -> int:
        return self._memory[AT_QUEUE + at(QUEUE, "claims") + 64 * index + at(CLAIM, what)]

    def undo_log(self, what: str) -> int:
        return self._memory[AT_QUEUE + at(QUEUE, "undo log") + at(UNDO_LOG, what)]

    def item(self, place: int) -> tuple[int, bytes, int]:
        """Return the form and the payload of an item, and the offset of the next item."""
        head = self._memory[place]
        form, size = head >> 40, head & (1 << 40) - 1
        begin = place + 8 if form != 2 else (place + 8 + 63) & ~63
        return form, self._memory.copy(begin, size), (begin + size + 7) & ~7

    def items(self) -> list[tuple[int, bytes]]:
        """Return the form and the payload of each waiting item."""
        found: list[tuple[int, bytes]] = []
        chunk, place = self.word("head chunk"), self.word("head at")
        while len(found) < self.word("put") - self.word("taken"):
            is_last = chunk == self.word("tail chunk")
            if place == (self.word("tail at") if is_last else self._memory[chunk + at(CHUNK, "end")]):
                assert not is_last
                chunk = self._memory[chunk + at(CHUNK, "next")]
                place = chunk + at(CHUNK, "items")
            assert chunk < place < chunk + self._memory[chunk + at(CHUNK, "size")]
            form, payload, place = self.item(place)
            found.append((form, payload))
        return found

    def pins(self, chunk: int) -> int:
        return self._memory[chunk + at(CHUNK, "pins")]


def parts(payload: bytes) -> list[bytes]:
    """Return the body and the buffers of an item with buffers."""
    body, count = struct.unpack_from("=II", payload)
    lengths = struct.unpack_from(f"={count}Q", payload, 8)
    place = 8 + 8 * count
    found = [payload[place : place + body]]
    place += body
    for length in lengths:
        place = (place + 63) & ~63
        found.append(payload[place : place + length])
        place += length
    assert place == len(payload)
    return found


def test_waiting_items_agree_with_the_page(runtime: Path, member: MemberProcess) -> None:
    member.do(f"import numpy as np; q = sync.queue({OURS!r}); q.put('gone'); q.get()")
    member.do("q.put({'id': 1}); q.put_many(list(range(500))); q.put(np.arange(9000)); q.put(b'x' * 40_000); q.put(7)")
    queue = Chunks(memory := Mapped(runtime))
    items = queue.items()
    values = [{"id": 1}, *range(500)]
    assert [(form, msgspec.msgpack.decode(payload)) for form, payload in items[:501]] == [(0, each) for each in values]
    assert items[-1] == (0, b"\7")
    for (form, payload), buffer in zip(items[501:503], (np.arange(9000).tobytes(), b"x" * 40_000), strict=True):
        assert form == 2
        assert parts(payload)[1:] == [buffer]
    assert [queue.word(what) for what in ("put", "taken", "done", "held", "shut")] == [505, 1, 0, 0, 0]
    assert queue.word("outstanding") == 1
    member.do("q.task_done(); q.shutdown()")
    assert [queue.word(what) for what in ("done", "shut", "outstanding")] == [1, 1, 0]
    assert (queue.undo_log("owner lock"), queue.undo_log("sequence") % 2, queue.undo_log("count")) == (0, 0, 0)
    memory.close()


def test_claims_agree_with_the_page(runtime: Path, member: MemberProcess) -> None:
    member.do(f"q = sync.queue({OURS!r}, raw=True, max_deliveries=2); q.put_many([b'a', b'b', b'c', b'd'])")
    member.do("for _ in range(2): q.claim().nack()")
    member.do("c = q.claim(lease_timeout=60); q.claim().nack()")
    queue = Chunks(memory := Mapped(runtime))
    entry = memory[AT_MEMBERS + at(MEMBERS, "entry")]
    counts = [
        queue.word(what) for what in ("put", "taken", "returned 2", "held", "dead 4", "used claims", "free claims")
    ]
    assert counts == [4, 3, 1, 1, 1, 3, 0]
    dead, held, back = queue.word("dead claims") - 1, 1, queue.word("returned claims") - 1
    assert (dead, back) == (0, 2)
    assert [queue.claim(each, "state") for each in (dead, held, back)] == [3 | 2 << 8, 1 | 1 << 8, 2 | 1 << 8]
    assert [queue.claim(each, "number") for each in (dead, held, back)] == [0, 1, 2]
    assert [queue.item(queue.claim(each, "item"))[:2] for each in (dead, held, back)] == [
        (1, b"a"),
        (1, b"b"),
        (1, b"c"),
    ]
    assert [queue.claim(each, "owner") for each in (dead, held, back)] == [0, entry >> 32 << 32 | 1, 0]
    assert queue.claim(held, "expiry") - queue.claim(held, "since") == 60 * 10**9
    assert queue.word("expiry") == queue.claim(held, "expiry")
    assert queue.claim(held, "chunk") == queue.word("head chunk")
    assert queue.pins(queue.word("head chunk")) == 3
    assert queue.items() == [(1, b"d")]
    member.do("c.ack()")
    assert queue.claim(held, "state") == 0
    assert queue.word("free claims") == held + 1
    memory.close()


class Log:
    """The log of a publisher, read by the page alone, without a membership."""

    def __init__(self, pid: int, descriptor: int) -> None:
        with open(f"/proc/{pid}/fd/{descriptor}", "rb") as file:
            self.seals = fcntl.fcntl(file, fcntl.F_GET_SEALS)
            self.file_size = os.fstat(file.fileno()).st_size
            self._memory = mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ)

    def word(self, what: str, beyond: int = 0) -> int:
        return self._word(at(LOG, what) + beyond)

    def _word(self, offset: int) -> int:
        number: int = struct.unpack_from("=Q", self._memory, offset)[0]
        return number

    def message(self, seq: int) -> tuple[int, bytes, int]:
        """Return the form of a message, its payload, and the offset of the payload."""
        entry = at(LOG, "index") + 16 * (seq % self.word("entries"))
        place, head = self._word(entry), self._word(entry + 8)
        return head >> 40, self._memory[place : place + (head & (1 << 40) - 1)], place

    def close(self) -> None:
        self._memory.close()


def listing(what: str) -> int:
    section = PAGE[PAGE.index(f"\n## {TOPIC}") :].split("\n## ", 2)[1]
    return int(re.findall(rf"^\| \+(\d+) \| {what} \|", section, re.MULTILINE)[0])


def test_a_topic_agrees_with_the_page(runtime: Path, member: MemberProcess) -> None:
    member.do(f"s = sync.subscribe({OURS!r}, slow_policy=shmrpc.KeepLast(5)); b = sync.subscribe({OURS!r})")
    member.do(f"import numpy as np; t = sync.topic({OURS!r}, high_watermark=50, max_memory='1MiB')")
    member.do("t.publish({'id': 1}); t.publish_many(list(range(90, 100))); t.publish(np.arange(9000))")
    memory = Mapped(runtime)
    owner = memory[AT_MEMBERS + at(MEMBERS, "entry")] >> 32 << 32 | 1
    publishes = AT_TOPIC + at(TOPIC, "listings")
    assert memory[publishes + listing("owner")] == owner
    generation = memory[publishes + listing("generation")]
    assert memory[AT_TOPIC + at(TOPIC, "version")] == generation == 1

    log = Log(member.pid, memory[publishes + listing("descriptor")] - 1)
    seals = fcntl.F_SEAL_SEAL | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | 0x10  # FUTURE_WRITE
    assert log.seals & seals == seals
    assert log.word("magic").to_bytes(8, sys.byteorder) == b"shmtopic"
    assert log.word("token") == memory[publishes + listing("token")] != 0
    assert log.word("size") == log.file_size
    assert (log.word("tail"), log.word("floor")) == (12, 0)
    messages = [log.message(seq) for seq in range(12)]
    values = [msgspec.msgpack.decode(payload) for _, payload, _ in messages[:11]]
    assert values == [{"id": 1}, *range(90, 100)]
    assert [form for form, _, _ in messages] == [0] * 11 + [2]
    assert parts(messages[11][1])[1:] == [np.arange(9000).tobytes()]
    assert log.word("bytes") == sum(len(payload) for _, payload, _ in messages)
    assert all(log.word("data") <= place < log.word("blocks") for _, _, place in messages[:11])
    assert log.word("blocks") <= messages[11][2] < log.word("size")

    member.do("kept = s.get_many(5)[-1].value; b.get_many(3)")
    claims = [memory[AT_TOPIC + at(TOPIC, "seat words") + 8 * seat] for seat in range(3)]
    assert [(claim & 0xFF, claim >> 8 & 0xFF) for claim in claims] == [(2, 2), (2, 1), (0, 0)]
    assert [memory[AT_TOPIC + at(TOPIC, "owners") + 8 * seat] for seat in range(3)] == [owner, owner, 0]
    assert [memory[AT_TOPIC + at(TOPIC, "lags") + 8 * seat] for seat in range(2)] == [5, 0]
    seats = [AT_TOPIC + at(TOPIC, "seats") + 4096 * seat for seat in range(2)]
    cells = [[memory[seat + at(SEAT, "cells") + 8 * word] for word in range(4)] for seat in seats]
    assert cells == [[generation, 12, 7, len(messages[11][1])], [generation, 3, 0, 0]]
    assert [memory[seat + at(SEAT, "pins")] for seat in seats] == [1 << 56 | 11, 0]
    member.do("del kept")
    assert memory[seats[0] + at(SEAT, "pins")] == 0

    member.do(f"d = sync.subscribe({OURS!r}, slow_policy=shmrpc.Disconnect(2)); t.publish_many_nowait(range(5))")
    member.begin("t.publish_many(range(90))")
    waits, target = (publishes + listing(what) for what in ("waits", "target"))
    assert eventually(lambda: memory[waits] == 2)
    assert 3 + 50 - 25 <= memory[target] <= 3 + 50
    assert eventually(lambda: memory[SECOND_SET + at(SET, "bits")] == 1)
    third = memory[AT_TOPIC + at(TOPIC, "seat words") + 16]
    assert (third & 0xFFFF, log.word("cuts", 16)) == (3 << 8 | 2, third >> 32 << 32 | 1)
    log.close()
    memory.close()


def _locked(lock_file: Path, byte: int) -> int | None:
    """Return the process that has locked a byte."""
    source = """
import fcntl, struct, sys
asked = struct.pack("hhqqi4x", fcntl.F_WRLCK, 0, int(sys.argv[2]), 1, 0)
kind, _, _, _, pid = struct.unpack("hhqqi4x", fcntl.fcntl(open(sys.argv[1], "r+b"), fcntl.F_GETLK, asked))
print(0 if kind == fcntl.F_UNLCK else pid)
"""
    # In a process of its own: this one may be a member by another test.
    done = subprocess.run(
        [sys.executable, "-c", source, str(lock_file), str(byte)], capture_output=True, text=True, check=True
    )
    return int(done.stdout) or None


#: A member that is written by the page: attaches to the lock and acquires its permit.
_FOREIGN = """
import fcntl, mmap, os, struct, sys, time
path, members, permits = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
file = open(path, "r+b", buffering=0)
fcntl.lockf(file, fcntl.LOCK_EX, 1, 0)
with open("/dev/shm/" + file.read().decode().rstrip("\\n"), "r+b") as shm:
    fcntl.flock(shm, fcntl.LOCK_SH)
    memory = mmap.mmap(shm.fileno(), 0)
    slot = next(s for s in range(256) if not memory[members + 32 * s] & 1)
    fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, 1 + slot)
    generation = struct.unpack_from("=Q", memory, members + 32 * slot)[0] >> 32
    number = (generation + 1) << 32 | slot + 1
    struct.pack_into("=QQ", memory, members + 32 * slot, (generation + 1) << 32 | 1, time.time_ns())
    fcntl.lockf(file, fcntl.LOCK_UN, 1, 0)
    assert struct.unpack_from("=Q", memory, permits)[0] == 0
    struct.pack_into("=Q", memory, permits, number)
    print("holds", flush=True)
    sys.stdin.readline()
"""


def test_the_permit_of_a_killed_foreign_member_is_recovered(runtime: Path) -> None:
    lock = shmrpc.sync.Lock(OURS)
    command = [sys.executable, "-c", _FOREIGN, str(runtime / f"{OURS}@shared.lock"), str(AT_MEMBERS), str(AT_PERMITS)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as foreign:
        assert foreign.stdout is not None
        assert foreign.stdout.readline() == "holds\n"
        assert {each.pid: each.holds for each in shmrpc.members(OURS)} == {os.getpid(): 0, foreign.pid: 1}
        with pytest.raises(shmrpc.WaitTimeout, match=rf"process {foreign.pid}.* has it"):
            lock.acquire(0.01)
        foreign.kill()
    lock.acquire(60)
    assert [each.pid for each in shmrpc.members(OURS)] == [os.getpid()]
    lock.release()
    lock.close()


def test_the_ids_of_containers_agree_with_the_page(runtime: Path, member: MemberProcess) -> None:
    store = "13. A store"
    member.do(f"s = sync.store({OURS!r}, max_memory='1MiB'); s['a'] = []; t = s.transaction()")
    memory = Mapped(runtime)
    dict_at = 5 << 8 | 17  # A cell that leads to a dict.
    start = next(start for start in range(65536, 1 << 20, 65536) if memory[start + at(store, "root")] >> 40 == dict_at)
    numbers = [start + at(store, which) for which in ("last id", "committed id")]

    def words() -> tuple[int, ...]:
        return tuple(memory[number] for number in numbers)

    def place() -> list[int]:
        found = member.do("result = list(s['b']._place)")
        assert isinstance(found, list)
        return found

    last, committed = words()
    assert last == committed >= 4  # The three that it begins with, and one more.
    member.do("t.__enter__(); s['b'] = [[]]")
    where, identity = place()
    assert words() == (last + 2, committed)
    assert memory[where] == identity == 6 << 48 | last + 1
    member.do("t.__exit__(ValueError, ValueError(), None)")
    assert words() == (last + 2, committed) and memory[where] == 0
    member.do("s['b'] = {}")
    where, identity = place()
    assert words() == (last + 3, last + 3) and memory[where] == identity == 6 << 48 | last + 3
