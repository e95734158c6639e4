"""The charts as SVG, which stands in the page itself and follows its colours, light or dark."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from html import escape
from typing import Final

from benchmark.report.charts import Bars, Chart, Series, ticks
from benchmark.report.figures import short
from benchmark.rows import Role

_WIDTH: Final = 720
_LEFT, _RIGHT, _TOP, _HEIGHT, _BELOW = 92, 36, 34, 300, 46
_LEGEND_COLUMNS: Final = 2
_LEGEND_LINE: Final = 18
_BAR: Final = 20
#: Room for the name of a bar, and for its figure.
_NAMES, _FIGURES = 220, 70

#: The colours of each role on a light ground and on a dark one; subjects beyond begin again.
LIGHT: Final[dict[Role, tuple[str, ...]]] = {
    "ours": ("#0a5fc4", "#008575", "#7b3fc0", "#1c2126"),
    "rival": ("#b06000", "#c2255c", "#6b7a00", "#7a5c45", "#2f3b46", "#0b7285", "#862e9c"),
    "floor": ("#6b7580",),
    "context": ("#6b7580",),
}
_DARK: Final[dict[Role, tuple[str, ...]]] = {
    "ours": ("#62a8ff", "#3fd0bb", "#c39bff", "#e4e8ec"),
    "rival": ("#f0a04b", "#ff85ad", "#c3d34a", "#cdaa8c", "#f2f2f2", "#66d9e8", "#da77f2"),
    "floor": ("#98a2ac",),
    "context": ("#98a2ac",),
}


def _classes(colours: dict[Role, tuple[str, ...]]) -> str:
    return "\n".join(
        f".{role}{number} {{ --colour: {colour}; }}"
        for role, known in colours.items()
        for number, colour in enumerate(known)
    )


#: What the page's style sheet has to hold for them. Ours are whole lines and rivals are broken ones, so that it takes
#: no colours to tell them apart.
STYLE: Final = f"""
{_classes(LIGHT)}
@media (prefers-color-scheme: dark) {{
{_classes(_DARK)}
}}
svg {{ width: 100%; min-width: 34rem; height: auto; font: 12px system-ui, sans-serif; }}
svg text {{ fill: var(--text); }}
svg .heading {{ font-weight: 600; font-size: 14px; }}
svg .axis {{ stroke: var(--text); }}
svg .grid {{ stroke: var(--faint); }}
svg .curve {{ fill: none; stroke-width: 1.8; stroke: var(--colour); }}
svg .mark {{ fill: var(--colour); }}
svg .ours {{ stroke-width: 3; }}
svg .rival {{ stroke-dasharray: 7 3; }}
svg .floor {{ stroke-dasharray: 2 3; }}
svg rect.bar {{ fill: var(--colour); stroke: none; }}
"""


class _Axis:
    """From figures to places on the page, logarithmically."""

    def __init__(self, values: list[float], start: float, end: float) -> None:
        low, high = min(values), max(values)
        if high / low < 2:
            low, high = low / 1.5, high * 1.5
        self.low, self.high = low, high
        self._start, self._end = start, end

    def place(self, value: float) -> float:
        share = math.log(value / self.low) / math.log(self.high / self.low)
        return round(self._start + share * (self._end - self._start), 1)


def draw(chart: Chart | Bars) -> str:
    """An ``svg`` element."""
    return _bars(chart) if isinstance(chart, Bars) else _lines(chart)


def _lines(chart: Chart) -> str:
    bottom = _TOP + _HEIGHT
    across = _Axis([x for each in chart.series for x, _ in each.points], _LEFT, _WIDTH - _RIGHT)
    up = _Axis([y for each in chart.series for _, y in each.points], bottom, _TOP)
    parts = []
    for value, text in ticks(up.low, up.high):
        y = up.place(value)
        parts.append(_line("grid", _LEFT, y, _WIDTH - _RIGHT, y) + _words(text, _LEFT - 6, y + 4, "end"))
    last = -math.inf
    for value, text in chart.ticks:
        x = across.place(value)
        parts.append(_line("grid", x, _TOP, x, bottom))
        if x - last > 7 * len(text):  # Else the words would lie on each other.
            parts.append(_words(text, x, bottom + 16, "middle"))
            last = x
    parts.append(_line("axis", _LEFT, bottom, _WIDTH - _RIGHT, bottom) + _line("axis", _LEFT, _TOP, _LEFT, bottom))
    parts.append(_words(chart.x, (_LEFT + _WIDTH - _RIGHT) / 2, bottom + 36, "middle"))
    middle = _TOP + _HEIGHT / 2
    parts.append(f'<text text-anchor="middle" transform="translate(14 {middle}) rotate(-90)">{escape(chart.y)}</text>')
    named = _coloured(chart.series)
    for each, colour in named:
        parts.append(_curve(each, colour, across, up, chart.marks))
    legend_top = bottom + _BELOW + 12
    for number, (each, colour) in enumerate(named):
        x = _LEFT + number % _LEGEND_COLUMNS * (_WIDTH - _LEFT) / _LEGEND_COLUMNS
        y = legend_top + number // _LEGEND_COLUMNS * _LEGEND_LINE
        parts.append(
            f'<path class="curve {each.role} {colour}" d="M{x} {y}h28"/>' + _words(each.name, x + 34, y + 4, "start")
        )
    height = legend_top + math.ceil(len(named) / _LEGEND_COLUMNS) * _LEGEND_LINE
    if chart.left_out:
        height += _LEGEND_LINE
        parts.append(
            _words(f"{chart.left_out} slower rivals and forms of them: see the table", _LEFT, height - 10, "start")
        )
    return _svg(chart.title, f"{chart.y}, over {chart.x}; both axes are logarithmic", height, parts)


def _curve(series: Series, colour: str, across: _Axis, up: _Axis, marks: bool) -> str:
    places = [(across.place(x), up.place(y)) for x, y in series.points]
    drawn = f'<path class="curve {series.role} {colour}" d="M{"L".join(f"{x} {y}" for x, y in places)}"/>'
    if not marks:
        return drawn
    for (x, y), (below, figure) in zip(places, series.points, strict=True):
        told = escape(f"{series.name}: {short(figure)} at {below:,.0f}")
        drawn += f'<circle class="mark {colour}" cx="{x}" cy="{y}" r="3.2"><title>{told}</title></circle>'
    return drawn


def _bars(chart: Bars) -> str:
    bottom = _TOP + len(chart.bars) * _BAR
    values = [value for _, _, value in chart.bars]
    # A bar of the least figure has to be seen too.
    across = _Axis([min(values) / 2, max(values)], _NAMES, _WIDTH - _FIGURES)
    parts = []
    for value, text in ticks(across.low, across.high):
        x = across.place(value)
        parts.append(_line("grid", x, _TOP, x, bottom) + _words(text, x, bottom + 16, "middle"))
    named = _coloured([Series(name, role, ()) for name, role, _ in chart.bars])
    for number, ((name, role, value), (_, colour)) in enumerate(zip(chart.bars, named, strict=True)):
        y, end = _TOP + number * _BAR, across.place(value)
        # Here rivals need not be told from each other.
        shade = "rival0" if role == "rival" else colour
        width = round(end - _NAMES, 1)
        parts.append(
            _words(name, _NAMES - 6, y + 14, "end")
            + f'<rect class="bar {shade}" x="{_NAMES}" y="{y + 3}" width="{width}" height="{_BAR - 6}"/>'
            + _words(short(value), end + 5, y + 14, "start")
        )
    parts.append(_words(chart.label, (_NAMES + _WIDTH - _FIGURES) / 2, bottom + 36, "middle"))
    return _svg(chart.title, f"{chart.label}; the axis is logarithmic", bottom + _BELOW, parts)


def numbered(series: Sequence[Series]) -> list[tuple[Series, int]]:
    """Each with the number of its colour among those of its role."""
    seen: Counter[Role] = Counter()
    made = []
    for each in series:
        made.append((each, seen[each.role] % len(LIGHT[each.role])))
        seen[each.role] += 1
    return made


def _coloured(series: Sequence[Series]) -> list[tuple[Series, str]]:
    """Each with the class that colours it."""
    return [(each, f"{each.role}{number}") for each, number in numbered(series)]


def _svg(title: str, about: str, height: float, parts: list[str]) -> str:
    told = escape(f"{title}. {about}")
    size = f'viewBox="0 0 {_WIDTH} {round(height)}"'
    head = f'<svg xmlns="http://www.w3.org/2000/svg" role="img" {size} aria-label="{told}">'
    return f'{head}<text class="heading" x="{_LEFT}" y="18">{escape(title)}</text>{"".join(parts)}</svg>'


def _line(kind: str, x: float, y: float, to_x: float, to_y: float) -> str:
    return f'<path class="{kind}" d="M{x} {y}L{to_x} {to_y}"/>'


def _words(text: str, x: float, y: float, anchor: str) -> str:
    return f'<text x="{round(x, 1)}" y="{round(y, 1)}" text-anchor="{anchor}">{escape(text)}</text>'
