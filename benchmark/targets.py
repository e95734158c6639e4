"""The targets, compared with the result of a run."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Final

from benchmark import (
    hosts_targets,
    large_targets,
    pool_targets,
    queue_targets,
    sharing_targets,
    store_targets,
    topic_targets,
)
from benchmark.questions import (
    beside_idle,
    idle,
    in_flight,
    many_clients,
    memory,
    options,
    record,
    small,
    sparse,
    streams,
    threads,
    ticker,
)
from benchmark.questions.crowds import LEAST
from benchmark.questions.payload import FLOOR as CODEC
from benchmark.rows import Row
from benchmark.verdict import RowIndex, Target, Verdict

#: The hand-written socket that these targets were set against.
_SOCKET: Final = "socket, msgpack, uvloop"
_OURS: Final = ("shmrpc, uvloop", "shmrpc, asyncio")
_SYNC: Final = "shmrpc, sync"


def verdicts(rows: Sequence[Row]) -> list[Verdict]:
    """Return the verdict on each target whose questions were asked."""
    found = RowIndex(rows)
    others = (
        hosts_targets,
        large_targets,
        sharing_targets,
        queue_targets,
        topic_targets,
        pool_targets,
        store_targets,
    )
    targets = (*_targets(), *(target for module in others for target in module.targets()))
    judged = (target.verdict(found) for target in targets)
    return [verdict for verdict in judged if verdict is not None]


def _targets() -> Iterator[Target]:
    for ours in _OURS:
        for what, target, judge in _OF_A_CALL:
            yield Target(f"{what}, {ours}", target, functools.partial(judge, ours=ours))
    for loop in ("uvloop", "asyncio"):
        yield Target(
            f"thread to thread, p50, {loop}", "≤ 3 × process to process", functools.partial(_thread, loop=loop)
        )
    yield Target("sync client, p50", "no slower than async", _sync)
    yield Target(f"a record, p50, {_SYNC}", "≥ 85 % is the codec's", functools.partial(_record, ours=_SYNC))
    for side in ("server", "client"):
        idling = functools.partial(_idle, side=side)
        yield Target(f"100 idle connections, {side}", "< 10 ms in 10 s, no periodic wake-ups", idling)
    yield Target("a busy connection beside 100 idle ones", "loses ≤ 10 %", _beside)
    yield Target("memory for one more idle connection", "< 256 KiB", _memory)
    for form in ("under a deadline", "under a deadline, said each time"):
        yield Target(f"a call {form}", "≤ 0.3 µs more", functools.partial(_deadline, form=form))
    yield Target("map() of the small call", "≥ 1,000,000/s", _mapped)


def _small(found: RowIndex, ours: str) -> tuple[str, bool]:
    own, peer = (found.value(small.NAME, "", name) for name in (ours, _SOCKET))
    floor = found.value(small.NAME, "", small.FLOOR)
    return f"{own:.2f} µs, {peer / own:.0f} times (floor {floor:.2f} µs)", peer >= 30 * own and own <= 2


def _sparse(found: RowIndex, ours: str) -> tuple[str, bool]:
    own, peer = (found.value(sparse.NAME, sparse.CASE, name) for name in (ours, _SOCKET))
    return f"{own:.1f} µs against {peer:.1f}, {own / peer:.2f} ×", own <= 1.2 * peer


def _in_flight(found: RowIndex, ours: str) -> tuple[str, bool]:
    own, peer = (found.value(in_flight.NAME, "64", name) for name in (ours, _SOCKET))
    return f"{own:,.0f}/s, {own / peer:.1f} ×", own >= 2 * peer


def _many(found: RowIndex, ours: str) -> tuple[str, bool]:
    own, peer = (found.value(many_clients.NAME, "8", name) for name in (ours, _SOCKET))
    least = found.extra(many_clients.NAME, "8", ours, LEAST)
    text = f"{own:,.0f}/s, {own / peer if peer else math.inf:.1f} ×; the least served has {least:.0%} of a fair share"
    return text, own >= 1.5 * peer and least > 0.1


def _thread(found: RowIndex, loop: str) -> tuple[str, bool]:
    thread, process = (found.value(threads.NAME, "small", f"shmrpc, {form}{loop}") for form in ("two threads, ", ""))
    return f"{thread:.2f} µs, {thread / process:.2f} ×", thread <= 3 * process


def _sync(found: RowIndex) -> tuple[str, bool]:
    own, other = (found.value(small.NAME, "", name) for name in (_SYNC, _OURS[0]))
    return f"{own:.2f} µs against {other:.2f}", own <= other * 1.02


def _record(found: RowIndex, ours: str) -> tuple[str, bool]:
    own, codec = (found.value(record.NAME, "", name) for name in (ours, CODEC))
    return f"{own:.0f} µs, the codec's {codec:.0f}: {codec / own:.0%}", codec >= 0.85 * own


def _idle(found: RowIndex, side: str) -> tuple[str, bool]:
    case = found.case(idle.NAME)
    cpu, wakes, seconds = (
        found.extra(idle.NAME, case, _OURS[0], name) for name in (f"{side} CPU ms", f"{side} wake-ups", "seconds")
    )
    return f"{cpu:.2f} ms, {wakes:.0f} wake-ups in {seconds:.0f} s", cpu < 10 and wakes < 5


def _beside(found: RowIndex) -> tuple[str, bool]:
    case = found.case(beside_idle.NAME)
    alone, beside = (found.value(beside_idle.NAME, case, name) for name in (beside_idle.ALONE, beside_idle.BESIDE))
    return f"{beside:,.0f}/s against {alone:,.0f} alone: {1 - beside / alone:+.1%} lost", beside >= 0.9 * alone


def _ticker(found: RowIndex, ours: str) -> tuple[str, bool]:
    late = found.value(ticker.NAME, "", ours)
    return f"{late / 1e3:.2f} ms", late < 2000


def _memory(found: RowIndex) -> tuple[str, bool]:
    shared, *private = (
        found.extra(memory.NAME, "", _OURS[0], name) for name in (memory.SHARED, memory.SERVER, memory.CLIENT)
    )
    return f"{shared:.0f} KiB shared + {sum(private):.0f} KiB private", shared + sum(private) < 256


def _stream(found: RowIndex, ours: str) -> tuple[str, bool]:
    # A write on asyncio's transport is a send; uvloop's gathers those of one turn of the loop.
    own, peer, gathering = (found.value(streams.NAME, "", name) for name in (ours, "socket, msgpack, asyncio", _SOCKET))
    text = f"{own:,.0f}/s, {own / peer:.1f} × ({own / gathering:.1f} × uvloop's socket)"
    return text, own >= 5 * peer


def _deadline(found: RowIndex, form: str) -> tuple[str, bool]:
    under, plain = (found.value(options.NAME, options.ONE, name) for name in (form, options.PLAIN))
    return f"{under - plain:+.2f} µs", under - plain <= 0.3


def _mapped(found: RowIndex) -> tuple[str, bool]:
    mapped = found.value(options.NAME, options.MANY, options.MAPPED)
    return f"{mapped:,.0f}/s", mapped >= 1_000_000


#: Targets of both of our loops.
_OF_A_CALL: Final[tuple[tuple[str, str, Callable[..., tuple[str, bool]]], ...]] = (
    ("small call, p50", "30 × the socket, ≤ 2.0 µs", _small),
    ("a call every 2 ms, p50", "≤ 1.2 × the socket", _sparse),
    ("64 tasks in flight", "≥ 2 × the socket", _in_flight),
    ("a record, p50", "≥ 85 % is the codec's", _record),
    ("items of a stream", "≥ 5 × the socket, sent one by one", _stream),
    ("1 ms ticker beside a calling task", "p99 lateness < 2 ms", _ticker),
    ("8 client processes", "≥ 1.5 × the socket, none starves", _many),
)
