"""Figures that the tests measure: printed at the end of a run, and never asserted."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import Final

_figures: Final[dict[str, dict[str, str]]] = {}


def note(what: str, **figures: object) -> None:
    """Store figures of a row of docs/reliability.md: ``note("kill loop", kills=1000)``. Later values win."""
    _figures.setdefault(what, {}).update({name: str(figure) for name, figure in figures.items()})


def times(seconds: Sequence[float]) -> str:
    """Return the median and the longest of some times, in milliseconds, as text."""
    if not seconds:
        return "none"
    return f"median {statistics.median(seconds) * 1e3:.1f} ms, longest {max(seconds) * 1e3:.1f} ms of {len(seconds)}"


def lines() -> list[str]:
    """Return a line of text for each row."""
    return [
        f"{what}: " + "; ".join(f"{name.replace('_', ' ')} {figure}" for name, figure in sorted(figures.items()))
        for what, figures in sorted(_figures.items())
    ]
