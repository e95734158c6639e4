"""Connections that are held for a while, which several questions ask for."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import Final

from benchmark.processes import Failed
from benchmark.rows import Line, Row
from benchmark.run import Pair, Run, module_of

#: Seconds for the slowest to connect.
_PATIENCE: Final = 60.0


def hold(pair: Pair, connections: int) -> None:
    """Let the client of a pair make more connections. Raises Failed."""
    pair.do(f"benchmark.{module_of(pair.subject)}:hold", connections=connections, patience=_PATIENCE)


def let_go(pair: Pair) -> None:
    """Let it close them."""
    pair.do(f"benchmark.{module_of(pair.subject)}:let_go", patience=_PATIENCE)


@contextlib.contextmanager
def held(run: Run, line: Line, pairs: Sequence[Pair], connections: int) -> Iterator[tuple[list[Pair], list[Row]]]:
    """Hold connections during a block: gives the pairs that hold them, and a row for each that cannot."""
    holding: list[Pair] = []
    rows: list[Row] = []
    for pair in pairs:
        run.progress(f"{line}: connecting, {pair.subject.name}")
        try:
            hold(pair, connections)
            holding.append(pair)
        except Failed as error:
            rows.append(Row(line, pair.subject.name, pair.subject.role, note=f"failed: {error}"))
            run.part(pair.subject.name)
    try:
        yield holding, rows
    finally:
        for pair in holding:
            try:
                let_go(pair)
            except Failed:
                run.part(pair.subject.name)
