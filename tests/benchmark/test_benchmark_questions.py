"""Every question of the benchmark is answered, in a form that tells nothing but that it works."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator

import pytest

from benchmark import nats_server
from benchmark.questions import (
    QUESTIONS,
    bulk,
    contention,
    hosts,
    many_clients,
    pool_broadcast,
    pool_fractals,
    pool_map,
    pool_mixed,
    pool_replacement,
    pool_results,
    pool_run,
    pool_study,
    pool_submit,
    queue_batches,
    queue_crowd,
    queue_hand_over,
    queue_idle,
    queue_single,
    queue_study,
    store_dict,
    store_field,
    store_memory,
    store_messages,
    store_players,
    store_transaction,
    topic_arrays,
    topic_batches,
    topic_hand_over,
    topic_readers,
    topic_single,
    topic_study,
)
from benchmark.rivals import RIVALS
from benchmark.rows import Row
from benchmark.run import Run
from benchmark.subjects import INBOX, NAMES, OURS, POOLS, QUEUES, STORES, STUDIED, TOPICS
from benchmark.targets import verdicts
from tests.benchmark.benchmark_form import TINY

AskQuestion = Callable[[str], list[Row]]

#: Rivals that need nothing but what the product needs.
AT_HAND = [rival for rival in RIVALS if rival.family in ("asyncio_protocol", "pipe") and "msgspec" not in rival.name]
#: The same of locks and signals.
EQUALS_AT_HAND = [
    rival for rival in RIVALS if rival.family in ("multiprocessing_locks", "posix_semaphores", "record_locks")
]
#: The same of queues.
QUEUES_AT_HAND = [rival for rival in RIVALS if "queue" in rival.abilities and not rival.needs]
#: The same of topics.
TOPICS_AT_HAND = [rival for rival in RIVALS if {"topic", "study"} & rival.abilities and not rival.needs]
#: The same of stores.
STORES_AT_HAND = [rival for rival in RIVALS if "store" in rival.abilities and not rival.needs]
#: The same of pools. A killed worker of multiprocessing.Pool may be waited for for ever.
POOLS_AT_HAND = [rival for rival in RIVALS if rival.name == "ProcessPoolExecutor"]
ALL_AT_HAND = [
    *OURS,
    *AT_HAND,
    *EQUALS_AT_HAND,
    *QUEUES_AT_HAND,
    *TOPICS_AT_HAND,
    *STORES_AT_HAND,
    *POOLS_AT_HAND,
]
#: The questions that can be asked here.
ASKED = [name for name in QUESTIONS if name != hosts.NAME or nats_server.program() is not None]


class Answers(dict[str, list[Row]]):
    """The answer to each question, which is asked when a test first needs it: no test waits for all of them."""

    def __init__(self, run: Run) -> None:
        super().__init__()
        self._run = run

    def __missing__(self, name: str) -> list[Row]:
        rows = self[name] = QUESTIONS[name].ask(self._run)
        assert not self._run.absent
        return rows


@pytest.fixture(scope="module")
def ask() -> Iterator[AskQuestion]:
    with pytest.MonkeyPatch.context() as patch, Run(TINY, ALL_AT_HAND) as run:
        patch.setattr(queue_study, "SIZES", (8, 64))
        patch.setattr(topic_study, "SIZES", (1_000, 100_000))
        patch.setattr(queue_study, "MOST", 1)
        patch.setattr(queue_batches, "SHAPES", ((1, 1), (1, 3), (3, 3)))
        patch.setattr(topic_readers, "READERS", (1, 8))
        yield Answers(run).__getitem__


@pytest.mark.parametrize("name", QUESTIONS)
def test_every_row_has_figures(ask: AskQuestion, name: str) -> None:
    assert QUESTIONS[name].title
    assert QUESTIONS[name].about
    if name not in ASKED:
        pytest.skip("no nats-server: `make nats-server` gets one, and says what it needs for that")
    rows = ask(name)
    assert rows
    for each in rows:
        assert each.line.question == name
        if each.note:
            # A busy machine may be too slow for a rate; nothing else may be wrong.
            assert each.note.startswith("cannot keep up"), each
            continue
        assert each.value is not None
        assert math.isfinite(each.value)
        # A figure that is a difference, such as memory, may be zero, or negative on a busy machine; and many clients
        # on a busy machine may have no reply in so short a time.
        assert each.value > 0 or each.line.lead not in ("p50", "rate") or name in (many_clients.NAME, contention.NAME)
        if each.p50 is not None and each.p99 is not None and each.longest is not None:
            assert each.p50 <= each.p99 <= each.longest


def test_a_row_stands_once(ask: AskQuestion) -> None:
    names = [(each.line, each.subject) for name in ASKED for each in ask(name)]
    assert len(names) == len(set(names))


def subjects(rows: list[Row], case: str = "") -> set[str]:
    return {each.subject for each in rows if each.line.case == case}


def test_every_subject_takes_part_in_the_questions_that_it_can_answer(ask: AskQuestion) -> None:
    all_subjects = {subject.name for subject in (*OURS, *AT_HAND)}
    assert all_subjects < subjects(ask("small"))
    assert all_subjects == subjects(ask("sparse"), "every 2 ms")
    assert all_subjects < subjects(ask("record"))
    for size in ("1", "1,000,000"):
        assert all_subjects < subjects(ask("payload-bytes"), size)
    assert {each.line.case for each in ask("payload-ints")} == {"1"}
    assert all_subjects == subjects(ask("many-clients"), "1") == subjects(ask("many-clients"), "8")
    assert all_subjects == subjects(ask("idle"), "3 connections") == subjects(ask("memory"))
    assert all_subjects == subjects(ask("startup"), "connection")
    assert subjects(ask("startup"), "server") == all_subjects - {"multiprocessing Pipe"}
    with_loop = {subject.name for subject in (*OURS, *AT_HAND) if subject.loop != "none"}
    assert with_loop == subjects(ask("in-flight"), "64") == subjects(ask("streams"))
    assert with_loop == subjects(ask("open-loop"), "200 a second")
    assert with_loop | {"multiprocessing Pipe", bulk.FLOOR, "memcpy, one place"} == subjects(ask("bulk"), "copied")


def test_locks_and_signals_are_asked_for_what_they_can_do(ask: AskQuestion) -> None:
    subjects_ = [*NAMES, *EQUALS_AT_HAND]
    locks = {subject.name for subject in subjects_ if "lock" in subject.abilities}
    assert subjects(ask("contention"), "8 processes") == locks
    assert subjects(ask("acquire"), "threads") | subjects(ask("acquire"), "asyncio") == locks
    signals = {subject.name for subject in subjects_ if "signals" in subject.abilities}
    assert signals == subjects(ask("signals"), "busy") == subjects(ask("signals"), "asleep")


def test_queues_are_asked_for_what_they_can_do(ask: AskQuestion) -> None:
    subjects_ = [*QUEUES, *QUEUES_AT_HAND]
    for name, ability in ((queue_batches.NAME, "queue"), (queue_single.NAME, "queue, one")):
        assert {each.line.case for each in ask(name)} == {case for case, _, _ in queue_batches.cases()}
        able = {subject.name for subject in subjects_ if ability in subject.abilities}
        assert able == subjects(ask(name), "ints, 3 to 3") == subjects(ask(name), "50 bytes, 1 to 3")
    assert able == subjects(ask(queue_hand_over.NAME), "awake") == subjects(ask(queue_hand_over.NAME), "asleep")
    assert able == subjects(ask(queue_idle.NAME), "3 processes")
    assert able == subjects(ask(queue_crowd.NAME), "one at a time, 4 to 4")
    assert {each.subject for each in ask(queue_study.NAME) if each.line.case == "64 B, 1 to 1"} == {
        queue_study.batches(count) for count in queue_study.BATCHES
    }


def test_topics_are_asked_for_what_they_can_do(ask: AskQuestion) -> None:
    able = {subject.name for subject in (*TOPICS, *TOPICS_AT_HAND) if "topic" in subject.abilities}
    for name in (topic_batches.NAME, topic_single.NAME):
        assert able == subjects(ask(name), "ints, 1 to 1") == subjects(ask(name), "50 bytes, 1 to 3")
    for how in (topic_readers.BUSY, topic_readers.ASLEEP):
        assert able == subjects(ask(topic_readers.NAME), topic_readers.case(how, 8))
    assert able == subjects(ask(topic_hand_over.NAME), "awake") == subjects(ask(topic_hand_over.NAME), "asleep")
    arrays = {subject.name for subject in (*TOPICS, *TOPICS_AT_HAND) if "topic, arrays" in subject.abilities}
    assert arrays == subjects(ask(topic_arrays.NAME), topic_arrays.CASE)
    studied = {subject.name for subject in (*STUDIED, *TOPICS_AT_HAND) if "study" in subject.abilities}
    for readers in topic_study.READERS:
        assert studied == subjects(ask(topic_study.NAME), topic_study.case(100_000, readers))


def test_stores_are_asked_for_what_they_can_do(ask: AskQuestion) -> None:
    subjects_ = [*STORES, *STORES_AT_HAND]
    able = {subject.name for subject in subjects_}
    for writers in store_players.WRITERS:
        assert able == subjects(ask(store_players.NAME), store_players.case(writers))
    for case in (store_field.added(8), store_field.ALONE):
        assert able == subjects(ask(store_field.NAME), case)
    beside = {subject.name for subject in subjects_ if "store, read beside" in subject.abilities}
    assert beside == subjects(ask(store_field.NAME), store_field.BESIDE)
    dicts = {subject.name for subject in subjects_ if "store, dict" in subject.abilities}
    assert dicts == subjects(ask(store_dict.NAME), store_dict.GET)
    whole = {subject.name for subject in subjects_ if "store, transaction" in subject.abilities}
    assert whole == subjects(ask(store_transaction.NAME))
    assert subjects(ask(store_memory.NAME), store_memory.LIST) == {"shmrpc store", store_memory.PLAIN}
    assert subjects(ask(store_messages.NAME)) == {INBOX.name}


def test_pools_are_asked_for_what_they_can_do(ask: AskQuestion) -> None:
    able = {subject.name for subject in (*POOLS, *POOLS_AT_HAND)}
    assert able | {pool_run.CALL} == subjects(ask(pool_run.NAME))
    for question in (pool_submit, pool_map, pool_replacement):
        assert able == subjects(ask(question.NAME))
    assert able | {pool_mixed.FLOOR} == subjects(ask(pool_mixed.NAME))
    assert able == subjects(ask(pool_broadcast.NAME), "1 MiB")
    assert able == subjects(ask(pool_results.NAME), pool_results.case("array", 1_000_000))
    assert {each.name for each in POOLS[:2]} == subjects(ask(pool_fractals.NAME))


def test_only_the_studies_are_asked_by_name_alone() -> None:
    apart = [name for name, question in QUESTIONS.items() if question.apart]
    stores = (store_players, store_field, store_dict, store_transaction, store_memory, store_messages)
    assert apart == [queue_study.NAME, topic_study.NAME, pool_study.NAME, *(each.NAME for each in stores)]


def test_the_floors_are_there(ask: AskQuestion) -> None:
    assert {each.role for each in ask("floors")} == {"floor"}
    for name in ("small", "record", "payload-bytes", "bulk", "frame", "shared-bytes"):
        assert "floor" in {each.role for each in ask(name)}, name


def test_bulk_is_counted_in_bytes(ask: AskQuestion) -> None:
    for each in ask("bulk"):
        assert each.calls_per_second is not None
        assert each.value == pytest.approx(each.calls_per_second * 400_000 / 1e9)


def test_every_target_of_the_questions_is_judged(ask: AskQuestion) -> None:
    judged = verdicts([each for name in ASKED for each in ask(name)])
    # All but those that are set against rivals which did not take part.
    assert len(judged) == (104 if hosts.NAME in ASKED else 103)
    assert {type(verdict.met) for verdict in judged} == {bool}
