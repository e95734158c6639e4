"""Transactions of a store: all of their changes or none, even if a process raises, is cancelled, dies or is stopped."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import shmrpc
import shmrpc.sync
from shmrpc.host import cleanup
from tests.helpers.host_names import host_to_oneself
from tests.helpers.member_process import MemberProcess
from tests.helpers.server_process import InThread, eventually
from tests.stores.shared_classes import Player

LONG = 60.0
#: A name that no other run of these tests has.
OURS = f"changes{os.getpid()}"
#: The program of another process that is within a transaction of which no change may stay.
WITHIN = f"s = sync.store({OURS!r}); t = s.transaction(); t.__enter__(); s['it'] = 'half'; s['more'] = ['half'] * 1000"


@pytest.fixture
def s() -> Iterator[shmrpc.sync.Store]:
    with shmrpc.sync.store(OURS, busy_timeout=0.05) as opened:
        yield opened


@pytest.fixture
def within(other: MemberProcess) -> MemberProcess:
    """Another process, which is within a transaction."""
    other.do(f"s = sync.store({OURS!r}, busy_timeout=0.05); s['it'] = 'before'")
    other.do(WITHIN)
    return other


def test_all_of_it_is_there_at_its_end_and_nothing_before(s: shmrpc.sync.Store, other: MemberProcess) -> None:
    s.update(it=Player("Ada"), scores={"ada": 1})
    other.do(f"s = sync.attach({OURS!r})")
    seen = "result = [s['it'].health, s['it'].items.copy(), s['scores']['ada'], 'new' in s]"
    with s.transaction():
        s["it"].health -= 5
        s["it"].items.append("key")
        s["scores"]["ada"] += 10
        s["new"] = {"a": [1]}
        s["new"]["a"].append(2)
        assert s["new"] == {"a": [1, 2]} and s["it"].health == 95
        assert other.do(seen) == [100, [], 1, False]
    assert other.do(seen) == [95, ["key"], 11, True]


@pytest.mark.parametrize("error", [ZeroDivisionError, KeyboardInterrupt, asyncio.CancelledError, GeneratorExit])
def test_a_transaction_that_raises_changes_nothing(s: shmrpc.sync.Store, error: type[BaseException]) -> None:
    s.update(it=Player("Ada", 5, ["key"]), scores={"ada": 1}, members={1})
    before, memory = s.copy(), s.stats().memory
    with pytest.raises(error), s.transaction():
        s["it"].health = 0
        s["it"].items.clear()
        del s["scores"]
        s["members"] |= {2}
        s["new"] = ["x" * 1000] * 100
        s.pop("it")
        raise error
    assert s.copy() == before
    for _ in range(50):
        with pytest.raises(error), s.transaction():
            s["new"] = ["x" * 1000] * 100
            raise error
    assert s.stats().memory <= memory + (1 << 20)


def test_a_transaction_within_one_is_refused_and_the_outer_one_goes_on(s: shmrpc.sync.Store) -> None:
    with s.transaction():
        s["it"] = 1
        with pytest.raises(shmrpc.LocalProtocolError, match="is within a transaction already"), s.transaction():
            pass
        s["it"] += 1
        shmrpc.atomic.update(s, "it", lambda value: value + 1)
        s.setdefault("more", []).extend([1])
    assert s == {"it": 3, "more": [1]}


def test_a_transaction_may_be_begun_again(s: shmrpc.sync.Store) -> None:
    s["it"] = 0
    transaction = s.transaction()
    for _ in range(3):
        with transaction:
            s["it"] += 1
    assert s["it"] == 3


def test_a_transaction_object_is_for_one_thread_at_a_time(s: shmrpc.sync.Store) -> None:
    transaction = s.transaction(LONG)
    refused: list[str] = []

    def use_it_too() -> None:
        with pytest.raises(shmrpc.LocalProtocolError, match="for each block") as caught, transaction:
            pass
        refused.append(str(caught.value))

    with transaction:
        s["it"] = 1
        InThread(use_it_too).join()
        s["it"] += 1
    assert len(refused) == 1 and s == {"it": 2}
    with transaction:
        s["it"] += 1
    assert s == {"it": 3}


async def test_a_transaction_object_is_for_one_task_at_a_time() -> None:
    async with shmrpc.store(OURS) as s:
        transaction = s.transaction(LONG)

        async def use_it_too() -> None:
            async with transaction:
                pass

        async with transaction:
            s["it"] = 1
            with pytest.raises(shmrpc.LocalProtocolError, match="call transaction"):
                await asyncio.create_task(use_it_too())
        async with s.transaction():
            waiting = asyncio.create_task(use_it_too())
            await asyncio.sleep(0)
            waiting.cancel()
            await asyncio.gather(waiting, return_exceptions=True)
        await use_it_too()
        assert s == {"it": 1}


class Raised(Exception):
    """An exception of a program, or of its signal handler."""


def _fail() -> object:
    raise Raised


def test_a_transaction_that_goes_as_an_exception_passes_is_undone_and_the_exception_goes_on(
    s: shmrpc.sync.Store,
) -> None:
    def begin() -> object:
        transaction = s.transaction()
        transaction.__enter__()
        s["it"] = 1
        return transaction

    with pytest.raises(Raised) as caught:
        assert [begin(), _fail()]
    assert caught.value.__context__ is None
    with s.transaction(LONG):
        assert s == {}


def test_a_transaction_ends_though_a_signal_handler_raises_as_it_is_undone(
    s: shmrpc.sync.Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    forget, calls = type(s._store_context).forget_classes, []

    def interrupted(opened: Any) -> None:
        calls.append(opened)
        if len(calls) == 1:
            raise Raised
        forget(opened)

    monkeypatch.setattr(type(s._store_context), "forget_classes", interrupted)
    with pytest.raises(Raised), s.transaction():
        s["it"] = 1
        raise ZeroDivisionError
    assert len(calls) == 2
    with s.transaction(LONG):
        assert s == {}


# --- others meanwhile ---


def test_others_read_the_committed_state_and_errors_name_the_holder(
    s: shmrpc.sync.Store, within: MemberProcess
) -> None:
    assert s["it"] == "before" and s.copy() == {"it": "before"}
    assert s.stats().holder == within.pid
    for change in (
        lambda: s.__setitem__("it", 1),
        lambda: s.__setitem__("new", [1]),
        lambda: shmrpc.atomic.add(s, "it", 1),
        lambda: shmrpc.atomic.update(s, "it", lambda value: 1),
        lambda: s.inbox.put(1),
        lambda: s.clear(),
    ):
        with pytest.raises((shmrpc.StoreBusy, shmrpc.WaitTimeout), match=str(within.pid)):
            change()
    with pytest.raises(shmrpc.WaitTimeout, match=f"process {within.pid}"), s.transaction(0.01):
        pytest.fail("two are within")
    within.do("t.__exit__(None, None, None)")
    assert s["it"] == "half"
    with s.transaction(LONG):
        s["it"] = 1
    assert s.stats().holder is None


def test_the_error_names_a_stopped_holder(s: shmrpc.sync.Store, within: MemberProcess) -> None:
    within.signal(signal.SIGSTOP)
    try:
        assert eventually(lambda: f"{within.pid}" in _refusal(s) and "stopped" in _refusal(s))
        assert s.copy() == {"it": "before"}
    finally:
        within.signal(signal.SIGCONT)
    within.do("t.__exit__(None, None, None)")
    assert s["it"] == "half"


def _refusal(s: shmrpc.sync.Store) -> str:
    with pytest.raises(shmrpc.WaitTimeout) as raised, s.transaction(0.01):
        pass
    return str(raised.value)


def test_of_one_that_is_killed_nothing_stays(s: shmrpc.sync.Store) -> None:
    s["it"] = "before"
    memory = s.stats().memory
    for _ in range(3):
        with MemberProcess() as victim:
            victim.do(WITHIN)
            waiting = InThread(lambda: shmrpc.atomic.update(s, "it", lambda value: value))
            victim.kill()
            waiting.join()
        assert s.copy() == {"it": "before"}
        with s.transaction(LONG):
            s["it"] = "before"
    assert s.stats().memory <= memory + (1 << 18)
    with host_to_oneself():
        cleanup.clean()


def test_one_that_waits_goes_on_when_the_other_is_killed(s: shmrpc.sync.Store) -> None:
    with MemberProcess() as victim:
        victim.do(WITHIN)

        def wait() -> Any:
            with s.transaction(LONG):
                s["it"] = "mine"

        waiting = InThread(wait)
        assert eventually(lambda: any(each.pid == victim.pid for each in shmrpc.members(OURS)))
        victim.kill()
        assert waiting.join() is None
    assert s.copy() == {"it": "mine"}
    with host_to_oneself():
        cleanup.clean()


def test_one_that_closes_or_ends_within_leaves_nothing(s: shmrpc.sync.Store) -> None:
    s["it"] = "before"
    with MemberProcess() as leaving:
        leaving.do(f"{WITHIN}; s.close()")
        assert s.copy() == {"it": "before"}
        s["it"] = "again"
    with MemberProcess() as ending:
        ending.do(WITHIN)
        ending.close()
    s["it"] = "mine"
    assert s.copy() == {"it": "mine"}


def test_a_forked_child_is_not_within_and_its_parent_still_is(s: shmrpc.sync.Store, other: MemberProcess) -> None:
    s["it"] = "before"
    other.do(f"{WITHIN}; names = globals()")
    code = (
        "import shmrpc\n"
        "try: s['it'] = 'child'\n"
        "except shmrpc.ShmrpcError: pass\n"
        "else: raise AssertionError('it is within')\n"
        "try: t.__exit__(None, None, None)\n"
        "except shmrpc.ShmrpcError: pass"
    )
    assert other.do(f"result = forked({code!r}, names)") == 0
    assert s.copy() == {"it": "before"}
    other.do("t.__exit__(None, None, None)")
    assert s["it"] == "half"


def test_threads_wait_for_each_other(s: shmrpc.sync.Store) -> None:
    s["it"] = 0

    def work() -> None:
        for _ in range(100):
            with s.transaction(LONG):
                s["it"] = s["it"] + 1

    threads = [InThread(work) for _ in range(4)]
    assert [each.join() for each in threads] == [None] * 4
    assert s["it"] == 400


# --- in a loop ---


async def test_a_loop_turns_while_a_task_waits_for_another_process(within: MemberProcess) -> None:
    async with shmrpc.store(OURS) as s:

        async def wait() -> None:
            async with s.transaction(LONG):
                s["it"] = "mine"

        task = asyncio.create_task(wait())
        for _ in range(50):
            await asyncio.sleep(0)
        assert not task.done()
        assert s["it"] == "before"
        await asyncio.to_thread(within.do, "t.__exit__(None, None, None)")
        await task
        assert s["it"] == "mine"


async def test_a_loop_is_not_blocked_by_with(within: MemberProcess) -> None:
    async with shmrpc.store(OURS) as s:
        with pytest.raises(shmrpc.LocalProtocolError, match="use 'async with'"), s.transaction():
            pass
        with pytest.raises(shmrpc.WaitTimeout, match=f"process {within.pid}"):
            async with s.transaction(0.01):
                pass


async def test_a_task_that_is_cancelled_while_it_waits_holds_nothing(within: MemberProcess) -> None:
    async with shmrpc.store(OURS) as s:

        async def wait() -> None:
            async with s.transaction(LONG):
                pytest.fail("it was cancelled")

        tasks = [asyncio.create_task(wait()) for _ in range(3)]
        await asyncio.sleep(0.01)
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)
        within.do("t.__exit__(None, None, None)")
        async with s.transaction(LONG):
            s["it"] = "mine"
        assert s.stats().holder is None


async def test_a_task_that_is_cancelled_within_changes_nothing() -> None:
    async with shmrpc.store(OURS) as s:
        s["it"] = "before"
        begun = asyncio.Event()

        async def work() -> None:
            async with s.transaction():
                s["it"] = "half"
                begun.set()
                await asyncio.sleep(LONG)

        task = asyncio.create_task(work())
        await begun.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert s["it"] == "before" and s.stats().holder is None


async def test_tasks_of_a_loop_are_within_one_after_the_other() -> None:
    async with shmrpc.store(OURS) as s:
        s["it"] = 0

        async def work() -> None:
            for _ in range(10):
                async with s.transaction(LONG):
                    value = s["it"]
                    await asyncio.sleep(0)
                    s["it"] = value + 1

        await asyncio.gather(*(work() for _ in range(5)))
        assert s["it"] == 50


async def test_another_task_of_the_thread_raises_because_it_cannot_wait() -> None:
    """A wait would block the loop in which the other task has to end."""
    async with shmrpc.store(OURS) as s:
        s["it"] = "before"

        async def change() -> None:
            s["it"] = "other"

        async with s.transaction():
            with pytest.raises(shmrpc.LocalProtocolError, match="another task of this thread"):
                await asyncio.create_task(change())
            s["it"] = "mine"
        assert s["it"] == "mine"


async def test_a_task_waits_for_changes_beside_the_transaction_of_another_one() -> None:
    async with shmrpc.store(OURS) as s:
        s["it"] = []
        begun, goes_on = asyncio.Event(), asyncio.Event()

        async def change() -> None:
            async with s.transaction():
                s["it"].append(1)
                begun.set()
                await goes_on.wait()

        for _ in range(3):  # There may be 1,024 watches at a time.
            before = [asyncio.create_task(s["it"].changed(LONG)) for _ in range(500)]
            await asyncio.sleep(0)
            changing = asyncio.create_task(change())
            await begun.wait()
            beside = [asyncio.create_task(each.changed(LONG)) for each in (s["it"], s)]
            with pytest.raises(shmrpc.WaitTimeout, match="another transaction has not ended"):
                await s["it"].changed(0.01)
            assert not any(each.done() for each in [*before, *beside])
            for each in before:
                each.cancel()  # The watch cannot end now, but later.
            await asyncio.wait(before)
            goes_on.set()
            await asyncio.gather(changing, *beside)
            begun.clear()
            goes_on.clear()
            await asyncio.sleep(0.1)
        assert s["it"] == [1, 1, 1]


async def test_a_task_reads_what_is_committed_beside_the_transaction_of_another_one() -> None:
    """A change in between would block the loop in which the other one has to end: it is refused at once."""
    async with shmrpc.store(OURS, busy_timeout=LONG) as s:
        s.update(n=1, many=list(range(10_000)), dict={"a": [1]}, player=Player("Ada", 5))
        reads: list[Callable[[], Any]] = [
            lambda: s["n"],
            lambda: s["dict"]["a"][0],
            lambda: s["player"].health,
            lambda: s["many"].copy(),
            lambda: list(s["many"]),
            lambda: s.copy()["dict"],
            lambda: {key: s[key] for key in s}["dict"].copy(),
            lambda: ("n" in s, len(s), s.get("none"), s["dict"] == {"a": [1]}, repr(s["player"])),
        ]
        changes: list[Callable[[], Any]] = [
            lambda: s.update(n=3),
            lambda: s["dict"].setdefault("a", 2),
            lambda: s["dict"].popitem(),
            lambda: s["many"].sort(),
            lambda: shmrpc.atomic.add(s, "n", 1),
            lambda: shmrpc.atomic.update(s, "n", lambda n: n + 1),
        ]
        expected = [read() for read in reads]

        async def look() -> None:
            assert [read() for read in reads] == expected
            for change in changes:
                with pytest.raises(shmrpc.LocalProtocolError, match="another task of this thread"):
                    change()

        async with s.transaction():
            s["n"] = 2
            s["many"].clear()
            s["dict"]["a"][0] = 2
            s["player"].health = 6
            await asyncio.create_task(look())
        assert (s["n"], len(s["many"]), s["dict"], s["player"].health) == (2, 0, {"a": [2]}, 6)


# --- one operation ---


def test_none_of_what_processes_add_is_lost(s: shmrpc.sync.Store) -> None:
    s.update(n=0, player=Player("Ada", 0), list=[0], big=2**60, float=0.0, dict={"a" * 50: 0})
    work = (
        f"from shmrpc.atomic import add; s = sync.store({OURS!r}, busy_timeout={LONG})\n"
        "for _ in range(500):\n"
        " add(s, 'n', 1); add(s['player'], 'health', 1); add(s['list'], -1, 2)\n"
        " add(s, 'big', 2**50); add(s, 'float', 0.5); add(s['dict'], 'a' * 50, 1)\n"
        " shmrpc.atomic.update(s['dict'], 'a' * 50, lambda value: value + 1)\n"
        " while not shmrpc.atomic.compare_and_set(s, 'n', (seen := s['n']), seen + 1): pass\n"
        "s.close()"
    )
    with MemberProcess() as one, MemberProcess() as two, MemberProcess() as three:
        for each in (one, two, three):
            each.begin(work)
        for each in (one, two, three):
            each.end()
    assert s["n"] == 3_000 and s["player"].health == 1_500 and s["list"] == [3_000]
    assert s["big"] == 2**60 + 1_500 * 2**50 and s["float"] == 750.0 and s["dict"] == {"a" * 50: 3_000}


def test_add_says_what_it_cannot_add_to(s: shmrpc.sync.Store) -> None:
    s.update(text="a", list=[1], none=None, big=2**47 - 1)
    assert shmrpc.atomic.add(s, "big", 1) == 2**47 == s["big"]
    assert shmrpc.atomic.add(s["list"], 0, 0.5) == 1.5
    assert shmrpc.atomic.add(s["list"], 0, 2**200) == 1.5 + 2**200
    for container, key, error in (
        (s, "text", TypeError),
        (s, "none", TypeError),
        (s, "no", KeyError),
        (s["list"], 5, IndexError),
        (s["list"], "a", TypeError),
        ({"a": 1}, "a", TypeError),
    ):
        with pytest.raises(error):
            shmrpc.atomic.add(container, key, 1)
    with pytest.raises(TypeError):
        shmrpc.atomic.add(s, "big", "a")  # type: ignore[arg-type]
    s["player"] = Player("Ada")
    with pytest.raises(AttributeError):
        shmrpc.atomic.add(s["player"], "no", 1)


def test_compare_and_set_sets_what_equals_what_is_expected(s: shmrpc.sync.Store) -> None:
    s["it"] = {"a": [1]}
    assert not shmrpc.atomic.compare_and_set(s["it"], "a", [2], 5)
    assert shmrpc.atomic.compare_and_set(s["it"], "a", [1], 5)
    assert s["it"] == {"a": 5}
    with pytest.raises(KeyError):
        shmrpc.atomic.compare_and_set(s["it"], "no", None, 5)
    with pytest.raises(ZeroDivisionError):
        shmrpc.atomic.update(s["it"], "a", lambda value: value / 0)
    assert s["it"] == {"a": 5} and s.stats().holder is None


# --- memory ---


def test_a_value_without_room_is_refused_and_changes_nothing() -> None:
    with shmrpc.sync.store(OURS, max_memory="256KiB") as s:
        s["it"] = [1]
        for value in (b"x" * 300_000, [b"x" * 10_000] * 50, dict.fromkeys(range(500), b"x" * 1000)):
            with pytest.raises(shmrpc.StoreFull, match=f"store '{OURS}' has no room for"):
                s["big"] = value
            assert s.copy() == {"it": [1]}
        with pytest.raises(shmrpc.StoreFull), s.transaction():
            s["it"].append(2)
            for number in range(1000):
                s[number] = b"x" * 1_000
        assert s.copy() == {"it": [1]}
        s["it"].append(3)
        assert s.copy() == {"it": [1, 3]}


def test_a_transaction_goes_on_after_what_had_no_room() -> None:
    with shmrpc.sync.store(OURS, max_memory="256KiB") as s:
        with s.transaction():
            s["it"] = [1]
            with pytest.raises(shmrpc.StoreFull):
                s["big"] = b"x" * 300_000
            s["it"].append(2)
        assert s.copy() == {"it": [1, 2]}


def test_half_of_a_small_store_is_available_for_one_large_value() -> None:
    with shmrpc.sync.store(OURS, "1MiB") as s:
        for number in range(22):
            s[str(number)] = bytes(40_000)
        for number in range(0, 22, 2):
            del s[str(number)]
        s["large"] = bytes(120_000)
        assert s["large"] == bytes(120_000) and s["1"] == bytes(40_000)


def test_memory_of_what_was_removed_is_given_back() -> None:
    with shmrpc.sync.store(OURS, max_memory="1MiB") as s:
        for number in range(50):
            s["big"] = b"x" * 400_000
            s["many"] = [{"a": "x" * 100, "b": (number, "y" * 50)}] * 300
            s["list"] = list(range(10_000))
            s.clear()
        used = s.stats()
        assert used.memory - used.free < 200_000
