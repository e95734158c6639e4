"""The sweep as a picture, by matplotlib, which is needed for nothing else."""

from __future__ import annotations

import importlib
import importlib.util
from pathlib import Path

import click

from benchmark.rows import Row
from benchmark.sweep import KINDS, lines


def check(path: Path) -> None:
    """Raises before anything is measured if there will be no picture."""
    if importlib.util.find_spec("matplotlib") is None:
        raise click.UsageError("--plot draws with matplotlib, which is not installed: pip install --group plots")
    if not path.parent.is_dir():
        raise click.UsageError(f"--plot {path}: there is no directory {path.parent}")


def draw(rows: list[Row], path: Path) -> None:
    """Round trips in microseconds over lengths, both logarithmic; a panel for ints and one for bytes."""
    # Not by a statement: a type checker must not need it either.
    figure = importlib.import_module("matplotlib.figure").Figure(figsize=(11, 4.5), layout="constrained")
    panels = figure.subplots(1, len(KINDS), sharey=True)
    for panel, (kind, title) in zip(panels, KINDS.items(), strict=True):
        for name, line in lines(rows, kind).items():
            lengths = sorted(line)
            panel.loglog(lengths, [line[length].p50 for length in lengths], marker="o", label=name)
        panel.set(title=title, xlabel="length")
        panel.grid(visible=True, which="both", alpha=0.3)
        panel.legend()
    panels[0].set_ylabel("µs, there and back")
    figure.savefig(path, format="png", dpi=150)
