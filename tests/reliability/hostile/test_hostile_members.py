"""A hostile member writes into shared memory: each operation ends in time, and only that object is poisoned."""

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
from tests.reliability.hostile import corrupted_objects
from tests.reliability.hostile.corrupted_objects import (
    JOURNAL,
    MEMBERS,
    PAGES,
    PERMITS,
    QUEUE,
    SETS,
    SLOTS,
    SLOTS_OFFSET,
    memory_of,
)
from tests.reliability.hostile.other_users import only_root
from tests.reliability.object_users import OPENERS

LONG = 60.0
SOON = 0.01
#: A name that only this test run uses.
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
    """Write a word into an object's memory, as a hostile member does."""
    path = memory_of(name)
    assert path is not None
    with path.open("r+b") as memory:
        memory.seek(at)
        memory.write(struct.pack("=Q", value))


# --- any word ---


@pytest.mark.slow
@pytest.mark.parametrize("kind", OPENERS)
def test_each_use_ends_for_any_value_of_a_word_and_other_objects_go_on(kind: str) -> None:
    values = list(corrupted_objects.values(1, 1, random.Random(0)))
    # The short form corrupts only the fields of a store that other kinds lack.
    words = (
        corrupted_objects.field_offsets(kind)
        if scale.LONG or kind != "store"
        else list(corrupted_objects.store_fields())
    )
    if not scale.LONG and kind in ("store", "queue"):
        words = words[::3]  # These kinds have the most fields.
    corruptions = [
        (kind, at, values[(number + which) % len(values)])
        for number, at in enumerate(words)
        for which in range(scaled(1, len(values)))
    ]
    with MemberProcess() as hostile, bounded(scaled(120, 1200)):
        hostile.do("from tests.reliability.hostile import corrupted_objects")
        ends, texts, wrong = hostile.do(f"result = corrupted_objects.corrupt_all({corruptions!r}, 3, 1)")
    assert wrong == []
    assert any("a process has overwritten shared memory" in text for text in texts)
    figures.note(f"corruptions of a {kind}", corruptions=len(corruptions), **ends)


@pytest.mark.slow
def test_random_writes_without_end_harm_no_user() -> None:
    seconds, seed = scaled(3, 300), random.randrange(1 << 32)
    with MemberProcess() as hostile, bounded(scaled(120, 1200)):
        hostile.do("from tests.reliability.hostile import corrupted_objects")
        ends, texts = hostile.do(f"result = corrupted_objects.overwrite_at_random({seconds}, 3, {seed})")
    assert ends["done"] > 0
    figures.note("objects overwritten at random", seconds=seconds, seed=seed, texts=len(texts), **ends)


# --- corruption that one member finds, and the others' errors ---


def test_corruption_that_one_member_finds_is_reported_to_all(other: MemberProcess) -> None:
    gate, witness = shmrpc.sync.Semaphore(OURS, 2), shmrpc.sync.Lock("witness")
    with closing(gate, witness):
        other.do(f"gate = sync.Semaphore({OURS!r}, 2)")
        gate.acquire()
        write(PERMITS, 0x123)
        message = rf"semaphore '{OURS}' can no longer be used: the holder of a permit .* at byte {PERMITS} is 0x123: "
        with pytest.raises(shmrpc.RemoteProtocolError, match=message):
            gate.release()
        with pytest.raises(RuntimeError, match=f"RemoteProtocolError: {message}"):
            other.do("gate.acquire(0)")
        with pytest.raises(shmrpc.RemoteProtocolError, match=f"at byte {PERMITS} is 0x123"):
            shmrpc.members(OURS)
        with MemberProcess() as late, pytest.raises(RuntimeError, match=f"RemoteProtocolError: {message}"):
            late.do(f"sync.Semaphore({OURS!r}, 2)")
        with witness:
            pass
        other.do("gate.close()")
    with closing(shmrpc.sync.Semaphore(OURS, 2)):
        pass


#: Corrupt values, by what is found: the object's kind, the offset, the value, and the use that finds it.
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
def test_corruption_is_found_before_a_member_waits(found: str) -> None:
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
def test_a_corrupt_item_with_buffers_is_reported_with_its_place(words: int) -> None:
    """Large items are read in place and have an offset; items that were copied out have none."""
    with closing(q := shmrpc.sync.queue(OURS)):
        q.put(np.arange(words))
        path = memory_of(OURS)
        assert path is not None
        with path.open("rb") as memory:
            at = (corrupted_objects.resolve_offset(memory.fileno(), (corrupted_objects.FIRST_ITEM, 8)) + 63) & ~63
        write(at, 0xFFFF_FFFF_0000_0001)
        where = "a received item" if words == 1_000 else f"an item with buffers at byte {at}"
        with pytest.raises(shmrpc.RemoteProtocolError, match=f"the header of {where} is 0xffffffff00000001: "):
            q.get()
        with pytest.raises(shmrpc.RemoteProtocolError, match=where):
            q.put(1)


def test_an_item_with_undecodable_bytes_is_an_error_of_that_item_alone() -> None:
    with closing(q := shmrpc.sync.queue(OURS)):
        q.put_many(["item", "next"])
        path = memory_of(OURS)
        assert path is not None
        with path.open("rb") as memory:
            at = corrupted_objects.resolve_offset(memory.fileno(), (corrupted_objects.FIRST_ITEM, 8))
        write(at, 0xC1)
        message = rf"queue '{OURS}': (item 0|an item that was removed) cannot be read: "
        with q.claim() as claim:
            with pytest.raises(shmrpc.DecodeError, match=message):
                claim.value  # noqa: B018
            claim.nack()
        with pytest.raises(shmrpc.DecodeError, match=message):
            q.get()
        assert q.get() == "next"


async def test_corruption_that_another_process_finds_wakes_a_sleeper() -> None:
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


def test_sleepers_that_sleep_again_at_once_do_not_block_a_signaller(other: MemberProcess) -> None:
    """A hostile member fills all slots of a wait set with sleepers, again and again."""
    with closing(shmrpc.sync.Signal(OURS)):
        path = memory_of(OURS)
        assert path is not None
        asleep = struct.pack("=Q", 2) * SLOTS  # All of the member in slot 0, which is alive.
        at = SETS[0] + SLOTS_OFFSET
        with path.open("r+b") as file, mmap.mmap(file.fileno(), 0) as memory:
            over = threading.Event()

            def corrupt() -> None:
                while not over.is_set():
                    memory[at : at + len(asleep)] = asleep
                    memory[SETS[0] : SETS[0] + SLOTS // 8] = b"\xff" * (SLOTS // 8)

            hostile = InThread(corrupt)
            try:
                other.do(f"sync.Signal({OURS!r}).signal(1 << 40)")
            finally:
                over.set()
                hostile.join()


# --- truncated memory ---


@pytest.mark.slow
@pytest.mark.parametrize("size", [0, 4096, 8192])
@pytest.mark.parametrize("kind", OPENERS)
def test_an_object_with_truncated_memory_raises_and_does_not_crash(kind: str, size: int) -> None:
    """Missing pages read as zeros, by which a permit would be free."""
    path = None
    with MemberProcess() as member:
        member.do(f"from tests.reliability.object_users import OPENERS; it = OPENERS[{kind!r}][1]({OURS!r})")
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


#: Uses of a truncated queue, with claimed items and an unfinished reservation.
QUEUE_USES = [
    "bytes(c.value)", "filled[:] = 1", "r.__exit__(None, None, None)", "c.ack()", "d.nack()", "it.peek(5)",
    "it.get(0.01)", "it.get_many(5, 0.01)", "it.claim(0.01)", "it.put(1, 0.01)", "it.put(ARRAY, 0.01)", "it.stats()",
    "it.qsize()", "it.dead_letters.get_many_nowait()", "it.task_done()", "it.join(0.01)", "it.shutdown()",
]  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("size", [0, QUEUE, JOURNAL, PAGES, PAGES + 4096])
@pytest.mark.parametrize("first", range(0, len(QUEUE_USES), scaled(9, 1)))
def test_each_use_of_a_truncated_queue_raises_and_does_not_crash(size: int, first: int) -> None:
    """Each run begins with another use, because the first error poisons the queue for all later ones."""
    with MemberProcess() as member:
        member.do(f"from tests.reliability.object_users import ARRAY, OPENERS; it = OPENERS['queue'][1]({OURS!r})")
        member.do("it.put_many([ARRAY, b'x' * 20_000, *range(9)]); c, d = it.claim(), it.claim(); c.value; it.get()")
        member.do("r = it.reserve(5_000, 'i8'); filled = r.__enter__()")
        path = memory_of(OURS)
        assert path is not None
        os.truncate(path, size)
        errors = []
        for use in QUEUE_USES[first:] + QUEUE_USES[:first]:
            try:
                member.do(use)
            except RuntimeError as error:
                errors.append(str(error))
        assert any("RemoteProtocolError" in text for text in errors)
        for text in errors:
            assert re.search("the memory was truncated by a member|WaitTimeout|Queue(Empty|Full)", text), text
        member.do("it.close()")
    assert memory_of(OURS) is None


def test_a_sleeper_whose_memory_is_truncated_ends_by_its_deadline() -> None:
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


# --- the lock file, and the memory whose name it contains ---


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


#: Manipulations of a lock file or its memory, and a newcomer's error.
LOCK_FILE_MANIPULATIONS: dict[str, tuple[Callable[[Path], object], str]] = {
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
#: Manipulations that only root can make.
ROOT_MANIPULATIONS: dict[str, tuple[Callable[[Path], object], str]] = {
    "another user's": (belongs_to_another, r"LocalProtocolError: .* belongs to user 64101; a name is shared"),
    "another user's memory": (memory_belongs_to_another, "RemoteProtocolError: .* is no regular file of this user"),
}


def check_manipulated_lock_file(runtime: Path, what: str) -> None:
    """Check that a newcomer raises an error with the reason and that members go on."""
    misdeed, message = {**LOCK_FILE_MANIPULATIONS, **ROOT_MANIPULATIONS}[what]
    # Members hold no lock of a replaced memory: another test's clean-up would remove it.
    with host_to_oneself(), MemberProcess() as member, MemberProcess() as late:
        member.do(f"it = sync.Lock({OURS!r}); it.acquire()")
        misdeed(lock_file(runtime))
        for use in (f"sync.Lock({OURS!r})", f"sync.attach({OURS!r}, 0)"):
            with pytest.raises(RuntimeError, match=message):
                late.do(use)
        with pytest.raises(RuntimeError, match=message):
            late.do(f"shmrpc.members({OURS!r})")
        late.do("from shmrpc.discovery.members import inspect_all_objects; inspect_all_objects(lambda text: None)")
        if what != "short memory":
            member.do("it.release(); it.acquire(0); it.release()")
        member.do("it.close()")


@pytest.mark.slow
@pytest.mark.parametrize("what", LOCK_FILE_MANIPULATIONS)
def test_a_broken_lock_file_or_memory_is_reported_to_newcomers(runtime: Path, what: str) -> None:
    check_manipulated_lock_file(runtime, what)
    path = lock_file(runtime)
    path.rmdir() if path.is_dir() and not path.is_symlink() else path.unlink(missing_ok=True)
    with closing(shmrpc.sync.Lock(OURS)) as _:
        pass
    _sweep()
    assert memory_of(OURS) is None


@only_root
@pytest.mark.parametrize("what", ROOT_MANIPULATIONS)
def test_a_lock_file_or_a_memory_of_another_user_is_not_used(runtime: Path, what: str) -> None:
    check_manipulated_lock_file(runtime, what)


def _sweep() -> None:
    with host_to_oneself():
        cleanup.clean()


def test_a_lock_file_that_names_the_memory_of_another_object_does_not_remove_it(runtime: Path) -> None:
    with closing(shmrpc.sync.Lock("witness")) as _:
        memory = memory_of("witness")
        assert memory is not None
        lock_file(runtime).write_text(f"{memory.name}\n")
        shmrpc.sync.Semaphore(OURS, 3).close()
        assert memory.exists()
        with MemberProcess() as member:
            member.do("sync.attach('witness', 0)")


@pytest.mark.parametrize("rename", [False, True])
def test_a_lock_file_linked_to_that_of_another_object_releases_no_lock(
    runtime: Path, rename: bool, other: MemberProcess
) -> None:
    """Closing any descriptor of a file releases all record locks of the process on it."""
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


def test_members_of_a_replaced_lock_file_leave_the_new_one_alone(runtime: Path, other: MemberProcess) -> None:
    old = shmrpc.sync.Lock(OURS)
    lock_file(runtime).unlink()
    other.do(f"import asyncio; new = sync.Semaphore({OURS!r}, 2); new.acquire()")
    old.close()
    assert lock_file(runtime).exists()
    with closing(shmrpc.sync.Semaphore(OURS, 2)):
        assert {each.pid: each.holds for each in shmrpc.members(OURS)} == {os.getpid(): 0, other.pid: 1}
