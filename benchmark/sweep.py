"""The question of size: lists of ints and bytes, ten of them to a million."""

from __future__ import annotations

from typing import Final

from rich.table import Table

from benchmark.large import PROCESSES
from benchmark.loads import Result
from benchmark.rows import Row, row
from benchmark.subjects import Run, Subject, subjects_of

LENGTHS: Final = tuple(10**power for power in range(1, 7))
KINDS: Final = {"ints": "lists of ints", "bytes": "bytes"}


def sweep(run: Run) -> list[Row]:
    """Every length of both kinds, there and back."""
    results: dict[tuple[str, int, str], list[Result]] = {}
    cells = [(kind, length) for kind in KINDS for length in LENGTHS]
    with subjects_of(*PROCESSES) as subjects:
        for number in range(run.rounds):
            for kind, length in cells:
                run.progress(f"sweep: round {number + 1} of {run.rounds}, {KINDS[kind]}, {length:,}")
                for subject in subjects:
                    results.setdefault((kind, length, subject.name), []).append(_echo(run, subject, kind, length))
    return [_row(*cell, rounds) for cell, rounds in results.items()]


def _echo(run: Run, subject: Subject, kind: str, length: int) -> Result:
    return subject.do("sweep", of=kind, length=length, seconds=max(0.01, 0.15 * run.scale))


def _row(kind: str, length: int, name: str, rounds: list[Result]) -> Row:
    made = row(f"{length:,} {kind}", name, rounds)
    size = rounds[0]["size"]
    made.extra = {"length": length, "bytes": size, "MB/s": 2 * size / (made.p50 or 1.0)}
    return made


def is_swept(row: Row) -> bool:
    """Whether a row is of the sweep: it has a table of its own."""
    return "length" in row.extra


def lines(rows: list[Row], kind: str) -> dict[str, dict[int, Row]]:
    """The rows of one kind, by subject and length."""
    made: dict[str, dict[int, Row]] = {}
    for each in rows:
        if is_swept(each) and each.question.endswith(f" {kind}"):
            made.setdefault(each.subject, {})[int(each.extra["length"])] = each
    return made


def table(rows: list[Row]) -> Table:
    """Microseconds for a round trip, and megabytes of MessagePack a second in both directions together."""
    made = Table(title="There and back; MB/s are of MessagePack, both ways together")
    by_kind = {kind: lines(rows, kind) for kind in KINDS}
    names = list(dict.fromkeys(name for found in by_kind.values() for name in found))
    made.add_column("what")
    made.add_column("length", justify="right", min_width=len(f"{LENGTHS[-1]:,}"))
    for name in names:
        made.add_column(f"{name}, µs", justify="right")
        made.add_column("MB/s", justify="right")
    for kind, found in by_kind.items():
        for length in sorted({length for line in found.values() for length in line}):
            cells = [text for name in names for text in _cells(found[name][length])]
            made.add_row(kind, f"{length:,}", *cells)
        made.add_section()
    return made


def _cells(row: Row) -> tuple[str, str]:
    return _figure(row.p50 or 0.0), _figure(row.extra["MB/s"])


def _figure(value: float) -> str:
    return f"{value:,.1f}" if value < 1000 else f"{value:,.0f}"
