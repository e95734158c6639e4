"""Rows of a run: one for each subject of each line; a line is a case of a question."""

from __future__ import annotations

import dataclasses
import math
import statistics
from collections.abc import Iterable, Sequence
from typing import Final, Literal

from benchmark.durations import Durations
from benchmark.results import Result

#: A subject is ours, a rival, or a floor: what the machine or the codec takes by itself. The rest is
#: shown but not compared, as a direct call is.
Role = Literal["ours", "rival", "floor", "context"]
#: Which of a result's figures decides a line. ``cpu`` is for a call; anything else stands among the extras.
LeadingFigure = Literal["p50", "p99", "rate", "cpu"] | str

_PERCENTILES: Final = {"p50": 0.5, "p90": 0.9, "p99": 0.99, "p999": 0.999}
#: The probability with which an interval contains the median, with enough rounds; of five, from least to most.
CONFIDENCE: Final = 0.9


@dataclasses.dataclass(frozen=True)
class Line:
    """A case of a question, and by what its subjects are compared."""

    question: str
    case: str = ""
    lead: LeadingFigure = "p50"
    unit: str = "µs"
    higher_is_better: bool = False

    def __str__(self) -> str:
        return f"{self.question}, {self.case}" if self.case else self.question


@dataclasses.dataclass
class Row:
    """The medians over the rounds. Times in microseconds."""

    line: Line
    subject: str
    role: Role
    #: The leading figure of each round.
    rounds: list[float] = dataclasses.field(default_factory=list)
    p50: float | None = None
    p90: float | None = None
    p99: float | None = None
    p999: float | None = None
    longest: float | None = None
    calls_per_second: float | None = None
    #: CPU time of all processes of the subject for one call.
    cpu: float | None = None
    #: Figures without a column.
    extra: dict[str, float] = dataclasses.field(default_factory=dict)
    #: The distribution over all rounds: microseconds, and the share of the calls that took no longer.
    steps: list[tuple[float, float]] = dataclasses.field(default_factory=list)
    #: Why there are no figures.
    note: str = ""

    @property
    def value(self) -> float | None:
        """The median of the rounds' leading figures."""
        return statistics.median(self.rounds) if self.rounds else None

    @property
    def interval(self) -> tuple[float, float] | None:
        """Where the median of many more rounds would lie; see :func:`interval`."""
        return interval(self.rounds) if self.rounds else None

    def beats(self, other: Row) -> bool:
        """Return True if its leading figure is the better one."""
        assert self.value is not None
        assert other.value is not None
        return self.value > other.value if self.line.higher_is_better else self.value < other.value

    def times_better(self, other: Row) -> float:
        """Return the ratio to another row of the same line; more than 1 is better."""
        mine, theirs = self.value or math.nan, other.value or math.nan
        return mine / theirs if self.line.higher_is_better else theirs / mine


def interval(rounds: Sequence[float]) -> tuple[float, float]:
    """Return the narrowest pair of rounds that contains the median with a probability of 90 % or more.

    It supposes nothing about how the figures are spread. Fewer than five rounds cannot be as sure: then it is the
    least and the most.
    """
    known, count = sorted(rounds), len(rounds)
    outside, skip = 0.0, 0
    while skip < count // 2:
        outside += 2 * math.comb(count, skip) / 2**count
        if outside > 1 - CONFIDENCE:
            break
        skip += 1
    skip = max(0, skip - 1)
    return known[skip], known[-1 - skip]


def row(line: Line, subject: str, role: Role, results: Iterable[Result]) -> Row:
    """Return the row for the rounds of one subject."""
    known = list(results)
    made = Row(line, subject, role)
    timed = [result.times for result in known if result.times is not None and len(result.times)]
    if timed:
        for name, share in _PERCENTILES.items():
            setattr(made, name, statistics.median(times.percentile(share) for times in timed))
        made.longest = max(times.longest for times in timed) / 1e3
        together = sum(timed, Durations())
        made.steps = [(round(time, 3), share) for time, share in together.steps()]
    counted = [result for result in known if result.calls]
    if counted:
        made.calls_per_second = statistics.median(result.calls / result.seconds for result in counted)
        made.cpu = statistics.median(result.cpu / result.calls * 1e6 for result in counted)
    for name in dict.fromkeys(name for result in known for name in result.extra):
        made.extra[name] = statistics.median(result.extra[name] for result in known if name in result.extra)
    made.rounds = [figure(result, line.lead) for result in known]
    return made


def figure(result: Result, lead: LeadingFigure) -> float:
    """Return the leading figure of one round."""
    if lead == "rate":
        return result.calls / result.seconds
    if lead == "cpu":
        return result.cpu / result.calls * 1e6
    if lead in result.extra:
        return result.extra[lead]
    assert result.times is not None, lead
    return result.times.percentile(_PERCENTILES[lead])
