"""The questions, a file each: what is asked of which subjects, and by which figure they are compared."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Final

from benchmark.questions import (
    acquire,
    anatomy,
    arrays,
    beside_idle,
    bulk,
    contention,
    cpu,
    floors,
    frame,
    hosts,
    idle,
    in_flight,
    many_clients,
    memory,
    open_loop,
    options,
    payload_bytes,
    payload_ints,
    pool_broadcast,
    pool_fractals,
    pool_map,
    pool_mixed,
    pool_replacement,
    pool_results,
    pool_run,
    pool_study,
    pool_submit,
    queue_arrays,
    queue_batches,
    queue_crowd,
    queue_growth,
    queue_hand_over,
    queue_idle,
    queue_single,
    queue_study,
    record,
    shared_bytes,
    signals,
    small,
    sparse,
    startup,
    store_dict,
    store_field,
    store_memory,
    store_messages,
    store_players,
    store_transaction,
    streams,
    threads,
    ticker,
    topic_arrays,
    topic_batches,
    topic_hand_over,
    topic_readers,
    topic_single,
    topic_study,
)
from benchmark.rows import Row
from benchmark.run import Run


@dataclasses.dataclass(frozen=True)
class Question:
    """A question, and what a reader should know about it."""

    ask: Callable[[Run], list[Row]]
    title: str
    about: str
    #: True if the question is asked only by name.
    apart: bool = False


#: Questions that are asked only by name.
_STORES: Final = (store_players, store_field, store_dict, store_transaction, store_memory, store_messages)
_APART: Final = (pool_study, queue_study, topic_study, *_STORES)

#: Questions of the studies: of pools, of queues in shared memory, and of objects.
STUDIES: Final = {
    "pools": (pool_study.NAME,),
    "topics": (topic_study.NAME,),
    "objects": tuple(module.NAME for module in _STORES),
}

#: In the order in which they are asked and shown.
QUESTIONS: Final = {
    module.NAME: Question(module.ask, module.TITLE, " ".join((module.__doc__ or "").split()), module in _APART)
    for module in (
        floors,
        small,
        anatomy,
        sparse,
        in_flight,
        open_loop,
        payload_bytes,
        payload_ints,
        record,
        bulk,
        streams,
        many_clients,
        cpu,
        idle,
        beside_idle,
        memory,
        startup,
        threads,
        options,
        ticker,
        arrays,
        frame,
        acquire,
        signals,
        contention,
        shared_bytes,
        hosts,
        queue_batches,
        queue_single,
        queue_hand_over,
        queue_arrays,
        queue_crowd,
        queue_growth,
        queue_idle,
        queue_study,
        topic_batches,
        topic_single,
        topic_readers,
        topic_arrays,
        topic_hand_over,
        topic_study,
        pool_run,
        pool_submit,
        pool_map,
        pool_mixed,
        pool_results,
        pool_broadcast,
        pool_replacement,
        pool_fractals,
        pool_study,
        *_STORES,
    )
}
