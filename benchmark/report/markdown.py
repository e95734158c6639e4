"""The tables that README.md and benchmark/README.md hold."""

from __future__ import annotations

from typing import Final

from benchmark import environment
from benchmark.report import tables
from benchmark.report.files import Outcome
from benchmark.report.standings import standings
from benchmark.report.tables import Table, Tone

_MARKS: Final[dict[Tone, str]] = {"ours": "**", "floor": "*", "lost": "**", "missed": "**"}


def markdown(outcome: Outcome) -> str:
    """First the table of standings, which both hold, then those of the questions and targets."""
    stands = standings(outcome.rows)
    parts = [_table(tables.summary(stands)), tables.tally(stands)]
    if not outcome.complete:
        parts.insert(0, "**Incomplete**: this run was ended before its time.")
    lost = tables.losses(stands)
    if lost:
        parts.append("\n".join(f"- Lost: {_safe(loss)}" for loss in lost))
    if outcome.targets:
        parts.append(_section(tables.targets(outcome)))
    parts += [_section(table) for table in tables.questions(outcome)]
    if outcome.absent:
        absent = "\n".join(f"- {_safe(name)}: {_safe(reason)}" for name, reason in outcome.absent.items())
        parts.append(f"### Not measured\n\n{absent}")
    known = "\n".join(f"- {name}: {_safe(text)}" for name, text in environment.lines(outcome.environment))
    parts.append(f"### Environment\n\n- form: {outcome.form}\n{known}")
    return "\n\n".join(parts) + "\n"


def _section(table: Table) -> str:
    about = f"{table.about}\n\n" if table.about else ""
    return f"### {_safe(table.title)}\n\n{about}{_table(table)}"


def _table(table: Table) -> str:
    rows = [[column.name for column in table.columns], ["---:" if column.right else "---" for column in table.columns]]
    for group in table.groups:
        for cells in group:
            mark = _MARKS.get(cells.tone, "")
            rows.append([f"{mark}{_safe(text)}{mark}" if text else "" for text in cells.texts])
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def _safe(text: str) -> str:
    for special in "\\|*_<`":
        text = text.replace(special, f"\\{special}")
    return " ".join(text.split())
