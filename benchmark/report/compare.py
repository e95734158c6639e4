"""Comparison of two runs: what became slower or faster, and the probability that chance alone did that."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import Any, Final, Literal

from benchmark.report.figures import heading, measured, times
from benchmark.report.files import Outcome
from benchmark.report.tables import Cells, Column, Table, Tone
from benchmark.rows import Row

#: A change counts if chance alone would bring it about no more often than this.
LEVEL: Final = 0.05
#: The largest slowdown of one of our rows that ``--fail`` accepts.
ALLOWED: Final = 1.05

Verdict = Literal["slower", "faster", "within noise", "too few rounds", "failed"]
_TONES: Final[dict[Verdict, Tone]] = {
    "slower": "lost",
    "faster": "won",
    "within noise": "context",
    "too few rounds": "even",
    "failed": "lost",
}


@dataclasses.dataclass(frozen=True)
class Change:
    """A row of both runs."""

    old: Row
    new: Row

    @property
    def verdict(self) -> Verdict:
        """The verdict on the change."""
        if not self.new.rounds:
            return "failed"
        if least_p(len(self.old.rounds), len(self.new.rounds)) > LEVEL:
            return "too few rounds"
        if self.p > LEVEL or self.worse == 1:
            return "within noise"
        return "slower" if self.worse > 1 else "faster"

    @property
    def worse(self) -> float:
        """The ratio of the figures, new to old: more than one is slower."""
        old, new = self.old.value or 0.0, self.new.value or 0.0
        if self.old.line.higher_is_better:
            old, new = new, old
        if old == new:
            return 1.0
        if min(old, new) <= 0:  # Of nothing, or less, there is no ratio, but a direction.
            return math.inf if new > old else 0.0
        return new / old

    @property
    def p(self) -> float:
        """The probability of such a difference, or a larger one, by chance alone."""
        return rank_sum_p(self.old.rounds, self.new.rounds)

    @property
    def fails(self) -> bool:
        """True if the row is ours, and its slowdown is larger than accepted."""
        if self.new.role != "ours":
            return False
        return self.verdict == "failed" or (self.verdict == "slower" and self.worse > ALLOWED)


@dataclasses.dataclass(frozen=True)
class Comparison:
    """Two runs, row by row."""

    #: Changes, the worst first.
    changes: list[Change]
    only_old: list[Row]
    only_new: list[Row]

    @property
    def judged(self) -> int:
        """In how many rows there are rounds enough for a verdict."""
        return sum(change.verdict != "too few rounds" for change in self.changes)


def compare(old: Outcome, new: Outcome) -> Comparison:
    """By line and subject."""
    # A row without figures has nothing to be compared; one that had some and now says why it has none, failed.
    before, after = ({(row.line, row.subject): row for row in outcome.rows} for outcome in (old, new))
    changes = [
        Change(row, after[key])
        for key, row in before.items()
        if key in after and row.rounds and (after[key].rounds or after[key].note)
    ]
    changes.sort(key=lambda change: (change.verdict != "failed", -change.worse))
    return Comparison(
        changes,
        [row for key, row in before.items() if row.rounds and key not in after],
        [row for key, row in after.items() if row.rounds and (key not in before or not before[key].rounds)],
    )


def least_p(first: int, second: int) -> float:
    """Return the least that this many rounds can give: when all of one run are beyond all of the other."""
    return min(1.0, 2 / math.comb(first + second, first))


def rank_sum_p(first: Sequence[float], second: Sequence[float]) -> float:
    """Return the p value of Mann and Whitney's two-sided test, also for equal figures.

    It is the share of all assignments of the figures to the two runs whose rank sum is at least as far from its mean;
    of 10,000 random ones if there are more.
    """
    from scipy import stats  # Slow to import, and needed only here.

    if min(len(first), len(second)) < 2:
        return 1.0  # SciPy needs two figures on each side, and one proves nothing.
    count = len(first)
    ranks = stats.rankdata([*first, *second])
    mean = count * (len(ranks) + 1) / 2

    def distance(ranks_of_first: Any) -> float:
        return abs(float(sum(ranks_of_first)) - mean)

    samples = ranks[:count], ranks[count:]
    test = stats.permutation_test(
        samples, lambda one, _: distance(one), n_resamples=10_000, alternative="greater", rng=0
    )
    return float(test.pvalue)


def table(comparison: Comparison) -> Table:
    """Return the changes, the worst first."""
    columns = (
        Column("line", right=False),
        Column("subject", right=False),
        Column("", right=False),
        Column("time or cost, new / old"),
        Column("p"),
        Column("old"),
        Column("new"),
        Column("figure", right=False, minor=True),
    )
    rows = []
    for change in comparison.changes:
        known = bool(change.new.rounds)
        texts = (
            str(change.new.line),
            change.new.subject,
            change.verdict,
            times(change.worse) if known else "",
            f"{change.p:.3f}" if known and change.verdict != "too few rounds" else "",
            measured(change.old),
            measured(change.new) or change.new.note,
            heading(change.new.line),
        )
        rows.append(Cells(texts, _TONES[change.verdict]))
    about = "More than 1: it became worse, a rate as well as a time."
    return Table("What changed", about, columns, (tuple(rows),))


def remarks(old: Outcome, new: Outcome, comparison: Comparison) -> list[str]:
    """Return remarks that a reader needs before the table."""
    made = []
    for name in ("cpu", "usable cpus", "virtual machine", "kernel", "python", "pinned"):
        before, after = old.environment.get(name), new.environment.get(name)
        if before != after:
            made.append(f"The runs are not of one kind: {name} {before} and {after}.")
    if old.form != new.form:
        made.append(f"The runs are not of one form: {old.form} and {new.form}.")
    made += [f"The {word} run is incomplete." for word, run in (("old", old), ("new", new)) if not run.complete]
    compared = len(comparison.changes)
    few = compared - comparison.judged
    if few:
        first = next(change for change in comparison.changes if change.verdict == "too few rounds")
        counts = len(first.old.rounds), len(first.new.rounds)
        made.append(
            f"{few} of {compared} rows have too few rounds: {counts[0]} against {counts[1]} cannot give a p below "
            f"{least_p(*counts):.2g}, and {LEVEL} is asked for. It takes 4 against 4; --full has 5."
        )
    if comparison.judged:
        made.append(
            f"A change counts at p ≤ {LEVEL}. Of {comparison.judged} rows chance alone makes about "
            f"{LEVEL * comparison.judged:.0f} look changed. p says whether the rounds of the two runs differ, not why: "
            "a machine that was busier, or placed elsewhere, makes them differ too."
        )
    return made
