"""Every way to call that the benchmark measures gives right answers, and a run goes on without those that fail."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import shutil
import signal
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, Final

import pytest

from benchmark import nats_server, pool_loads
from benchmark.processes import Child, Failed, client, descendants
from benchmark.queue_work import COPIED, IN_PLACE, TO_ALL
from benchmark.results import Result
from benchmark.rivals import RIVALS
from benchmark.rows import Line, Row
from benchmark.run import QUICK, Pair, Run
from benchmark.subjects import (
    HOSTS,
    INBOX,
    NAMES,
    NATS_SERVER,
    NEAR_ALONE,
    NEAR_EITHER,
    OURS,
    POOLS,
    QUEUES,
    STORES,
    STUDIED,
    TOPICS,
    Ability,
    Subject,
)
from tests.helpers.server_process import Script, eventually

SUBJECTS: Final = (
    *OURS,
    *HOSTS,
    NEAR_ALONE,
    NEAR_EITHER,
    *NAMES,
    *QUEUES,
    *TOPICS,
    *STUDIED,
    *STORES,
    INBOX,
    *POOLS,
    *RIVALS,
)
#: Seconds for an operation that takes a moment, on a machine that lets a process wait for seconds.
PATIENCE: Final = 60.0


class UnusableRival(Exception):
    """Raised when a rival can no longer be measured, as expected."""


class Stage:
    """The processes of the subject under test; the processes of the previous subject have ended."""

    def __init__(self) -> None:
        self.pair: Pair | None = None

    def enter(self, subject: Subject) -> Pair:
        if self.pair is not None and self.pair.subject is not subject:
            self.clear()
        if self.pair is None:
            self.pair = Pair(subject)
        return self.pair

    def clear(self) -> None:
        pair, self.pair = self.pair, None
        if pair is not None:
            pair.close()


@pytest.fixture(scope="module")
def stage() -> Iterator[Stage]:
    made = Stage()
    yield made
    made.clear()


def check(subject: Subject, name: str) -> str:
    return f"tests.benchmark.rival_checks:{name}{'_sync' if subject.loop == 'none' else ''}"


def do(pair: Pair, name: str) -> Result:
    return pair.do(check(pair.subject, name), patience=PATIENCE)


def sums_and_equal_values_come_back(pair: Pair) -> None:
    do(pair, "call")


def concurrent_calls_get_their_own_replies(pair: Pair) -> None:
    assert do(pair, "concurrent").calls == 300


def a_stream_is_in_order_and_may_be_left(pair: Pair) -> None:
    do(pair, "stream")


def an_unread_or_abandoned_stream_uses_no_cpu(pair: Pair) -> None:
    for step in ("hold_stream", "leave_stream"):
        do(pair, step)
        if step == "hold_stream" and pair.subject.family == "grpc_aio":
            continue  # Its window is of megabytes, and small items take minutes to fill it.
        # An endless stream without flow control would use a whole CPU for ever.
        assert any(do(pair, "nothing").cpu < 0.1 for _ in range(20)), step


def sums_and_arrays_come_back(pair: Pair) -> None:
    assert do(pair, "hosts").calls == 300


def all_messages_arrive(pair: Pair) -> None:
    do(pair, "bulk")


def a_process_may_have_several_connections(pair: Pair) -> None:
    do(pair, "connections")


def clients_do_not_feel_each_other_nor_the_death_of_one(pair: Pair) -> None:
    subject = pair.subject
    with client(subject.connect, subject.loop, pair.place) as other:
        other.order(check(subject, "call"))
        do(pair, "call")
        other.result(PATIENCE)
        other.order(check(subject, "die"))
        with pytest.raises(Failed, match="its process ended"):
            other.result(PATIENCE)
    do(pair, "call")


def a_lock_lets_in_one_at_a_time(pair: Pair) -> None:
    subject, before = pair.subject, do(pair, "counted").calls
    with client(subject.connect, subject.loop, pair.place) as other:
        other.order(check(subject, "call_often"))
        calls = do(pair, "call_often").calls
        calls += other.result(PATIENCE).calls
    assert do(pair, "counted").calls == before + calls


def signals_come_after_what_was_written_before_them(pair: Pair) -> None:
    do(pair, "call_often")


def put_and_got(pair: Pair, batch: int) -> None:
    """Put and get items; the load itself raises if an item is lost, comes twice or is another."""
    for size in (0, 50):
        given = {"writers": 2, "readers": 2, "batch": batch, "size": size}
        assert pair.do("benchmark.queue_loads:rate", seconds=0.02, patience=PATIENCE, **given).calls > 0


def batches_come_whole_and_once(pair: Pair) -> None:
    put_and_got(pair, 10)


def items_come_once(pair: Pair) -> None:
    put_and_got(pair, 1)


def an_item_goes_from_hand_to_hand(pair: Pair) -> None:
    for asleep in (False, True):
        result = pair.do("benchmark.queue_loads:hand_over", seconds=0.02, patience=PATIENCE, asleep=asleep)
        assert result.times is not None and len(result.times) == result.calls > 0


def arrays_are_copied(pair: Pair) -> None:
    assert pair.do("benchmark.queue_loads:arrays", seconds=0.02, patience=PATIENCE, how=COPIED).calls > 0


def arrays_are_filled_in_place(pair: Pair) -> None:
    assert pair.do("benchmark.queue_loads:arrays", seconds=0.02, patience=PATIENCE, how=IN_PLACE).calls > 0


def all_readers_get_all_in_order(pair: Pair) -> None:
    """Publish to all readers; the load itself raises if a message is lost, comes twice or is another."""
    for batch, size, slowly in ((10, 0, False), (10, 50, True), (1, 50, False)):
        given = {"readers": 2, "batch": batch, "size": size, "slowly": slowly}
        assert pair.do("benchmark.topic_loads:rate", seconds=0.02, patience=PATIENCE, **given).calls > 0


def arrays_reach_all_readers(pair: Pair) -> None:
    given = {"how": TO_ALL, "readers": 2}
    assert pair.do("benchmark.queue_loads:arrays", seconds=0.02, patience=PATIENCE, **given).calls > 0


def all_objects_are_numbered_on(pair: Pair) -> None:
    for size in (1_000, 100_000):
        given = {"readers": 2, "size": size}
        result = pair.do("benchmark.study_work:rate", seconds=0.02, patience=PATIENCE, **given)
        assert result.calls > 0 and result.calls % (size // 50) == 0


def no_increment_is_lost(pair: Pair) -> None:
    """Increment fields; the loads themselves raise if a field has another value than its increments add up to."""
    for load in ("increments", "additions"):
        for writers in (1, 2):
            result = pair.do(f"benchmark.store_work:{load}", seconds=0.02, patience=PATIENCE, writers=writers)
            assert result.calls > 0


def a_field_is_read(pair: Pair) -> None:
    assert pair.do("benchmark.store_work:reads", seconds=0.02, patience=PATIENCE, contended=False).calls > 0


def a_field_is_read_beside_a_writer(pair: Pair) -> None:
    assert pair.do("benchmark.store_work:reads", seconds=0.02, patience=PATIENCE, contended=True).calls > 0


def entries_of_a_dict_are_what_was_done(pair: Pair) -> None:
    for what in ("get", "set", "bump"):
        assert pair.do("benchmark.store_work:entries", seconds=0.02, patience=PATIENCE, what=what).calls > 0


def ten_changes_are_all_done(pair: Pair) -> None:
    assert pair.do("benchmark.store_work:transactions", seconds=0.02, patience=PATIENCE).calls > 0


def tasks(pair: Pair, load: str, *, patience: float = PATIENCE, **given: Any) -> Result:
    """Run tasks and return the result; the load itself raises if a task's result is missing or another."""
    result = pair.do(f"benchmark.pool_loads:{load}", seconds=0.02, patience=patience, workers=2, **given)
    assert result.calls > 0
    return result


def tasks_give_their_results(pair: Pair) -> None:
    tasks(pair, "run")
    for task in ("array", "ints"):
        tasks(pair, "run", task=task, size=1_000)
    tasks(pair, "many", count=300, how="map")
    assert tasks(pair, "mixed", total=0.05).extra[pool_loads.IDEAL] > 0.5


def tasks_are_handed_in_one_by_one(pair: Pair) -> None:
    tasks(pair, "many", count=300, how="submit")


def all_workers_have_an_array(pair: Pair) -> None:
    copies = tasks(pair, "broadcast", size=32 << 20).extra[pool_loads.COPIES]
    # A pool that shares the array has one copy, other pools at least one for each worker.
    assert 0.9 < copies < 1.5 if pair.subject.role == "ours" else copies > 0.9


def a_killed_worker_is_replaced(pair: Pair) -> None:
    is_rival = pair.subject.role == "rival"
    try:
        tasks(pair, "replacement", patience=5 if is_rival else PATIENCE)
    except Failed:  # A rival may wait for ever for the lost task, which the question mentions.
        assert is_rival
        raise UnusableRival from None


PROPERTIES: Final[tuple[tuple[Ability, Callable[[Pair], None]], ...]] = (
    ("call", sums_and_equal_values_come_back),
    ("concurrent", concurrent_calls_get_their_own_replies),
    ("stream", a_stream_is_in_order_and_may_be_left),
    ("stream", an_unread_or_abandoned_stream_uses_no_cpu),
    ("hosts", sums_and_arrays_come_back),
    ("bulk", all_messages_arrive),
    ("in place", all_messages_arrive),
    ("connections", a_process_may_have_several_connections),
    ("lock", a_lock_lets_in_one_at_a_time),
    ("signals", signals_come_after_what_was_written_before_them),
    ("queue", batches_come_whole_and_once),
    ("queue, one", items_come_once),
    ("topic", all_readers_get_all_in_order),
    ("topic", an_item_goes_from_hand_to_hand),
    ("topic, arrays", arrays_reach_all_readers),
    ("study", all_objects_are_numbered_on),
    ("store", no_increment_is_lost),
    ("store, read", a_field_is_read),
    ("store, read beside", a_field_is_read_beside_a_writer),
    ("store, dict", entries_of_a_dict_are_what_was_done),
    ("store, transaction", ten_changes_are_all_done),
    ("pool", tasks_give_their_results),
    ("pool, submit", tasks_are_handed_in_one_by_one),
    ("pool", all_workers_have_an_array),
    ("pool", a_killed_worker_is_replaced),
    ("queue, one", an_item_goes_from_hand_to_hand),
    ("queue, copied", arrays_are_copied),
    ("queue, in place", arrays_are_filled_in_place),
    ("clients", clients_do_not_feel_each_other_nor_the_death_of_one),
)


@pytest.mark.parametrize(
    ("subject", "holds"),
    [
        pytest.param(subject, holds, id=f"{subject.name}-{holds.__name__}")
        for subject in SUBJECTS
        for ability, holds in PROPERTIES
        if ability in subject.abilities
    ],
)
def test_a_subject_has_the_properties_of_its_abilities(
    stage: Stage, subject: Subject, holds: Callable[[Pair], None]
) -> None:
    if missing := subject.missing():
        pytest.skip(missing)
    if subject.shared == NATS_SERVER and nats_server.program() is None:
        pytest.skip("no nats-server: `make nats-server` gets one, and says what it needs for that")
    try:
        holds(stage.enter(subject))
    except UnusableRival:
        stage.clear()
    except BaseException:
        stage.clear()  # The next property begins with new processes.
        raise


def fake(name: str, connect: str = "connect", serve: str | None = None) -> Subject:
    """Return a subject of tests/benchmark/fake_rivals.py."""
    module = "tests.benchmark.fake_rivals"
    calls = frozenset[Ability](["call"])
    return Subject(name, f"{module}:{connect}", f"{module}:{serve}" if serve else None, "none", "none", calls)


def asked(bad: Subject, lines: int = 1) -> list[Row]:
    """Measure some lines with a bad and a good subject, check the rows of the good one, and return the others."""
    found = []
    with Run(QUICK, [bad, fake("good")]) as run:
        for number in range(lines):
            rows = run.line(Line(str(number)), run.able("call"), "one_after_another", patience=PATIENCE)
            named = {row.subject: row for row in rows}
            assert set(named) == {"bad", "good"}
            assert named["good"].rounds and not named["good"].note
            assert not named["bad"].rounds
            found.append(named["bad"])
    return found


def test_a_missing_package_is_reported_with_how_to_install_it() -> None:
    absent = dataclasses.replace(fake("bad"), needs=("no_such_package", "sys"), install="no-such")
    for row in asked(absent, lines=2):
        assert row.note == "not installed: no_such_package (pip install no-such)"


def test_a_missing_program_is_reported_with_how_to_install_it() -> None:
    absent = dataclasses.replace(fake("bad"), program="no-such-program")
    assert asked(absent)[0].note == "not installed: no-such-program (on Debian and Ubuntu: apt install no-such-program)"


@pytest.mark.parametrize(
    ("serve", "note"),
    [("serve_failing", "OSError: no room for a server"), ("serve_ending", "it ended before it was ready")],
)
def test_a_server_that_does_not_start_is_reported(serve: str, note: str) -> None:
    assert [row.note for row in asked(fake("bad", serve=serve))] == [note]


@pytest.mark.parametrize(
    ("connect", "serve", "note"),
    [
        ("connect_failing", None, "failed: ValueError: no sum today"),
        ("connect_refused", None, "failed: ConnectionRefusedError: no server listens"),
        ("connect_dying", None, "failed: its process ended"),
        ("connect_lonely", "serve_dying", "failed: EOFError: "),
    ],
)
def test_a_rival_that_fails_in_its_turn_is_reported(connect: str, serve: str | None, note: str) -> None:
    assert [row.note for row in asked(fake("bad", connect, serve))] == [note]


def test_a_rival_that_has_failed_is_started_anew_for_the_next_line() -> None:
    assert [row.note for row in asked(fake("bad", "connect_dying"), lines=2)] == ["failed: its process ended"] * 2


def test_a_rival_that_hangs_is_given_up() -> None:
    bad, good = fake("bad", "connect_hanging"), fake("good")
    with Run(QUICK, [bad, good]) as run:
        assert run.pair(good)
        (row,) = run.line(Line("0"), [bad], "one_after_another", patience=1.0)
        assert row.note.startswith("failed: no result after 1")
        # The good subject gets more time, because also this process may have to wait for a CPU.
        (row,) = run.line(Line("1"), [good], "one_after_another", patience=PATIENCE)
        assert row.rounds and not row.note


def state(pid: int) -> str:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    return "Z"


def alive(pid: int) -> bool:
    return state(pid) not in "ZX"


def ended(pids: Iterable[int]) -> bool:
    return eventually(lambda: not any(map(alive, pids)), PATIENCE)


def are_stopped(pids: Iterable[int]) -> bool:
    return eventually(lambda: all(state(pid) == "T" for pid in pids), PATIENCE)


def family(children: list[Child]) -> set[int]:
    return {pid for child in children for pid in (child.pid, *descendants(child.pid))}


NAMED = {subject.name: subject for subject in SUBJECTS}
#: A subject whose processes are stopped except in its turns, without need.
NAMED["restless"] = dataclasses.replace(NAMED["multiprocessing Pipe"], name="restless", restless=True)
#: A server and a client; a client that starts its server; processes that are stopped between their turns.
PROCESSES = ("multiprocessing Pipe", "ProcessPoolExecutor, uvloop", "restless")


def test_a_restless_subject_is_stopped_except_in_its_turns() -> None:
    with Run(QUICK, [NAMED["restless"]]) as run:
        (row,) = run.line(Line("small"), run.subjects, "one_after_another")
        assert row.value
        pair = run.pair(run.subjects[0])
        assert pair is not None and pair.server is not None
        pids = [pair.server.pid, pair.client.pid]
        pair.rest()
        assert are_stopped(pids)
        with pair.turn():
            assert pair.do("benchmark.sync_loads:one_after_another", seconds=0.01).calls > 0
        assert are_stopped(pids)
    assert ended(pids)


def test_processes_end_with_the_run() -> None:
    with Run(QUICK, [NAMED[name] for name in PROCESSES]) as run:
        run.line(Line("small"), run.subjects, "one_after_another")
        pids = set()
        for subject in run.subjects:
            pair = run.pair(subject)
            assert pair is not None
            pids |= family([child for child in (pair.server, pair.client) if child is not None])
        assert len(pids) >= 4 and all(map(alive, pids))
    assert ended(pids)


def test_processes_end_with_a_run_that_is_killed() -> None:
    source = f"""
        import time
        from benchmark.rows import Line
        from benchmark.run import QUICK, Run
        from tests.benchmark.test_benchmark_rivals import NAMED, family

        with Run(QUICK, [NAMED[name] for name in {PROCESSES!r}]) as run:
            run.line(Line("small"), run.subjects, "one_after_another")
            pairs = [run.pair(subject) for subject in run.subjects]
            print(*family([child for pair in pairs for child in (pair.server, pair.client) if child]), flush=True)
            print(*[pair.place.directory for pair in pairs], flush=True)
            time.sleep(600)
        """
    with Script(source) as script:
        pids, directories = [int(pid) for pid in script.line().split()], script.line().split()
        assert len(pids) >= 4 and all(map(alive, pids))
        os.kill(script.process.pid, signal.SIGKILL)
        assert ended(pids)
        for directory in directories:
            shutil.rmtree(directory)
