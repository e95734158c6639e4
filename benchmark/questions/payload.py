"""Payloads there and back, which several questions ask for."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

import msgspec

from benchmark.payloads import payload
from benchmark.questions.chosen import of_payloads
from benchmark.rows import Line, Row
from benchmark.run import Run

#: The floor of each line.
FLOOR: Final = "codec alone"
#: Of a turn's length: there are many lines, and each turn has three calls at least.
_SHARE: Final = 0.4


def trips(run: Run, question: str, kind: str, sizes: Iterable[int]) -> list[Row]:
    """Return a line for each size."""
    return [
        row for size in sizes for row in trip(run, Line(question, f"{size:,}"), kind, size, run.form.seconds * _SHARE)
    ]


def trip(run: Run, line: Line, kind: str, size: int, seconds: float) -> list[Row]:
    """Ask every subject that can call, beside the codec alone."""
    floor = run.floor("codec", FLOOR, codec="msgspec", kind=kind, size=size)
    rows = run.line(line, of_payloads(run.able("call")), "echo", seconds=seconds, beside=floor, kind=kind, size=size)
    encoded = len(msgspec.msgpack.encode(payload(kind, size)))
    for row in rows:
        if row.p50 is not None:
            row.extra |= {"size": float(size or encoded), "MB/s": 2 * encoded / row.p50}
    return rows
