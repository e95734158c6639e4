"""A hostile member writes what it likes where names are: each operation ends in time, and that name alone is lost."""

from __future__ import annotations

import asyncio
import contextlib
import mmap
import os
import random
import re
import struct
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import shmrpc
import shmrpc.sync
from shmrpc.host import cleanup
from tests.helpers import scale
from tests.helpers.host_names import host_to_oneself
from tests.helpers.member_process import MemberProcess
from tests.helpers.scale import scaled
from tests.helpers.server_process import InThread, eventually
from tests.helpers.time_bound import bounded
from tests.reliability import figures
from tests.reliability.hostile import name_lies
from tests.reliability.hostile.name_lies import (
    AT_SLOTS,
    JOURNAL,
    MEMBERS,
    PAGES,
    PERMITS,
    QUEUE,
    SETS,
    SLOTS,
    memory_of,
)
from tests.reliability.hostile.other_users import only_root
from tests.reliability.name_users import OPENERS

LONG = 60.0
SOON = 0.01
#: A name that no other run of these tests has.
OURS = f"it{os.getpid()}"

POISONED = r"can no longer be used: .*; close it in all processes, then open it again"


@pytest.fixture(autouse=True)
def in_time() -> Iterator[None]:
    with bounded():
        yield


@contextlib.contextmanager
def closing(*names: Any) -> Iterator[None]:
    try:
        yield
    finally:
        for name in names:
            name.close()


def write(at: int, value: int, name: str = OURS) -> None:
    """What a hostile member does."""
    path = memory_of(name)
    assert path is not None
    with path.open("r+b") as memory:
        memory.seek(at)
        memory.write(struct.pack("=Q", value))


# --- any word ---


@pytest.mark.slow
@pytest.mark.parametrize("kind", OPENERS)
def test_whatever_a_word_holds_each_use_ends_and_no_other_name_is_lost(kind: str) -> None:
    values = list(name_lies.values(1, 1, random.Random(0)))
    # What a store has of what all names have is lied about in the long form alone.
    words = name_lies.words(kind) if scale.LONG or kind != "store" else list(name_lies.words_of_store())
    if not scale.LONG and kind in ("store", "queue"):
        words = words[::3]  # They have most.
    lies = [
        (kind, at, values[(number + which) % len(values)])
        for number, at in enumerate(words)
        for which in range(scaled(1, len(values)))
    ]
    with MemberProcess() as liar, bounded(scaled(120, 1200)):
        liar.do("from tests.reliability.hostile import name_lies")
        ends, texts, wrong = liar.do(f"result = name_lies.tell({lies!r}, 3, 1)")
    assert wrong == []
    assert any("a process has overwritten shared memory" in text for text in texts)
    figures.note(f"lies about a {kind}", lies=len(lies), **ends)


@pytest.mark.slow
def test_one_that_scribbles_without_end_harms_nobody() -> None:
    seconds, seed = scaled(3, 300), random.randrange(1 << 32)
    with MemberProcess() as liar, bounded(scaled(120, 1200)):
        liar.do("from tests.reliability.hostile import name_lies")
        ends, texts = liar.do(f"result = name_lies.scribble({seconds}, 3, {seed})")
    assert ends["done"] > 0
    figures.note("names that are scribbled over", seconds=seconds, seed=seed, texts=len(texts), **ends)


# --- what is found, and who is told ---


def test_all_members_are_told_what_one_has_found(other: MemberProcess) -> None:
    gate, witness = shmrpc.sync.Semaphore(OURS, 2), shmrpc.sync.Lock("witness")
    with closing(gate, witness):
        other.do(f"gate = sync.Semaphore({OURS!r}, 2)")
        gate.acquire()
        write(PERMITS, 0x123)
        said = rf"semaphore '{OURS}' can no longer be used: the holder of a permit .* at byte {PERMITS} is 0x123: "
        with pytest.raises(shmrpc.RemoteProtocolError, match=said):
            gate.release()
        with pytest.raises(RuntimeError, match=f"RemoteProtocolError: {said}"):
            other.do("gate.acquire(0)")
        with pytest.raises(shmrpc.RemoteProtocolError, match=f"at byte {PERMITS} is 0x123"):
            shmrpc.members(OURS)
        with MemberProcess() as late, pytest.raises(RuntimeError, match=f"RemoteProtocolError: {said}"):
            late.do(f"sync.Semaphore({OURS!r}, 2)")
        with witness:
            pass
        other.do("gate.close()")
    with closing(shmrpc.sync.Semaphore(OURS, 2)):
        pass


#: Where what is false stands, what, and what is done with it: by what is found.
FOUND: dict[str, tuple[str, int, int, Callable[[Any], object]]] = {
    "the holder of a permit, which is no member": ("lock", PERMITS, 0x77_0000_0001, lambda it: it.acquire(SOON)),
    "the holder of a permit of this process": ("lock", PERMITS, 0, lambda it: it.release()),
    "the count of signals": ("signal", 104, 1 << 63, lambda it: it.wait(LONG)),
    "the count of signals, dropped": ("signal", 104, 1 << 63, lambda it: it.drain()),
    "the entry of this member": ("event", MEMBERS, 0, lambda it: it.wait(LONG)),
    "a count of the queue": ("queue", QUEUE + 24, 5, lambda it: it.get(LONG)),
    "a count of the queue, claimed": ("queue", QUEUE + 24, 5, lambda it: it.claim(LONG)),
}


@pytest.mark.parametrize("found", FOUND)
def test_what_cannot_be_true_is_found_before_anybody_waits_for_it(found: str) -> None:
    kind, at, value, use = FOUND[found]
    held = OPENERS[kind][1](OURS)
    with closing(held):
        if found == "the holder of a permit of this process":
            held.acquire()
        write(at, value)
        what = re.sub(", (dropped|claimed)$", "", found)
        with pytest.raises(shmrpc.RemoteProtocolError, match=rf"{what}.* at byte {at} is "):
            use(held)


@pytest.mark.parametrize("words", [1_000, 5_000])
def test_an_item_with_buffers_that_cannot_be_is_said_to_be_one(words: int) -> None:
    """A large item is read where it lies; where one lay that was copied out nobody can say."""
    with closing(q := shmrpc.sync.queue(OURS)):
        q.put(np.arange(words))
        path = memory_of(OURS)
        assert path is not None
        with path.open("rb") as memory:
            at = (name_lies.found_at(memory.fileno(), (name_lies.FIRST_ITEM, 8)) + 63) & ~63
        write(at, 0xFFFF_FFFF_0000_0001)
        where = "a received item" if words == 1_000 else f"an item with buffers at byte {at}"
        with pytest.raises(shmrpc.RemoteProtocolError, match=f"the header of {where} is 0xffffffff00000001: "):
            q.get()
        with pytest.raises(shmrpc.RemoteProtocolError, match=where):
            q.put(1)


def test_an_item_whose_bytes_are_no_value_is_an_error_of_its_own() -> None:
    with closing(q := shmrpc.sync.queue(OURS)):
        q.put_many(["item", "next"])
        path = memory_of(OURS)
        assert path is not None
        with path.open("rb") as memory:
            at = name_lies.found_at(memory.fileno(), (name_lies.FIRST_ITEM, 8))
        write(at, 0xC1)
        said = rf"queue '{OURS}': (item 0|an item that was removed) cannot be read: "
        with q.claim() as claim:
            with pytest.raises(shmrpc.DecodeError, match=said):
                claim.value  # noqa: B018
            claim.nack()
        with pytest.raises(shmrpc.DecodeError, match=said):
            q.get()
        assert q.get() == "next"


async def test_a_sleeper_is_told_of_what_another_one_finds() -> None:
    gate, blocking = shmrpc.Semaphore(OURS, 1), shmrpc.sync.Semaphore(OURS, 1)
    with closing(gate, blocking):
        await gate.acquire()
        thread = InThread(lambda: blocking.acquire(LONG))
        task = asyncio.create_task(gate.acquire(LONG))
        while shmrpc.members(OURS)[0].holds != 1 or _waiters() != 2:
            await asyncio.sleep(0.001)
        write(PERMITS, 0x77_0000_0001)
        with MemberProcess() as looking, pytest.raises(RuntimeError, match="RemoteProtocolError"):
            looking.do(f"shmrpc.members({OURS!r})")
        for error in (await asyncio.gather(task, return_exceptions=True)), [await asyncio.to_thread(thread.join)]:
            assert isinstance(error[0], shmrpc.RemoteProtocolError)


def _waiters() -> int:
    from shmrpc.discovery.members import inspect_all_objects

    return next((each.waiters for each in inspect_all_objects(print) if each.name == OURS), 0)


def test_sleepers_who_sleep_again_at_once_hold_no_signaller(other: MemberProcess) -> None:
    """A liar who lets all places of a wait set hold sleepers, again and again."""
    with closing(shmrpc.sync.Signal(OURS)):
        path = memory_of(OURS)
        assert path is not None
        asleep = struct.pack("=Q", 2) * SLOTS  # All of the member of slot 0, which lives.
        at = SETS[0] + AT_SLOTS
        with path.open("r+b") as file, mmap.mmap(file.fileno(), 0) as memory:
            over = threading.Event()

            def lie() -> None:
                while not over.is_set():
                    memory[at : at + len(asleep)] = asleep
                    memory[SETS[0] : SETS[0] + SLOTS // 8] = b"\xff" * (SLOTS // 8)

            liar = InThread(lie)
            try:
                other.do(f"sync.Signal({OURS!r}).signal(1 << 40)")
            finally:
                over.set()
                liar.join()


# --- memory that is cut off ---


@pytest.mark.slow
@pytest.mark.parametrize("size", [0, 4096, 8192])
@pytest.mark.parametrize("kind", OPENERS)
def test_what_is_cut_off_is_neither_taken_nor_a_crash(kind: str, size: int) -> None:
    """Pages that are gone read as zeros, by which a permit would be free."""
    path = None
    with MemberProcess() as member:
        member.do(f"from tests.reliability.name_users import OPENERS; it = OPENERS[{kind!r}][1]({OURS!r})")
        path = memory_of(OURS)
        assert path is not None
        os.truncate(path, size)
        use = {
            "event": "it.set()",
            "signal": "it.signal()",
            "memory": "it.buf[-1] = 1; it.array(8)[:] = 1; it.lock.acquire(0)",
            "queue": "it.put(1)",
            "store": "it['n'] = 1",
        }
        with pytest.raises(RuntimeError, match="RemoteProtocolError: .*the memory was truncated by a member"):
            member.do(use.get(kind, "it.acquire(0)"))
        if kind == "memory":
            assert member.do("result = bytes(it.buf[:2])[1]") in (0, 1)
        with MemberProcess() as late, pytest.raises(RuntimeError, match=f"RemoteProtocolError: .*{size} bytes"):
            late.do(f"sync.attach({OURS!r}, 0)")
        member.do("it.close()")
    assert memory_of(OURS) is None


#: What is done with a queue that is cut off, of which an item is claimed and memory is being filled.
QUEUE_USES = [
    "bytes(c.value)", "filled[:] = 1", "r.__exit__(None, None, None)", "c.ack()", "d.nack()", "it.peek(5)",
    "it.get(0.01)", "it.get_many(5, 0.01)", "it.claim(0.01)", "it.put(1, 0.01)", "it.put(ARRAY, 0.01)", "it.stats()",
    "it.qsize()", "it.dead_letters.get_many_nowait()", "it.task_done()", "it.join(0.01)", "it.shutdown()",
]  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("size", [0, QUEUE, JOURNAL, PAGES, PAGES + 4096])
@pytest.mark.parametrize("first", range(0, len(QUEUE_USES), scaled(9, 1)))
def test_no_use_of_a_queue_that_is_cut_off_is_a_crash(size: int, first: int) -> None:
    """It begins with each of some uses, since what one has found all others are told."""
    with MemberProcess() as member:
        member.do(f"from tests.reliability.name_users import ARRAY, OPENERS; it = OPENERS['queue'][1]({OURS!r})")
        member.do("it.put_many([ARRAY, b'x' * 20_000, *range(9)]); c, d = it.claim(), it.claim(); c.value; it.get()")
        member.do("r = it.reserve(5_000, 'i8'); filled = r.__enter__()")
        path = memory_of(OURS)
        assert path is not None
        os.truncate(path, size)
        told = []
        for use in QUEUE_USES[first:] + QUEUE_USES[:first]:
            try:
                member.do(use)
            except RuntimeError as error:
                told.append(str(error))
        assert any("RemoteProtocolError" in text for text in told)
        for text in told:
            assert re.search("the memory was truncated by a member|WaitTimeout|Queue(Empty|Full)", text), text
        member.do("it.close()")
    assert memory_of(OURS) is None


def test_a_sleeper_whose_memory_is_cut_off_ends_by_its_deadline() -> None:
    gate = shmrpc.sync.Semaphore(OURS)
    with closing(gate):
        gate.acquire()
        thread = InThread(lambda: gate.acquire(0.3))
        assert eventually(lambda: _waiters() == 1)
        path = memory_of(OURS)
        assert path is not None
        os.truncate(path, 0)
        error = thread.join()
        assert isinstance(error, shmrpc.RemoteProtocolError)
        assert "the memory was truncated by a member" in str(error)


# --- the lock file, and the memory that it names ---


def lock_file(runtime: Path, name: str = OURS) -> Path:
    return runtime / f"{name}@shared.lock"


def replace_by_symlink(path: Path) -> None:
    path.rename(path.with_suffix(".real"))
    path.symlink_to(path.with_suffix(".real"))


def replace_by_directory(path: Path) -> None:
    path.unlink()
    path.mkdir()


def replace_by_fifo(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


def belongs_to_another(path: Path) -> None:
    os.chown(path, 64_101, -1)


def memory_belongs_to_another(path: Path) -> None:
    memory = memory_of(OURS)
    assert memory is not None
    os.chown(memory, 64_101, -1)


def memory_is(change: Callable[[Path], object]) -> Callable[[Path], None]:
    def misdeed(path: Path) -> None:
        memory = memory_of(OURS)
        assert memory is not None
        change(memory)

    return misdeed


def replaced_by(make: Callable[[Path], object]) -> Callable[[Path], object]:
    def replace(path: Path) -> None:
        path.unlink()
        make(path)

    return replace


#: What is done to a lock file or its memory, and what a newcomer reads of it.
LOCK_LIES: dict[str, tuple[Callable[[Path], object], str]] = {
    "truncated": (lambda path: os.truncate(path, 0), "RemoteProtocolError: .* has no name: its lock file .* says ''"),
    "cut": (lambda path: os.truncate(path, 30), "RemoteProtocolError: .* has no name: its lock file .* says 'shmrpc"),
    "garbage": (
        lambda path: path.write_bytes(b"\xff\0garbage"),
        r"RemoteProtocolError: .* has no name: its lock file .* says '.xff.x00garbage'",
    ),
    "long": (lambda path: path.write_bytes(b"shmrpc." * 10_000), "RemoteProtocolError: .* has no name"),
    "a path": (
        lambda path: path.write_text(f"shmrpc.{OURS}@lock.../../../etc/passwd\n"),
        "RemoteProtocolError: .* has no name",
    ),
    "a symlink": (replace_by_symlink, r"SharedMemoryError: .* is no regular file of this user"),
    "a directory": (replace_by_directory, r"SharedMemoryError: .* is no regular file of this user"),
    "a fifo": (replace_by_fifo, r"SharedMemoryError: .* is no regular file of this user"),
    "no memory": (memory_is(os.unlink), "SharedMemoryError: .* its memory .* cannot be opened: No such file"),
    "short memory": (memory_is(lambda path: os.truncate(path, 20)), "RemoteProtocolError: .* has 20 bytes, and each"),
    "large memory": (memory_is(lambda path: os.truncate(path, 1 << 20)), "RemoteProtocolError: .* has 1048576 bytes"),
    "empty memory": (
        memory_is(replaced_by(lambda path: path.write_bytes(bytes(PERMITS + 8)))),
        "RemoteProtocolError: .* its memory is of kind 0",
    ),
    "a fifo as memory": (memory_is(replaced_by(os.mkfifo)), "RemoteProtocolError: .* is no regular file of this user"),
    "a link as memory": (
        memory_is(replaced_by(lambda path: path.symlink_to("/etc/passwd"))),
        "SharedMemoryError: .* cannot be opened: Too many levels of symbolic links",
    ),
}
#: What only root can do.
ROOTS_LIES: dict[str, tuple[Callable[[Path], object], str]] = {
    "another user's": (belongs_to_another, r"LocalProtocolError: .* belongs to user 64101; a name is shared"),
    "another user's memory": (memory_belongs_to_another, "RemoteProtocolError: .* is no regular file of this user"),
}


def lied_about_lock_file(runtime: Path, what: str) -> None:
    """A newcomer is told what is wrong; members go on, and once they have left, or are dead, the name is as new."""
    misdeed, said = {**LOCK_LIES, **ROOTS_LIES}[what]
    with MemberProcess() as member, MemberProcess() as late:
        member.do(f"it = sync.Lock({OURS!r}); it.acquire()")
        misdeed(lock_file(runtime))
        for use in (f"sync.Lock({OURS!r})", f"sync.attach({OURS!r}, 0)"):
            with pytest.raises(RuntimeError, match=said):
                late.do(use)
        with pytest.raises(RuntimeError, match=said):
            late.do(f"shmrpc.members({OURS!r})")
        late.do("from shmrpc.discovery.members import inspect_all_objects; inspect_all_objects(lambda text: None)")
        if what != "short memory":
            member.do("it.release(); it.acquire(0); it.release()")
        member.do("it.close()")


@pytest.mark.slow
@pytest.mark.parametrize("what", LOCK_LIES)
def test_a_lock_file_or_a_memory_that_is_none_is_said_to_be(runtime: Path, what: str) -> None:
    lied_about_lock_file(runtime, what)
    path = lock_file(runtime)
    path.rmdir() if path.is_dir() and not path.is_symlink() else path.unlink(missing_ok=True)
    with closing(shmrpc.sync.Lock(OURS)) as _:
        pass
    _sweep()
    assert memory_of(OURS) is None


@only_root
@pytest.mark.parametrize("what", ROOTS_LIES)
def test_a_lock_file_or_a_memory_of_another_user_is_not_used(runtime: Path, what: str) -> None:
    lied_about_lock_file(runtime, what)


def _sweep() -> None:
    with host_to_oneself():
        cleanup.clean()


def test_a_lock_file_that_names_the_memory_of_another_name_takes_nothing_from_that(runtime: Path) -> None:
    with closing(shmrpc.sync.Lock("witness")) as _:
        memory = memory_of("witness")
        assert memory is not None
        lock_file(runtime).write_text(f"{memory.name}\n")
        shmrpc.sync.Semaphore(OURS, 3).close()
        assert memory.exists()
        with MemberProcess() as member:
            member.do("sync.attach('witness', 0)")


@pytest.mark.parametrize("rename", [False, True])
def test_a_lock_file_that_is_that_of_another_name_costs_that_no_lock(
    runtime: Path, rename: bool, other: MemberProcess
) -> None:
    """To close any descriptor of a file is to lose the record locks that a process has on it."""
    lock = shmrpc.sync.Lock("config")
    with closing(lock):
        lock.acquire()
        os.link(lock_file(runtime, "config"), lock_file(runtime))
        if rename:
            lock_file(runtime, "config").unlink()
        for use in (lambda: shmrpc.sync.Lock(OURS), lambda: shmrpc.members(OURS), lambda: shmrpc.sync.attach(OURS, 0)):
            with pytest.raises(shmrpc.SharedMemoryError, match=r"its lock file .* is that of another name"):
                use()
        if not rename:
            with pytest.raises(RuntimeError, match=f"WaitTimeout: .* process {os.getpid()} has it"):
                other.do("sync.Lock('config').acquire(0.01)")
        lock.release()
    lock_file(runtime).unlink()


def test_members_of_a_lock_file_that_was_replaced_leave_the_new_one_alone(runtime: Path, other: MemberProcess) -> None:
    old = shmrpc.sync.Lock(OURS)
    lock_file(runtime).unlink()
    other.do(f"import asyncio; new = sync.Semaphore({OURS!r}, 2); new.acquire()")
    old.close()
    assert lock_file(runtime).exists()
    with closing(shmrpc.sync.Semaphore(OURS, 2)):
        assert {each.pid: each.holds for each in shmrpc.members(OURS)} == {os.getpid(): 0, other.pid: 1}
