"""The charts, drawn by matplotlib: as SVG for the page, and as PNG for the README."""

from __future__ import annotations

import io
import re
from collections import Counter
from collections.abc import Sequence
from html import escape
from pathlib import Path
from typing import Any, Final

from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator

from benchmark.report.charts import Bars, Chart, Series, experiment, latency, scaling, sizes, study
from benchmark.report.figures import short
from benchmark.report.files import Outcome
from benchmark.rows import Role

#: The colours of each role; further subjects use them again from the first one on.
_COLOURS: Final[dict[Role, tuple[str, ...]]] = {
    "ours": ("#2f7fe0", "#00988a", "#8f55d0", "#5a6672"),
    "rival": ("#c9751a", "#d6456f", "#8a9a10", "#9a7a60", "#66727e", "#2390a5", "#a04fb5"),
    "floor": ("#7d8791",),
    "context": ("#7d8791",),
}
#: Lines of ours are thick and whole, and those of others are thin and broken, so that no reader needs the colours.
_STYLES: Final[dict[Role, dict[str, Any]]] = {
    "ours": {"linewidth": 2.6},
    "rival": {"linewidth": 1.2, "linestyle": "--"},
    "floor": {"linewidth": 1.2, "linestyle": ":"},
    "context": {"linewidth": 1.2, "linestyle": ":"},
}
#: The colour of texts and axes, which the page replaces by its own, light or dark.
_TEXT: Final = "#010203"


def draw_svg(chart: Chart | Bars) -> str:
    """Return a chart as an ``svg`` element."""
    height = 2.2 + 0.28 * len(chart.bars) if isinstance(chart, Bars) else 6.0
    figure = Figure(figsize=(8, height), layout="constrained", facecolor="none")
    _fill(figure.subplots(), chart)
    written = io.StringIO()
    with rc_context({"svg.fonttype": "none"}):  # Texts stay texts.
        figure.savefig(written, format="svg", metadata={"Date": None, "Creator": None}, transparent=True)
    drawn = written.getvalue()
    drawn = re.sub(r"<metadata>.*?</metadata>", "", drawn, flags=re.DOTALL)
    drawn = re.sub(r' (?:width|height)="[\d.]+pt"', "", drawn[drawn.index("<svg") :], count=2)
    return drawn.replace("<svg ", f'<svg role="img" aria-label="{escape(chart.title)}" ', 1).replace(
        _TEXT, "currentColor"
    )


def draw_pngs(outcome: Outcome, directory: Path) -> list[Path]:
    """Draw a picture of each kind that has figures, such as latency.png; return the written files."""
    kinds = {"latency": latency, "sizes": sizes, "scaling": scaling, "queues": study, "topics": experiment}
    found = {name: charts(outcome.rows)[:2] for name, charts in kinds.items()}  # A picture has room for two.
    made = []
    for name, charts in found.items():
        if charts:
            figure = Figure(figsize=(6.2 * len(charts), 6), layout="constrained")
            for axes, chart in zip(figure.subplots(1, len(charts), squeeze=False)[0], charts, strict=True):
                _fill(axes, chart)
            made.append(directory / f"{name}.png")
            figure.savefig(made[-1], format="png", dpi=110)
    return made


def _fill(axes: Axes, chart: Chart | Bars) -> None:
    """Draw a chart into axes."""
    if isinstance(chart, Bars):
        _fill_bars(axes, chart)
    else:
        _fill_lines(axes, chart)
    axes.set_title(chart.title, color=_TEXT)
    axes.tick_params(colors=_TEXT, which="both")
    for label in (axes.xaxis.label, axes.yaxis.label):
        label.set_color(_TEXT)
    for spine in axes.spines.values():
        spine.set_color(_TEXT)


def _fill_lines(axes: Axes, chart: Chart) -> None:
    axes.set(xscale="log", yscale="log", xlabel=chart.x, ylabel=chart.y)
    for each, colour in _coloured(chart.series):
        x, y = zip(*each.points, strict=True)
        mark = "o" if chart.marks else ""
        axes.plot(x, y, marker=mark, markersize=4, label=each.name, color=colour, **_STYLES[each.role])
    _format_ticks(axes.yaxis)
    if chart.ticks:
        axes.xaxis.set_ticks([place for place, _ in chart.ticks], [text for _, text in chart.ticks])
        axes.xaxis.set_minor_locator(NullLocator())
    else:
        _format_ticks(axes.xaxis)
    axes.grid(visible=True, which="major", alpha=0.3)
    legend = f"{chart.left_out} slower rivals and forms of them: see the table" if chart.left_out else None
    axes.legend(
        fontsize="small", frameon=False, ncols=2, loc="upper left", bbox_to_anchor=(0, -0.12), labelcolor=_TEXT,
        title=legend, title_fontproperties={"size": "small"},
    )  # fmt: skip


def _fill_bars(axes: Axes, chart: Bars) -> None:
    names = [name for name, _, _ in chart.bars]
    values = [value for _, _, value in chart.bars]
    # Rivals share a colour, because each bar has its name beside it.
    bars = axes.barh(names, values, color=[_COLOURS[role][0] for _, role, _ in chart.bars])
    axes.bar_label(bars, [short(value) for value in values], padding=4, color=_TEXT)
    axes.set(xscale="log", xlabel=chart.label)
    axes.invert_yaxis()
    axes.margins(x=0.15)
    _format_ticks(axes.xaxis)


def _format_ticks(axis: Any) -> None:
    """Let a logarithmic axis have round figures without exponents."""
    axis.set_major_locator(LogLocator(subs=(1, 2, 5), numticks=8))
    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.12g}"))
    axis.set_minor_locator(NullLocator())


def _coloured(series: Sequence[Series]) -> list[tuple[Series, str]]:
    """Return each series with its colour, the next one of its role."""
    seen: Counter[Role] = Counter()
    made = []
    for each in series:
        colours = _COLOURS[each.role]
        made.append((each, colours[seen[each.role] % len(colours)]))
        seen[each.role] += 1
    return made
