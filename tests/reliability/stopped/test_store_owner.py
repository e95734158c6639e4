"""A store with an owner: other members read it and cannot change it by any means; and deaths of the owner."""

from __future__ import annotations

import asyncio
import contextlib
import copy
import ctypes
import gc
import mmap
import os
import signal
import struct
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

import numpy as np
import pytest

import shmrpc
import shmrpc.sync
from tests.helpers import crash_points
from tests.helpers.host_names import assert_none_left
from tests.helpers.member_process import MemberProcess
from tests.helpers.scale import scaled
from tests.helpers.server_process import eventually
from tests.helpers.stopped_processes import stopped
from tests.helpers.time_bound import bounded
from tests.reliability import figures, store_roles
from tests.reliability.store_roles import LARGE, ROLES, Plain

#: A name that only this test run uses.
OURS = f"storeowner{os.getpid()}"
OWN = f"s = sync.store({OURS!r}, single_writer=True)"
PLAYER = "from tests.reliability.store_roles import Player; s['ada'] = Player('Ada')"
FILL = f"import numpy as np; {OWN}; s['list'] = [1, 2]; s['frame'] = np.arange(1000); s['raw'] = bytearray(b'abc')"
#: Points at which an owner dies, and True if its change is committed by then.
POINTS: Final = {
    "LockAcquired": False,
    "OnlyWordStored": True,
    "NumberTaken": False,
    "LogWritten": False,
    "LogCounted": True,
    "LogWordStored": True,
    "LogEnded": True,
    "LogSettled": True,
    "HeapGrown": False,
    "OwnerChangeCommitted": True,
}
MAX_DEATHS = scaled(4, 60)
PUNCH_HOLE, KEEP_SIZE = 2, 1
#: The offset of the table of readers, in bytes from the wait set before it.
READERS: Final = 4224


@pytest.fixture(autouse=True)
def nothing_is_left(runtime: Path) -> Iterator[None]:
    with bounded(scaled(180, 3600)):
        yield
    assert_none_left(OURS, runtime)


def reader() -> shmrpc.sync.Store:
    """Attach to a store that another process owns."""
    store = shmrpc.sync.attach(OURS, timeout=30)
    assert isinstance(store, shmrpc.sync.Store)
    return store


WRITES: Final[dict[str, Callable[[shmrpc.sync.Store], object]]] = {
    "an item": lambda s: s.__setitem__("n", 1),
    "a known item": lambda s: s.__setitem__("list", 1),
    "an item of a list": lambda s: s["list"].__setitem__(0, 9),
    "append": lambda s: s["list"].append(1),
    "sort": lambda s: s["list"].sort(),
    "delete": lambda s: s.__delitem__("list"),
    "pop": lambda s: s.pop("list"),
    "clear": lambda s: s.clear(),
    "add": lambda s: shmrpc.atomic.add(s["list"], 0, 1),
    "compare_and_set": lambda s: shmrpc.atomic.compare_and_set(s["list"], 0, 1, 2),
    "update": lambda s: shmrpc.atomic.update(s["list"], 0, lambda value: value),
    "a transaction": lambda s: s.transaction().__enter__(),
    "put": lambda s: s.inbox.put(1),
    "take": lambda s: s.inbox.take(0.01),
    "fail_over": lambda s: s.fail_over(),
}


@pytest.mark.slow
@pytest.mark.parametrize("what", WRITES)
def test_a_write_of_a_reader_raises_an_error_that_names_the_owner(runtime: Path, what: str) -> None:
    with MemberProcess() as owner:
        owner.do(FILL)
        with reader() as store:
            before = store.copy()
            message = f"by its owner alone, process {owner.pid}: .*single_writer=True"
            with pytest.raises(shmrpc.LocalProtocolError, match=message):
                WRITES[what](store)
            assert str(store.copy()) == str(before)
            assert not store.is_writable
            assert store.stats().owner == owner.pid
        owner.do("s.close()")


def _mapped() -> tuple[int, int]:
    """Return the addresses of this process's mapping of the contents: the beginning and the end."""
    for line in Path("/proc/self/maps").read_text().splitlines():
        if "/memfd:shmrpc-store" in line:
            addresses, access = line.split()[:2]
            assert access == "r--s"
            start, end = addresses.split("-")
            return int(start, 16), int(end, 16)
    raise AssertionError("the contents are not mapped")


def _descriptors() -> list[int]:
    """Return this process's descriptors of the contents of a store; its watcher briefly opens another one."""
    found = []
    for entry in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):  # The descriptor of the folder itself is closed.
            if os.readlink(entry).startswith("/memfd:shmrpc-store"):
                found.append(int(entry.name))
    return found


def _descriptor() -> int:
    gc.collect()  # Tracebacks of earlier tests may refer to a store.
    assert eventually(lambda: len(_descriptors()) == 1)
    return _descriptors()[0]


def test_a_reader_cannot_write_the_memory_natively(runtime: Path) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    libc.mprotect.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
    with MemberProcess() as owner:
        owner.do(FILL)
        with reader() as store:
            (start, end), descriptor = _mapped(), _descriptor()
            assert libc.mprotect(start, end - start, mmap.PROT_READ | mmap.PROT_WRITE) == -1
            with pytest.raises(PermissionError):
                mmap.mmap(descriptor, 0)
            with pytest.raises(OSError, match="Bad file descriptor|Operation not permitted"):
                os.pwrite(descriptor, b"x", 0)
            with open("/proc/self/mem", "r+b", buffering=0) as memory:
                memory.seek(start)
                with pytest.raises(OSError, match="Input/output error"):
                    memory.write(b"x")
            for pid in ("self", owner.pid):
                number = descriptor
                if pid != "self":
                    names = Path(f"/proc/{pid}/fd").iterdir()
                    links = {int(name.name): os.readlink(name) for name in names}
                    number = next(fd for fd, link in links.items() if link.startswith("/memfd:shmrpc-store"))
                again = os.open(f"/proc/{pid}/fd/{number}", os.O_RDWR)
                size = os.fstat(again).st_size
                with pytest.raises(PermissionError):
                    mmap.mmap(again, size)
                with pytest.raises(PermissionError):
                    os.pwrite(again, b"x", size - 8)
                with pytest.raises(PermissionError):
                    os.ftruncate(again, size // 2)
                libc.fallocate.argtypes = [ctypes.c_int, ctypes.c_int, ctypes.c_long, ctypes.c_long]
                assert libc.fallocate(again, PUNCH_HOLE | KEEP_SIZE, 0, size) == -1
                os.close(again)
            assert store["list"].copy() == [1, 2]
            owner.do("s['list'].append(3)")
            assert store["list"].copy() == [1, 2, 3], "the memory is not that of the store"
        owner.do("s.close()")


def test_a_reader_sees_the_changes_of_the_owner(runtime: Path) -> None:
    with MemberProcess() as owner:
        owner.do(f"{FILL}; {PLAYER}; s['set'] = {{1, 'two'}}")
        with reader() as store:
            members, frame = store["list"], store["frame"]
            assert members == [1, 2]
            assert list(members) == [1, 2]
            assert store["ada"].health == 100
            assert store["set"] == {1, "two"}
            assert sorted(store) == ["ada", "frame", "list", "raw", "set"]
            assert not frame.flags.writeable
            with pytest.raises(ValueError, match="read-only"):
                frame[0] = 1
            raw = shmrpc.get_buffer(store, "raw")
            assert raw.readonly
            assert bytes(raw) == b"abc"
            owner.do("s['frame'][:] += 1; s['raw'][0] = 120; s['ada'].health += 1; s['list'][0] = 7")
            assert frame[0] == 1, "the array is no view of the memory"
            assert bytes(raw) == b"xbc"
            assert store["ada"].copy() == store_roles.Player("Ada", 101)
            assert members.copy() == [7, 2]
            owner.do("del s['list']; s['list'] = [9]")
            with pytest.raises(shmrpc.ObjectDeleted):
                members[0]
            del raw
        owner.do("s.close()")


def test_a_reader_is_woken_only_by_changes_of_the_watched_container(runtime: Path) -> None:
    async def main() -> None:
        store = await shmrpc.attach(OURS, timeout=30)
        assert isinstance(store, shmrpc.Store)
        async with store:
            waits = asyncio.create_task(store["list"].changed(30))
            await asyncio.sleep(0.05)
            await asyncio.to_thread(owner.do, "s['raw'][0] = 1; s['other'] = 5; s['deep'] = {'a': [1]}")
            await asyncio.sleep(0.05)
            assert not waits.done()
            await asyncio.to_thread(owner.do, "s['list'][0] += 1")
            await waits
            assert store["list"][0] == 2
            waits = asyncio.create_task(store["deep"].changed(30))
            await asyncio.sleep(0.05)
            await asyncio.to_thread(owner.do, "s['deep']['a'].append(2)")
            await waits
            waits = asyncio.create_task(store["deep"].changed(30))
            await asyncio.sleep(0.05)
            await asyncio.to_thread(owner.do, "del s['deep']")
            await waits

    with MemberProcess() as owner:
        owner.do(FILL)
        asyncio.run(main())
        owner.do("s.close()")


COUNTS = """
import time
while 'end' not in seen:
    with s.transaction():
        s['list'][0] += 1
        s['list'][1] -= 1
        s['raw'] = bytearray(b'abcd' * 1000)
    seen = {} if s['list'][0] < {until} else {'end'}
"""


def test_no_change_is_missed_beside_an_owner_at_full_speed(runtime: Path) -> None:
    with MemberProcess() as owner:
        owner.do(f"{OWN}; s['list'] = [0, 0]; s['raw'] = bytearray(b'abcd' * 1000); seen = {{}}")
        with reader() as store:
            owner.begin(COUNTS.replace("{until}", str(scaled(3_000, 100_000))))
            members, last, looks = store["list"], 0, 0
            for found in shmrpc.watch(members, 10.0):
                assert sum(found) == 0, "half of a transaction"
                assert found[0] >= last
                last, looks = found[0], looks + 1
                assert bytes(store["raw"]) == b"abcd" * 1000, "the contents of a view have changed"
                if last >= scaled(3_000, 100_000):
                    break
            assert looks > 1
            owner.end()
            gc.collect()
            owner.do("s['raw'] = bytearray(b'abcd')")
            assert owner.do("s['raw'] = bytearray(b'x'); st = s.stats(); result = st.memory - st.free") < LARGE
        owner.do("s.close()")


def test_a_removed_value_is_freed_when_the_last_view_of_a_reader_is_dropped(runtime: Path) -> None:
    with MemberProcess() as owner:
        owner.do(f"import numpy as np; {OWN}; s['frame'] = np.full({LARGE}, 1, 'u1')")
        with reader() as store:
            views = []
            for value in range(1, 9):
                views.append(store["frame"])
                owner.do(f"s['frame'] = np.full({LARGE}, {value + 1}, 'u1')")
            assert [int(view[0]) for view in views] == list(range(1, 9))
            assert [int(view[-1]) for view in views] == list(range(1, 9))
            held = owner.do("st = s.stats(); result = st.memory - st.free")
            assert held > 8 * LARGE
            del views
            gc.collect()
            owner.do(f"s['frame'] = np.full({LARGE}, 1, 'u1')")
            assert owner.do("st = s.stats(); result = st.memory - st.free") < 3 * LARGE
        owner.do("s.close()")


def test_room_that_readers_have_released_is_found_when_memory_is_short(runtime: Path) -> None:
    with MemberProcess() as owner:
        owner.do(f"s = sync.store({OURS!r}, '4MiB', single_writer=True); s['b'] = bytearray({2 * LARGE})")
        with reader() as store:
            view = store["b"]
            owner.do("del s['b']")
            with pytest.raises(RuntimeError, match="StoreFull"):
                owner.do(f"s['c'] = bytearray({3 * LARGE})")
            assert len(view) == 2 * LARGE
            del view
            gc.collect()
            owner.do(f"s['c'] = bytearray({2 * LARGE})")
        owner.do("s.close()")


def test_readers_go_on_when_the_owner_dies_and_a_reader_becomes_the_owner(runtime: Path) -> None:
    with MemberProcess() as owner, MemberProcess() as other:
        owner.do(FILL)
        other.do(f"r = sync.attach({OURS!r}); l = r['list']; frame = r['frame']")
        with reader() as store:
            members, frame = store["list"], store["frame"]
            owner.kill()
            assert store.copy()["list"] == [1, 2]
            assert store.stats().owner is None
            with pytest.raises(
                shmrpc.LocalProtocolError, match="has no owner and can only be read.*single_writer=True"
            ):
                store["n"] = 1
            with MemberProcess() as newcomer:
                newcomer.do(f"n = sync.attach({OURS!r}); assert n['list'].copy() == [1, 2]; n.close()")
            with shmrpc.sync.store(OURS, single_writer=True) as ours:
                assert ours.is_writable
                assert store.is_writable
                assert ours.stats().owner == os.getpid()
                members.append(3)
                assert other.do("result = [l.copy(), int(frame[999])]") == [[1, 2, 3], 999]
                del store["frame"]
                assert frame[999] == 999
                assert other.do("result = int(frame[999])") == 999
                with pytest.raises(RuntimeError, match=f"owner alone, process {os.getpid()}"):
                    other.do("r['n'] = 1")
            del frame
        assert other.do("result = l.copy()") == [1, 2, 3], "a change of the owner that left is lost"
        with MemberProcess() as newcomer:
            newcomer.do(f"{OWN}; s['list'].append(4); s.close()")
        assert other.do("result = l.copy()") == [1, 2, 3, 4], "a change of the new owner is lost"
        other.do("del frame; r.close()")


@pytest.mark.slow
@pytest.mark.parametrize("end", ["s.close()", None])
def test_commits_of_each_owner_are_kept_though_no_reader_reads_them(runtime: Path, end: str | None) -> None:
    with MemberProcess() as other:
        with MemberProcess() as owner:
            owner.do(FILL)
            other.do(f"r = sync.attach({OURS!r}); l = r['list']; frame = r['frame']")
        for number in range(3, 8):
            with MemberProcess() as newcomer:
                newcomer.do(f"{OWN}; s['list'].append({number}); {end}")
        assert other.do("result = [l.copy(), int(frame[999])]") == [[*range(1, 8)], 999]
        other.do("del frame; r.close()")


def test_a_reader_that_has_not_read_becomes_the_owner_with_the_last_commit(runtime: Path) -> None:
    with MemberProcess() as first, MemberProcess() as other:
        first.do(FILL)
        other.do(f"r = sync.attach({OURS!r})")
        first.kill()
        with MemberProcess() as second:
            second.do(f"{OWN}; s['list'].append(3)")
            second.kill()
        assert other.do(f"{OWN}; s['list'].append(4); result = r['list'].copy()") == [1, 2, 3, 4]
        other.do("s.close(); r.close()")


@pytest.mark.crashpoints
def test_a_stopped_reader_delays_no_new_owner_and_finds_the_others_contents(runtime: Path) -> None:
    crash_points.require_core()
    with MemberProcess() as owner, MemberProcess() as slow, MemberProcess() as other:
        owner.do(FILL)
        for each in (slow, other):
            each.do(f"r = sync.attach({OURS!r}); l = r['list']")
        with stopped(slow.pid):
            owner.kill()
            with MemberProcess() as newcomer:
                newcomer.do(f"{OWN}; s['list'].append(3)")
            # The next owner announces that it has contents, and takes them over.
            with MemberProcess(points=True) as short:
                short.begin(f"crash_points.die_at_point('ContentsFound', 1, -1); {OWN}")
                assert short.wait() == -signal.SIGKILL
            assert other.do("result = l.copy()") == [1, 2, 3], "the reader has the older contents of the stopped one"
        assert slow.do("result = l.copy()") == [1, 2, 3]
        for each in (slow, other):
            each.do("r.close()")


def test_waiters_for_a_change_are_woken_once_when_the_owner_leaves(runtime: Path) -> None:
    with MemberProcess() as owner:
        owner.do(FILL)
        with reader() as store:
            owner.begin("import time; time.sleep(0.1); s.close()")
            store["list"].wait_changed(30)
            owner.end()
            with pytest.raises(shmrpc.WaitTimeout):
                store["list"].wait_changed(0.1)


def test_if_all_members_are_killed_the_next_owner_begins_with_an_empty_store(runtime: Path) -> None:
    with MemberProcess() as owner, MemberProcess() as other:
        owner.do(FILL)
        other.do(f"r = sync.attach({OURS!r})")
        owner.kill()
        other.kill()
    with shmrpc.sync.store(OURS, single_writer=True) as store:
        assert store.copy() == {}
        store["n"] = 1


def test_opening_a_store_with_the_wrong_mode_is_an_error(runtime: Path) -> None:
    with pytest.raises(TypeError, match="single_writer: expected True or False, got 1"):
        shmrpc.sync.store(OURS, single_writer=1)  # type: ignore[arg-type]
    with shmrpc.sync.store(OURS, single_writer=True):
        with MemberProcess() as other, pytest.raises(RuntimeError, match="single_writer=True, not a store"):
            other.do(f"sync.store({OURS!r})")
        with pytest.raises(shmrpc.NameConflict, match="single_writer=True, not a store"):
            shmrpc.sync.store(OURS)


def test_a_forked_child_of_the_owner_raises_that_it_must_open_the_store(runtime: Path) -> None:
    with MemberProcess() as owner:
        owner.do(FILL)
        text = owner.do("""
import os
out, into = os.pipe()
if not (pid := os.fork()):
    try:
        s['list'].append(3)
        text = 'written'
    except BaseException as error:
        text = str(error)
    os.write(into, text.encode())
    os._exit(0)
os.waitpid(pid, 0)
result = os.read(out, 4096).decode()
""")
        assert "open it again here" in text
        assert owner.do("result = s['list'].copy()") == [1, 2]
        owner.do("s.close()")


def test_a_reader_that_overwrites_its_writable_memory_changes_no_value(runtime: Path) -> None:
    with MemberProcess() as owner:
        owner.do(FILL)
        with reader() as store:
            memory = next(Path("/dev/shm").glob(f"shmrpc.{OURS}@store.*"))
            start, _ = _mapped()
            head = next(
                int(line.split()[0].split("-")[0], 16)
                for line in Path("/proc/self/maps").read_text().splitlines()
                if str(memory) in line
            )
            with open(memory, "r+b") as file, mmap.mmap(file.fileno(), start - head) as words:
                struct.pack_into("Q", words, 96, 12345)  # The number of the contents.
                assert store["list"].copy() == [1, 2]
                for at in range(len(words) - (128 << 10) + READERS, len(words) - 8, 8):
                    struct.pack_into("Q", words, at, 0xFFFF_FFFF_FFFF_FFFF)
                owner.do("s['list'].append(3); s['raw'] = bytearray(b'other')")
                assert store["list"].copy() == [1, 2, 3]
                assert bytes(store["list"].copy()) == b"\1\2\3"
                owner.do("[s.__setitem__('frame', np.arange(100)) for _ in range(10)]")
        owner.do("s.close()")


def _expected(plain: Plain, role: str, n: int, done: int) -> list[Plain]:
    for _ in store_roles.play(plain, role, n, done):
        pass
    found = [plain]
    if done < len(ROLES[role]):
        more = copy.deepcopy(plain)
        ROLES[role][done](more, n)
        found.append(more)
    return found


#: A reader that only waits for changes: the owner notifies it of its commits.
WATCH = f"""
import threading
r, ends = sync.attach({OURS!r}), []

def wait():
    while not ends:
        try:
            r.wait_changed(0.2)
        except shmrpc.WaitTimeout:
            pass

thread = threading.Thread(target=wait)
thread.start()
"""


@pytest.mark.crashpoints
@pytest.mark.parametrize("point", [*POINTS, "OwnerBegun", "ContentsMade", "ContentsFound", "ReadersWoken"])
def test_an_owner_that_dies_at_a_point_leaves_its_commits(runtime: Path, tmp_path: Path, point: str) -> None:
    crash_points.require_core()
    deaths, serial, seconds = 0, 0, []
    with MemberProcess(points=True) as parent, MemberProcess() as first, MemberProcess() as idle:
        parent.do("from tests.reliability import store_roles; names = globals()")

        def own(code: str) -> object:
            return parent.do(f"result = forked({code!r}, names)")

        first.do(f"{OWN}; s['n'] = 1")
        idle.do(WATCH)
        with reader() as store:
            first.kill()
            for role in [each for each in ROLES if each not in ("waits", "takes messages")]:
                for times in range(1, MAX_DEATHS):
                    serial += 1
                    ledger = tmp_path / str(serial)
                    assert own(f"{OWN}; store_roles.begin(s); s.close()") == 0
                    plain = Plain()
                    store_roles.begin(plain)
                    ended = own(
                        f"crash_points.die_at_point({point!r}, {times}, -1); "
                        f"store_roles.follow({OURS!r}, {role!r}, {serial}, {str(ledger)!r}, True)"
                    )
                    assert ended in (0, -signal.SIGKILL)
                    wanted = _expected(plain, role, serial, store_roles.acknowledged(ledger))
                    began = time.monotonic()
                    found = store.copy()
                    seconds.append(time.monotonic() - began)
                    seen = [number for number, each in enumerate(wanted) if dict(each) == found]
                    assert seen, "the reader has found a partial or unacknowledged state"
                    # Committed changes count, which a reader may see only after there is another owner.
                    assert own(f"{OWN}; s['after'] = None; del s['after']; s.close()") == 0
                    found = store.copy()
                    assert any(dict(each) == found for each in wanted[seen[0] :])
                    assert store.stats().holder is None
                    if not ended:
                        break
                    deaths += 1
            assert idle.do("ends.append(1); thread.join(); result = len(r.copy())") == len(found)
        idle.do("r.close()")
    assert deaths
    figures.note("deaths of an owner of a store", **{point: deaths})
    figures.note("the first read after the death of an owner", **{point: figures.times(seconds)})


@pytest.mark.crashpoints
@pytest.mark.parametrize("point", sorted(crash_points.POINTS_OF_READERS))
def test_a_reader_that_dies_at_a_point_keeps_nothing_from_the_owner(runtime: Path, point: str) -> None:
    crash_points.require_core()
    with MemberProcess() as owner, MemberProcess(points=True) as victim:
        owner.do(FILL)
        victim.begin(
            f"crash_points.die_at_point({point!r}, 1, -1); r = sync.attach({OURS!r}); "
            "v = r['raw']; r['list'].wait_changed(5)"
        )
        assert victim.wait() == -signal.SIGKILL
        owner.do("s['raw'] = bytearray(b'another one'); s['list'].append(3)")
        with reader() as store:
            assert bytes(store["raw"]) == b"another one"
            assert np.array_equal(store["frame"], np.arange(1000))
        owner.do("s.close()")


@pytest.mark.crashpoints
@pytest.mark.parametrize("point", ["MendBegun", "RedoBegun", "RedoWordStored", "RedoDone"])
def test_a_reader_that_dies_as_it_completes_a_partial_commit_leaves_that_to_others(runtime: Path, point: str) -> None:
    crash_points.require_core()
    with MemberProcess(points=True) as owner, MemberProcess(points=True) as victim:
        owner.do(FILL)
        victim.do(f"r = sync.attach({OURS!r}); l = r['list']")
        with reader() as store:
            owner.begin(
                "crash_points.die_at_point('LogWordStored', 1, -1)\n"
                "with s.transaction():\n    s['list'][0] = 11\n    s['list'][1] = 12"
            )
            assert owner.wait() == -signal.SIGKILL
            victim.begin(f"crash_points.die_at_point({point!r}, 1, -1); l.copy()")
            assert victim.wait() == -signal.SIGKILL
            assert store["list"].copy() == [11, 12]
            with MemberProcess() as newcomer:
                newcomer.do(f"{OWN}; s['list'].append(3)")
            assert store["list"].copy() == [11, 12, 3]


@pytest.mark.crashpoints
def test_a_reader_that_dies_as_it_follows_a_new_owner_delays_no_owner(runtime: Path) -> None:
    crash_points.require_core()
    with MemberProcess() as owner, MemberProcess(points=True) as victim:
        owner.do(FILL)
        victim.do(f"r = sync.attach({OURS!r}); crash_points.die_at_point('ReaderFollows', 1, -1)")
        with reader() as store:
            owner.kill()
            with MemberProcess() as newcomer:
                newcomer.do(f"{OWN}; s['list'].append(3)")
            assert victim.wait() == -signal.SIGKILL, "the idle reader has not followed"
            assert store["list"].copy() == [1, 2, 3]
