"""The pictures of the README, by matplotlib, which is needed for nothing else."""

from __future__ import annotations

import importlib
import importlib.util
from pathlib import Path
from typing import Any, Final

from benchmark.report.charts import Chart, experiment, latency, scaling, sizes, study, ticks
from benchmark.report.files import Outcome
from benchmark.report.plots import LIGHT, numbered
from benchmark.rows import Role

_STYLES: Final[dict[Role, dict[str, Any]]] = {
    "ours": {"linewidth": 2.6},
    "rival": {"linewidth": 1.2, "linestyle": "--"},
    "floor": {"linewidth": 1.2, "linestyle": ":"},
}


class NoMatplotlib(RuntimeError):
    """There will be no pictures; says why."""


def check() -> None:
    """Raises NoMatplotlib."""
    if importlib.util.find_spec("matplotlib") is None:
        raise NoMatplotlib("pictures are drawn with matplotlib, which is not installed: pip install --group plots")


def draw(outcome: Outcome, directory: Path) -> list[Path]:
    """Draws a picture of each kind of which there are figures, such as latency.png; returns what was written."""
    check()
    kinds = {"latency": latency, "sizes": sizes, "scaling": scaling, "queues": study, "topics": experiment}
    found = {name: charts(outcome.rows) for name, charts in kinds.items()}
    made = []
    for name, charts in found.items():
        if charts:
            made.append(directory / f"{name}.png")
            # Of the open loops the last one, at which most is asked, has no room beside the others.
            _draw(charts[:2], made[-1])
    return made


def _draw(charts: list[Chart], path: Path) -> None:
    # Not by a statement: a type checker must not need it either.
    figure = importlib.import_module("matplotlib.figure").Figure(figsize=(6.2 * len(charts), 6), layout="constrained")
    for panel, chart in zip(figure.subplots(1, len(charts), squeeze=False)[0], charts, strict=True):
        for each, number in numbered(chart.series):
            x, y = zip(*each.points, strict=True)
            mark = "o" if chart.marks else ""
            panel.loglog(
                x, y, marker=mark, markersize=4, label=each.name, color=LIGHT[each.role][number], **_STYLES[each.role]
            )
        panel.set(title=chart.title, xlabel=chart.x, ylabel=chart.y)
        heights = [y for each in chart.series for _, y in each.points]
        for axis, found in ((panel.xaxis, chart.ticks), (panel.yaxis, ticks(min(heights), max(heights)))):
            axis.set_ticks([place for place, _ in found], [text for _, text in found])
            axis.set_ticks([], minor=True)
        panel.grid(visible=True, which="major", alpha=0.3)
        panel.legend(fontsize="small", frameon=False, ncols=2, loc="upper left", bbox_to_anchor=(0, -0.12))
    figure.savefig(path, format="png", dpi=110)
