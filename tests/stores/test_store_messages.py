"""Messages of a store, and waiting for changes: no waiter polls or misses a wake-up, and no message is lost."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import shmrpc
import shmrpc.sync
from shmrpc.discovery.members import inspect_all_objects
from shmrpc.stores.inbox import BlockingInbox, Inbox
from tests.helpers.member_process import MemberProcess
from tests.helpers.server_process import InThread, eventually, eventually_in_loop

LONG = 60.0


@shmrpc.shared
class Hiding:
    """Its fields have the names of what a container of a store can do."""

    copy: str
    changed: int


#: A name that no other run of these tests has.
OURS = f"letters{os.getpid()}"


@pytest.fixture
def s() -> Iterator[shmrpc.sync.Store]:
    with shmrpc.sync.store(OURS) as opened:
        yield opened


def _waiters() -> int:
    return next((each.waiters for each in inspect_all_objects(print) if each.name == OURS), 0)


def _until_waiting(count: int = 1) -> None:
    assert eventually(lambda: _waiters() == count)


async def _until_waiting_in_loop(count: int = 1) -> None:
    assert await eventually_in_loop(lambda: _waiters() == count)


# --- messages ---


def test_each_message_is_taken_once_and_in_order(s: shmrpc.sync.Store, other: MemberProcess) -> None:
    other.do(f"s = sync.attach({OURS!r})")
    other.do("for n in range(100): s.inbox.put({'n': [n]})")
    assert s.inbox.has_messages()
    assert [s.inbox.take() for _ in range(50)] == [{"n": [n]} for n in range(50)]
    assert other.do("result = [s.inbox.take() for _ in range(50)]") == [{"n": [n]} for n in range(50, 100)]
    assert not s.inbox.has_messages()


def test_messages_that_are_taken_and_read_are_plain_copies(s: shmrpc.sync.Store) -> None:
    sent = [{"a": {1}}, (1, [2]), bytearray(b"abc"), None, "text"]
    s.inbox.put(sent)
    read, taken = s.inbox.read(), s.inbox.take()
    assert read == taken == sent
    assert type(read) is type(taken) is list and type(taken[2]) is bytearray
    s.inbox.put(np.arange(5))
    assert (s.inbox.take() == np.arange(5)).all()
    s.inbox.put(None)
    assert s.inbox.read() is None and s.inbox.has_messages() and s.inbox.take() is None


def test_no_message_within_the_timeout_raises(s: shmrpc.sync.Store) -> None:
    for wait in (s.inbox.take, s.inbox.read):
        for timeout in (0, 0.01):
            with pytest.raises(shmrpc.WaitTimeout, match=f"store '{OURS}': no message came within {timeout:g} s"):
                wait(timeout)
    with pytest.raises(TypeError):
        s.inbox.take("long")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="nan"):
        s.inbox.take(float("nan"))


def test_one_that_waits_gets_what_comes(s: shmrpc.sync.Store, other: MemberProcess) -> None:
    other.do(f"s = sync.attach({OURS!r})")
    for way in ("take", "read"):
        other.begin(f"result = s.inbox.{way}({LONG})")
        _until_waiting()
        s.inbox.put([way])
        assert other.end() == [way]
    assert s.inbox.take() == ["read"]


def test_several_receivers_share_the_messages(s: shmrpc.sync.Store) -> None:
    with MemberProcess() as one, MemberProcess() as two, MemberProcess() as three:
        receivers = [one, two, three]
        for each in receivers:
            each.do(f"s = sync.attach({OURS!r})")
            each.begin(f"result = []\nwhile (got := s.inbox.take({LONG})) is not None: result.append(got)")
        for number in range(300):
            s.inbox.put(number)
        assert eventually(lambda: not s.inbox.has_messages())
        for _ in receivers:
            s.inbox.put(None)
        got = [each.end() for each in receivers]
    assert sorted(number for part in got for number in part) == list(range(300))
    assert all(part == sorted(part) for part in got)


def test_messages_of_a_transaction_come_with_its_end_or_never(s: shmrpc.sync.Store, other: MemberProcess) -> None:
    other.do(f"s = sync.attach({OURS!r})")
    with s.transaction():
        s.inbox.put(1)
        s.inbox.put(2)
        assert not other.do("result = s.inbox.has_messages()")
    with pytest.raises(ZeroDivisionError), s.transaction():
        assert s.inbox.take() == 1
        s.inbox.put(3)
        raise ZeroDivisionError
    assert other.do("result = [s.inbox.take(), s.inbox.take(), s.inbox.has_messages()]") == [1, 2, False]


def test_a_receiver_that_is_killed_takes_none_along(s: shmrpc.sync.Store) -> None:
    with MemberProcess() as victim:
        victim.do(f"s = sync.attach({OURS!r})")
        victim.begin("s.inbox.take()")
        _until_waiting()
        victim.kill()
    s.inbox.put("kept")
    assert s.inbox.take(LONG) == "kept"


def test_stopped_waits_for_messages_raise(s: shmrpc.sync.Store) -> None:
    takes, reads = InThread(lambda: s.inbox.take(LONG)), InThread(lambda: s.inbox.read(LONG))
    _until_waiting(2)
    s.stop()
    for each in (takes, reads):
        assert isinstance(each.join(), shmrpc.WaitStopped)
    with pytest.raises(shmrpc.WaitStopped):
        s.inbox.take(LONG)
    s.resume()
    s.inbox.put(1)
    assert s.inbox.take() == 1


def test_a_signal_whose_handler_raises_ends_a_wait_for_a_message(s: shmrpc.sync.Store) -> None:
    main = threading.main_thread().ident
    assert main is not None

    def interrupt() -> None:
        _until_waiting()
        signal.pthread_kill(main, signal.SIGINT)

    thread = InThread(interrupt)
    with pytest.raises(KeyboardInterrupt):
        s.inbox.take(LONG)
    thread.join()
    s.inbox.put(1)
    assert s.inbox.take(0) == 1


async def test_a_loop_takes_what_comes_and_turns_meanwhile(other: MemberProcess) -> None:
    async with shmrpc.store(OURS) as s:
        taking = [asyncio.create_task(s.inbox.take(LONG)) for _ in range(3)]
        await _until_waiting_in_loop()
        other.do(f"s = sync.attach({OURS!r}); s.inbox.put([0]); s.inbox.put([1]); s.inbox.put([2])")
        assert sorted(await asyncio.gather(*taking)) == [[0], [1], [2]]
        reading = [asyncio.create_task(s.inbox.read(LONG)) for _ in range(3)]
        await _until_waiting_in_loop()
        other.do("s.inbox.put([3])")
        assert await asyncio.gather(*reading) == [[3]] * 3


def test_a_message_that_is_read_stays_for_a_waiter_that_takes_it(s: shmrpc.sync.Store, other: MemberProcess) -> None:
    """Or to read it. The one that is woken for it leaves it where it is."""
    readers = [InThread(lambda: s.inbox.read(LONG))]
    _until_waiting(1)
    readers.append(InThread(lambda: s.inbox.read(LONG)))
    _until_waiting(2)
    other.begin(f"s = sync.attach({OURS!r}); result = s.inbox.take({LONG})")
    _until_waiting(3)
    s.inbox.put(1)
    assert other.ends(LONG / 2)
    assert other.end() == 1
    s.inbox.put(2)  # For a reader that came after the message was taken.
    assert {each.join() for each in readers} <= {1, 2}


def test_all_messages_of_a_transaction_wake_those_that_wait_for_them(s: shmrpc.sync.Store) -> None:
    takers = []
    for number in range(3):
        takers.append(InThread(lambda: s.inbox.take(LONG)))
        _until_waiting(number + 1)
    with s.transaction():
        for number in range(3):
            s.inbox.put(number)
    assert sorted([each.join() for each in takers], key=repr) == [0, 1, 2]
    assert not s.inbox.has_messages()


async def test_a_take_that_is_cancelled_loses_no_message(other: MemberProcess) -> None:
    other.do(f"s = sync.store({OURS!r})")
    async with shmrpc.store(OURS) as s:
        kept = []
        for number in range(50):
            task = asyncio.create_task(s.inbox.take(LONG))
            for _ in range(number % 4):
                await asyncio.sleep(0)
            other.begin(f"s.inbox.put({number})")
            for _ in range(number % 7):
                await asyncio.sleep(0)
            task.cancel()
            try:
                kept.append(await task)
            except asyncio.CancelledError:
                kept.append(await s.inbox.take(LONG))
            other.end()
        assert sorted(kept) == list(range(50))
        assert not s.inbox.has_messages()


async def test_a_message_that_a_cancelled_task_had_taken_is_not_lost(other: MemberProcess) -> None:
    """Also if it cannot be given back at once: another process, or another task, is within a transaction."""
    async with shmrpc.store(OURS, busy_timeout=0.01) as s:
        for is_ours in (False, True):
            s.inbox.put("first")
            task = asyncio.create_task(s.inbox.take(LONG))
            assert await s.inbox.take() == "first"
            await asyncio.sleep(0)  # The task waits.
            for message in ("first", "second"):
                s.inbox.put(message)
            while not task.done() and len(s.inbox._store._peek()[0]) == len("first"):
                await asyncio.sleep(0)  # The task gets the message, and does not run before it is cancelled.
            task.cancel()
            if is_ours:
                async with s.transaction():
                    await asyncio.wait([task])
            else:
                other.do(f"s = sync.attach({OURS!r}); t = s.transaction(); t.__enter__()")
                await asyncio.wait([task])
                other.do("t.__exit__(None, None, None); s.close()")
            got = [task.result()] if not task.cancelled() else [await s.inbox.take(LONG)]
            got.append(await s.inbox.take(LONG))
            assert sorted(got) == ["first", "second"] and not s.inbox.has_messages()


async def test_a_wait_of_a_loop_raises_without_a_message_or_after_a_stop() -> None:
    async with shmrpc.store(OURS) as s:
        for wait in (s.inbox.take, s.inbox.read):
            with pytest.raises(shmrpc.WaitTimeout, match="no message came within 0.01 s"):
                await wait(0.01)
            task = asyncio.create_task(wait(LONG))
            await asyncio.sleep(0.01)
            s.stop()
            with pytest.raises(shmrpc.WaitStopped):
                await task
            s.resume()


async def test_a_store_that_is_closed_ends_the_waits_of_its_tasks() -> None:
    s = shmrpc.store(OURS)
    s["it"] = [1]
    waits = [asyncio.create_task(wait(LONG)) for wait in (s.inbox.take, s.inbox.read, s["it"].changed)]
    await asyncio.sleep(0.01)
    s.close()
    for error in await asyncio.gather(*waits, return_exceptions=True):
        assert isinstance(error, shmrpc.LocalProtocolError)


def test_a_store_that_is_closed_ends_the_waits_of_its_threads() -> None:
    s = shmrpc.sync.store(OURS)
    s["it"] = [1]
    it = s["it"]
    waits = [InThread(lambda wait=wait: wait(LONG)) for wait in (s.inbox.take, s.inbox.read, it.wait_changed)]  # type: ignore[misc]
    _until_waiting(3)
    s.close()
    for each in waits:
        assert isinstance(each.join(), shmrpc.LocalProtocolError)


# --- changes ---

CHANGES: dict[str, str] = {
    "an item": "it['a'] = 1",
    "a text": "it['a'] = 'x' * 100",
    "a new key": "it['new'] = 1",
    "no key": "del it['a']",
    "within": "it['list'].append(1)",
    "deep within": "it['list'][0]['b'].add(5)",
    "one word deep within": "it['list'][0]['c'] = 5",
    "added": "shmrpc.atomic.add(it, 'a', 1)",
    "cleared": "it.clear()",
    "replaced": "s['it'] = 1",
    "removed": "del s['it']",
    "in a transaction": "with s.transaction(): it['a'] = 5; s['other'] = 1",
    "all removed": "s.clear()",
}


def _filled(s: Any) -> Any:
    s["it"] = {"a": 0, "list": [{"b": {1}, "c": 0}]}
    s["other"] = {"a": [0]}
    return s["it"]


@pytest.mark.slow
@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_each_change_wakes_a_waiting_thread(s: shmrpc.sync.Store, other: MemberProcess, change: str) -> None:
    it = _filled(s)
    other.do(f"s = sync.attach({OURS!r}); it = s['it']")
    waiting = InThread(lambda: it.wait_changed(LONG))
    _until_waiting()
    other.do(change)
    error = waiting.join()
    assert error is None or isinstance(error, shmrpc.ObjectDeleted)


@pytest.mark.slow
@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
async def test_each_change_wakes_a_waiting_loop(other: MemberProcess, change: str) -> None:
    async with shmrpc.store(OURS) as s:
        it = _filled(s)
        other.do(f"s = sync.attach({OURS!r}); it = s['it']")
        waiting = [asyncio.create_task(it.changed(LONG)) for _ in range(3)]
        await _until_waiting_in_loop()
        other.do(change)
        for error in await asyncio.gather(*waiting, return_exceptions=True):
            assert error is None or isinstance(error, shmrpc.ObjectDeleted)


def test_changes_elsewhere_wake_no_waiter(s: shmrpc.sync.Store, other: MemberProcess) -> None:
    it = _filled(s)
    other.do(f"s = sync.attach({OURS!r})")
    inner = it["list"][0]["b"]
    waiting = InThread(lambda: inner.wait_changed(0.3))
    _until_waiting()
    other.do("s['other']['a'][0] = 1; s['it']['a'] = 1; s['it']['list'].append(2); s['new'] = 1; s.inbox.put(1)")
    other.do("with s.transaction(): s['other']['a'].append(1)")
    error = waiting.join()
    assert isinstance(error, shmrpc.WaitTimeout)


def test_a_rollback_wakes_no_waiter(s: shmrpc.sync.Store, other: MemberProcess) -> None:
    it = _filled(s)
    other.do(f"s = sync.attach({OURS!r})")
    waiting = InThread(lambda: it.wait_changed(0.3))
    _until_waiting()
    other.do("try:\n with s.transaction(): s['it']['a'] = 1; 1 / 0\nexcept ZeroDivisionError: pass")
    assert isinstance(waiting.join(), shmrpc.WaitTimeout)
    assert it["a"] == 0


def test_a_wait_without_a_change_raises_in_time(s: shmrpc.sync.Store) -> None:
    it = _filled(s)
    with pytest.raises(shmrpc.WaitTimeout, match=f"store '{OURS}'.*within 0.01 s"):
        it.wait_changed(0.01)
    with pytest.raises(shmrpc.WaitTimeout):
        it.wait_changed(0)
    del s["it"]
    with pytest.raises(shmrpc.ObjectDeleted):
        it.wait_changed(LONG)


def test_the_store_itself_is_watched(s: shmrpc.sync.Store, other: MemberProcess) -> None:
    _filled(s)
    other.do(f"s = sync.attach({OURS!r})")
    for change in ("s['new'] = 1", "s['it']['list'][0]['b'].add(9)", "s.clear()"):
        waiting = InThread(lambda: s.wait_changed(LONG))
        _until_waiting()
        other.do(change)
        assert waiting.join() is None


def test_stopped_waits_for_changes_raise(s: shmrpc.sync.Store) -> None:
    it = _filled(s)
    waiting = InThread(lambda: it.wait_changed(LONG))
    _until_waiting()
    s.stop()
    assert isinstance(waiting.join(), shmrpc.WaitStopped)
    s.resume()


def test_a_watcher_that_is_killed_leaves_its_place_to_others(s: shmrpc.sync.Store) -> None:
    it = _filled(s)
    for _ in range(3):
        with MemberProcess() as victim:
            victim.do(f"import threading; s = sync.attach({OURS!r}); it = s['it']")
            victim.do("for _ in range(20): threading.Thread(target=it.wait_changed, daemon=True).start()")
            _until_waiting(20)
            victim.kill()
    waiting = [InThread(lambda: it.wait_changed(LONG)) for _ in range(20)]
    assert eventually(lambda: _waiters() >= 20)
    it["a"] = 5
    assert [each.join() for each in waiting] == [None] * 20


def test_a_change_wakes_all_that_wait_and_none_is_missed(s: shmrpc.sync.Store, other: MemberProcess) -> None:
    """Each waits for the next change by what it has seen last: a change between two waits is seen before the next."""
    s["it"] = {"n": 0}
    it = s["it"]
    other.do(f"s = sync.attach({OURS!r}); it = s['it']")
    other.begin(
        "seen = [0]\nwhile seen[-1] < 200:\n try: it.wait_changed(0.05)\n except shmrpc.WaitTimeout: pass\n"
        " seen.append(it['n'])\nresult = seen[-1]"
    )
    for _ in range(200):
        shmrpc.atomic.add(it, "n", 1)
        time.sleep(0)
    assert other.end() == 200


# --- changes, one after the other ---


@pytest.mark.slow
def test_no_change_is_missed_between_two_looks(s: shmrpc.sync.Store, other: MemberProcess) -> None:
    """One that waits again only after it has looked would sleep on if the last change came in between."""
    s["it"] = {"n": 0}
    other.do(f"s = sync.attach({OURS!r})")
    other.begin(
        "result = []\nfor now in shmrpc.watch(s['it'], 60):\n result.append(now['n'])\n if now['n'] == 2000: break"
    )
    for _ in range(2000):
        shmrpc.atomic.add(s["it"], "n", 1)
        time.sleep(0)
    seen = other.end()
    assert seen[-1] == 2000 and seen == sorted(seen)


async def test_a_loop_sees_changes_until_the_object_is_gone() -> None:
    async with shmrpc.store(OURS) as s:
        s["it"] = [0]
        seen = []
        async for now in shmrpc.watch(s["it"], LONG):
            seen.append(now)
            if len(now) < 3:
                s["it"].append(len(now))
            else:
                del s["it"]
        assert seen == [[0], [0, 1], [0, 1, 2]]
        async for now in shmrpc.watch(s, LONG):
            if now:
                break
            s["it"] = 1
        assert now == {"it": 1}


def test_changes_of_what_a_field_hides_are_seen(s: shmrpc.sync.Store) -> None:
    s["it"] = Hiding("a", 1)
    for now in shmrpc.watch(s["it"], LONG):
        if now == Hiding("a", 2):
            break
        s["it"].changed += 1


def test_changes_raise_after_the_timeout_and_for_a_value_that_is_no_container(s: shmrpc.sync.Store) -> None:
    changes = iter(shmrpc.watch(s, 0.01))
    assert next(changes) == {}
    with pytest.raises(shmrpc.WaitTimeout, match="the object has not changed within 0.01 s"):
        next(changes)
    with pytest.raises(ValueError, match="timeout"):
        shmrpc.watch(s, -1)
    with pytest.raises(TypeError, match="expected an object of a store or a store, got dict"):
        shmrpc.watch({})


def test_one_who_leaves_a_store_in_the_middle_of_changes_is_not_in_the_way(s: shmrpc.sync.Store) -> None:
    with shmrpc.sync.store(f"{OURS}.left") as left:
        left["it"] = {}
        changes = iter(shmrpc.watch(left["it"]))
        assert next(changes) == {}
    with pytest.raises(shmrpc.LocalProtocolError, match="closed"):
        next(changes)


async def test_one_wait_too_many_raises_and_the_others_go_on() -> None:
    async with shmrpc.store(OURS) as s:
        waits = [asyncio.create_task(s.changed(LONG)) for _ in range(1025)]
        (refused,) = (await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED))[0]
        assert isinstance(refused.exception(), OverflowError)
        assert "1,024 waits for changes" in str(refused.exception())
        s["a"] = 1
        done = await asyncio.gather(*waits, return_exceptions=True)
        assert done.count(None) == 1024


def test_one_that_takes_a_message_waits_for_the_transaction_of_another_task() -> None:
    async def main() -> None:
        async with shmrpc.store(OURS) as store:
            store["n"] = 1
            store.inbox.put("first")
            async with store.transaction():
                store["n"] = 2
                takes = [asyncio.create_task(store.inbox.take(LONG)) for _ in range(2)]
                await asyncio.sleep(0.01)
                assert not any(task.done() for task in takes)
                assert await asyncio.create_task(_read(store, "n")) == 1, "another task reads what is committed"
                store.inbox.put("second")
            assert sorted(await asyncio.gather(*takes)) == ["first", "second"]
            assert not store.inbox.has_messages()

    async def _read(store: shmrpc.Store, key: str) -> object:
        return store[key]

    asyncio.run(main())


def test_containers_are_linked_as_deep_as_they_can_be_copied(s: shmrpc.sync.Store) -> None:
    s["deep"] = []
    members = s["deep"]
    for _ in range(255):
        members.append([])
        members = members[0]
    with pytest.raises(RecursionError, match="256 deep"):
        members.append([])
    with pytest.raises(RecursionError, match="256 deep"):
        members.append((1,))
    members.append(1 << 100)
    assert s.copy()["deep"] == s["deep"].copy()
    assert s.pop("deep")
    assert s.copy() == {}


class _Interrupted:
    """A store whose caller a signal handler interrupts as soon as it has a message."""

    def __init__(self, store: shmrpc.sync.Store) -> None:
        self._store = store

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    def _take_into(self, got: list[Any]) -> bool:
        self._store._take_into(got)
        raise KeyboardInterrupt


def test_a_message_whose_reader_was_interrupted_is_still_the_first_one(s: shmrpc.sync.Store) -> None:
    for each in ("first", "second"):
        s.inbox.put(each)
    with pytest.raises(KeyboardInterrupt):
        BlockingInbox(_Interrupted(s)).take()
    assert [s.inbox.take(), s.inbox.take()] == ["first", "second"]


class AlwaysTaken:
    """A store in which another member takes each message first. Each wait takes 0.4 s of its clock."""

    def __init__(self) -> None:
        self.now, self.waits = 0.0, list[float]()

    def monotonic(self) -> float:
        return self.now

    def _take_into(self, got: list[Any]) -> bool:
        return False

    def _peek(self) -> list[Any]:
        return []

    def _has_messages(self) -> bool:
        return False

    def _wait_for_message(self, timeout: float) -> bool:
        self.waits.append(round(timeout, 1))
        self.now += 0.4
        return timeout > 0

    async def wait(self, condition: Any, undo: Any, timeout: float) -> bool:
        return self._wait_for_message(timeout)

    def _wait_queue(self, wait_set: int, kind: type) -> AlwaysTaken:
        return self

    def _raise_no_message(self, waited: bool | None, timeout: float | None) -> None:
        raise shmrpc.WaitTimeout(f"within {timeout:g} s")


@pytest.mark.parametrize("wait", ["take", "read", "read in a loop"])
async def test_a_receiver_whose_messages_others_take_stops_at_its_timeout(
    wait: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = AlwaysTaken()
    monkeypatch.setattr("shmrpc.basics.timeouts.time", store)
    with pytest.raises(shmrpc.WaitTimeout, match="^within 1 s$"):
        if wait == "read in a loop":
            await Inbox(store).read(1.0)  # type: ignore[arg-type]
        else:
            getattr(BlockingInbox(store), wait)(1.0)  # type: ignore[arg-type]
    assert store.waits == [1.0, 0.6, 0.2, 0.0]
