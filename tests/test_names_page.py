"""docs/names.md against the core: the offsets that it gives, and a member that knows nothing but that page."""

from __future__ import annotations

import mmap
import os
import re
import struct
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import shmrpc
import shmrpc.sync
from tests.helpers.member_process import MemberProcess
from tests.helpers.server_process import eventually

PAGE = (Path(__file__).parent.parent / "docs" / "names.md").read_text()
OURS = f"page{os.getpid()}"


def rows(heading: str) -> dict[str, tuple[int, str, bool]]:
    """The offset of each row of a section's first table, its meaning, and whether it is marked."""
    section = PAGE[PAGE.index(f"\n## {heading}") :].split("\n## ", 2)[1]
    found = re.findall(r"^\| (\d+)( \*)? \| ([^|]+?) \| ([^|]*?) ?\|$", section, re.MULTILINE)
    return {f"{what} {at}": (int(at), meaning, bool(mark)) for at, mark, what, meaning in found}


def at(heading: str, what: str) -> int:
    return next(offset for name, (offset, _, _) in rows(heading).items() if name.startswith(what))


MEMORY, MEMBERS, SET = "2. The memory", "3. Members", "5. A wait set"
AT_MEMBERS, AT_PERMITS = at(MEMORY, "members"), at(MEMORY, "permits")
FIRST_SET, SECOND_SET = (offset for name, (offset, _, _) in rows(MEMORY).items() if name.startswith("sleepers"))


class Mapped:
    """The memory that the lock file of a name tells."""

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

    def close(self) -> None:
        self._memory.close()


@pytest.fixture
def member(runtime: Path) -> Iterator[MemberProcess]:
    """Another process, which holds the lock file so that this one may open and close it."""
    with MemberProcess() as process:
        yield process


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
    ],
)
def test_the_header_is_as_the_page_says(runtime: Path, member: MemberProcess, made: str, kind: int, size: int) -> None:
    member.do(f"it = {made.format(OURS)}")
    memory = Mapped(runtime)
    assert re.fullmatch(rf"shmrpc\.{OURS}@[a-z]+\.[0-9a-f]{{32}}", memory.name)
    assert memory[at(MEMORY, "magic")].to_bytes(8, sys.byteorder) == b"shmrpc\0\1"
    assert (memory.half(at(MEMORY, "version")), memory.half(at(MEMORY, "kind"))) == (2, kind)
    assert memory[at(MEMORY, "size")] == memory.size == size
    assert memory.half(at(MEMORY, "ready")) == 1
    # The core computes it of its own offsets: it is this one exactly if they are those of the page.
    marked = [offset for offset, _, mark in rows(MEMORY).values() if mark]
    assert len(marked) == 10
    assert memory[at(MEMORY, "signature")] == fnv([*marked, 65536])
    assert memory[at(MEMORY, "amount")] == {3: 3, 4: 1, 5: 0, 2: 1000}[kind]
    memory.close()


def test_what_members_do_stands_where_the_page_says(runtime: Path, member: MemberProcess) -> None:
    member.do(f"it = sync.Semaphore({OURS!r}, 2); it.acquire(); it.signal(5)")
    memory = Mapped(runtime)
    entry = memory[AT_MEMBERS + at(MEMBERS, "entry")]
    number = entry >> 32 << 32 | 1
    assert entry & 1 == 1
    assert memory[AT_MEMBERS + at(MEMBERS, "since")] > 1_700_000_000 * 10**9
    assert (memory[AT_PERMITS], memory[AT_PERMITS + 8]) == (number, 0)
    assert memory[at(MEMORY, "signals")] == 5
    assert _locked(memory.lock_file, 1) == member.pid
    assert _locked(memory.lock_file, 0) is None
    member.do("it.acquire()")
    member.begin("it.acquire()")
    place = FIRST_SET + at(SET, "places")
    assert eventually(lambda: memory[place] & 0xFF == 2)
    assert memory[place] & 0xFFFF_FFFF == 2
    assert memory[FIRST_SET + at(SET, "bits")] == 1
    assert memory[FIRST_SET + at(SET, "tickets")] == 1
    assert memory[SECOND_SET + at(SET, "tickets")] == 0
    memory.close()


def test_an_event_counts_as_the_page_says(runtime: Path, member: MemberProcess) -> None:
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


def _locked(lock_file: Path, byte: int) -> int | None:
    """The process that has locked a byte."""
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


#: A member made of the page: joins the lock, waits for its permit, counts, gives it back, and leaves.
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


def test_a_member_made_of_the_page_is_one_and_its_permit_comes_back(runtime: Path) -> None:
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
