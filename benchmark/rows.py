"""What a run finds: one row for each question and subject."""

from __future__ import annotations

import dataclasses
import statistics
from collections.abc import Iterable

from benchmark.loads import Result


@dataclasses.dataclass
class Row:
    """The medians over the rounds. Times in microseconds."""

    question: str
    subject: str
    p50: float | None = None
    p99: float | None = None
    p999: float | None = None
    calls_per_second: float | None = None
    #: CPU time of client and server together for one call.
    cpu: float | None = None
    #: What does not fit into the columns.
    extra: dict[str, float] = dataclasses.field(default_factory=dict)
    #: Why there are no figures.
    note: str = ""


def percentile(latencies: list[int], share: float) -> float:
    """The latency, in microseconds, that this share of the calls stays below. ``latencies`` is sorted."""
    return latencies[min(len(latencies) - 1, int(len(latencies) * share))] / 1e3


def row(question: str, subject: str, rounds: Iterable[Result]) -> Row:
    """The row for the rounds of one subject."""
    results = list(rounds)
    made = Row(question, subject)
    timed = [sorted(result["latencies"]) for result in results if result["latencies"]]
    if timed:
        made.p50, made.p99, made.p999 = (
            statistics.median(percentile(latencies, share) for latencies in timed) for share in (0.5, 0.99, 0.999)
        )
    if any(result["calls"] for result in results):
        made.calls_per_second = statistics.median(result["calls"] / result["seconds"] for result in results)
        made.cpu = statistics.median(result["cpu"] / result["calls"] * 1e6 for result in results)
    return made
