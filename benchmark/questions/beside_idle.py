"""A busy connection of ours, alone and beside 100 idle ones between the same two processes (20 in the quick form)."""

from __future__ import annotations

import dataclasses
from typing import Final

from benchmark.processes import Failed
from benchmark.questions.chosen import our_uvloop
from benchmark.questions.connections import hold
from benchmark.rows import Line, Row
from benchmark.run import Run, Trial

NAME: Final = "beside-idle"
TITLE: Final = "A busy connection beside idle ones"

ALONE, BESIDE = "alone", "beside idle ones"


def ask(run: Run) -> list[Row]:
    """Ask ours alone, on uvloop, beside servers with processes of their own."""
    line = Line(NAME, f"{run.form.connections} connections", "rate", "/s", higher_is_better=True)
    rows = []
    for alone in our_uvloop(run):
        beside = dataclasses.replace(alone, name=f"{alone.name}, {BESIDE}")
        with run.pairs([alone, beside]) as pairs:
            try:
                for pair in pairs[1:]:
                    hold(pair, run.form.connections)
                turns = [
                    Trial(pair, "benchmark.loads:one_after_another", {}, name)
                    for pair, name in zip(pairs, (ALONE, BESIDE), strict=False)
                ]
                rows += run.turns(line, turns)
            except Failed as error:
                rows.append(Row(line, BESIDE, "ours", note=f"failed: {error}"))
            finally:
                run.part(beside.name)
        rows += run.notes(line, [alone, beside])
    return rows
