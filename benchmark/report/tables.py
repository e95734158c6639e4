"""The report as tables of texts, which the terminal, the page and the README format in their own ways."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Final, Literal

from benchmark.questions import QUESTIONS
from benchmark.report.figures import heading, measured, short, span, times
from benchmark.report.files import Outcome
from benchmark.report.standings import Floors, LineStanding, best, by_line, ratio_of
from benchmark.rows import Line, Row

#: The style of a row: by the role of its subject, or by the verdict on the line.
Tone = Literal["ours", "rival", "floor", "context", "won", "even", "lost", "alone", "met", "missed", "open"]

_WORDS: Final = {"won": "won", "even": "about even", "lost": "LOST", "alone": "no rival"}
#: The verdict on a target; None: not measured.
_VERDICTS: Final[dict[bool | None, tuple[str, Tone]]] = {
    True: ("met", "met"),
    False: ("MISSED", "missed"),
    None: ("not measured", "open"),
}
RATIOS: Final = (
    "“floor”: how many times the floor of its line a subject takes. “best rival”: how many times better than the best "
    "rival of its line it is; below 1: worse."
)


@dataclasses.dataclass(frozen=True)
class Column:
    """A column; ``minor``: the first to go where there is little room."""

    name: str
    right: bool = True
    minor: bool = False


@dataclasses.dataclass(frozen=True)
class Cells:
    """A row of texts."""

    texts: tuple[str, ...]
    tone: Tone


@dataclasses.dataclass(frozen=True)
class Table:
    """Columns, and rows in groups that belong together."""

    title: str
    about: str
    columns: tuple[Column, ...]
    groups: tuple[tuple[Cells, ...], ...]


def tally(standings: Sequence[LineStanding]) -> str:
    """Return the numbers of lines that are won, even and lost."""
    counts = Counter(each.standing for each in standings)
    competed = len(standings) - counts["alone"]
    return (
        f"shmrpc competes in {competed} lines: {counts['won']} won, {counts['even']} about even, {counts['lost']} lost."
    )


def losses(standings: Sequence[LineStanding]) -> list[str]:
    """Return each line that is lost, plainly, the worst first."""
    lost = sorted((each for each in standings if each.standing == "lost"), key=lambda each: each.ratio or 0.0)
    return [_loss(each) for each in lost]


def _loss(lost: LineStanding) -> str:
    assert lost.ours is not None
    assert lost.rival is not None
    behind = f" by {times(1 / lost.ratio)}" if lost.ratio else ""
    return (
        f"{lost.line}: {lost.rival.subject} is ahead{behind}: "
        f"{measured(lost.rival)} against {measured(lost.ours)} of {lost.ours.subject}."
    )


def summary(standings: Sequence[LineStanding]) -> Table:
    """Where we stand in each line."""
    columns = (
        Column("line", right=False),
        Column("", right=False),
        Column("best rival"),
        Column("floor"),
        Column("shmrpc"),
        Column("of which", right=False, minor=True),
        Column("rival"),
        Column("of which", right=False),
    )
    groups: dict[str, list[Cells]] = {}
    for each in standings:
        if each.ours is None:
            continue
        texts = (
            str(each.line),
            _WORDS[each.standing],
            times(each.ratio),
            times(each.floors),
            measured(each.ours),
            each.ours.subject,
            measured(each.rival),
            each.rival.subject if each.rival else "",
        )
        groups.setdefault(each.line.question, []).append(Cells(texts, each.standing))
    about = "Our best against the best rival. About even: the intervals over the rounds overlap."
    return Table("Standings", about, columns, tuple(map(tuple, groups.values())))


def targets(outcome: Outcome) -> Table:
    """Return the table of targets."""
    rows = []
    for verdict in outcome.targets:
        word, tone = _VERDICTS[verdict.met]
        rows.append(Cells((verdict.what, verdict.target, verdict.measured, word), tone))
    columns = tuple(Column(name, right=False) for name in ("what", "target", "measured", ""))
    return Table("Targets", "", columns, (tuple(rows),))


def questions(outcome: Outcome) -> list[Table]:
    """Return a table for each question, and for each leading figure that its lines have."""
    floors = Floors(outcome.rows)
    found: dict[tuple[str, str], dict[Line, list[Row]]] = {}
    for line, rows in by_line(outcome.rows).items():
        found.setdefault((line.question, heading(line)), {})[line] = rows
    return [_question(name, lines, floors) for (name, _), lines in found.items()]


def title(name: str) -> str:
    """Return the title of a question, also of one that no longer exists."""
    return QUESTIONS[name].title if name in QUESTIONS else name


def _question(name: str, lines: dict[Line, list[Row]], floors: Floors) -> Table:
    first = next(iter(lines))
    rivals = {line: best(rows, "rival") for line, rows in lines.items()}

    def against(row: Row) -> str:
        rival = rivals[row.line]
        if rival is None or row is rival or row.role not in ("ours", "rival"):
            return ""
        return times(ratio_of(row, rival))

    lead = heading(first)
    shown: list[tuple[Column, Callable[[Row], str]]] = [
        (Column("case", right=False), lambda row: row.line.case),
        (Column("subject", right=False), lambda row: row.subject),
        (Column("floor"), lambda row: times(floors.times(row))),
        (Column("best rival"), against),
        (Column(lead), lambda row: short(row.value)),
        (Column("interval", minor=True), span),
    ]
    if first.lead != "p50":
        shown.append((Column("p50, µs"), lambda row: short(row.p50)))
    shown.append((Column("p90, µs", minor=True), lambda row: short(row.p90)))
    if first.lead != "p99":
        shown.append((Column("p99, µs"), lambda row: short(row.p99)))
    shown.append((Column("p99.9, µs"), lambda row: short(row.p999)))
    shown.append((Column("max, µs", minor=True), lambda row: short(row.longest)))
    if first.lead != "rate":
        shown.append((Column("calls/s"), lambda row: short(row.calls_per_second)))
    if first.lead != "cpu":
        shown.append((Column("CPU/call, µs"), lambda row: short(row.cpu)))
    shown.append((Column("more", right=False), _more))
    rows = [row for own in lines.values() for row in own]
    # A figure that no row has needs no column.
    kept = [(column, text) for column, text in shown if any(map(text, rows))]
    groups = tuple(
        tuple(Cells(tuple(text(row) for _, text in kept), row.role) for row in sorted(own, key=_place))
        for own in lines.values()
    )
    about = QUESTIONS[name].about if name in QUESTIONS else ""
    return Table(title(name), about, tuple(column for column, _ in kept), groups)


def _place(row: Row) -> tuple[bool, float]:
    """Return the best first, and those without figures last."""
    value = row.value or 0.0
    return row.value is None, -value if row.line.higher_is_better else value


def _more(row: Row) -> str:
    extras = [f"{short(value)} {name}" for name, value in row.extra.items() if name != row.line.lead]
    return "; ".join(([row.note] if row.note else []) + extras)
