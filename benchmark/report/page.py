"""The page of a run in one file: tables, plots, the method and the environment."""

from __future__ import annotations

from html import escape
from typing import Final

from benchmark import environment
from benchmark.report import charts, plots, tables
from benchmark.report.files import Outcome
from benchmark.report.standings import standings
from benchmark.report.tables import Table

_STYLE: Final = """
:root { color-scheme: light dark; --text: #1c2126; --back: #fff; --faint: #dde2e7; --dim: #6b7580; --raised: #f5f7f9;
  --ours: #0a5fc4; --good: #1a7f37; --bad: #b3261e; --open: #8a5a00; }
@media (prefers-color-scheme: dark) { :root { --text: #e4e8ec; --back: #14171a; --faint: #30373e; --dim: #98a2ac;
  --raised: #1d2226; --ours: #62a8ff; --good: #5fd07f; --bad: #ff8a80; --open: #f0b849; } }
body { margin: 0 auto; padding: 1rem; max-width: 76rem; color: var(--text); background: var(--back);
  font: 15px/1.5 system-ui, sans-serif; }
h2 { margin-top: 2.5rem; border-bottom: 1px solid var(--faint); }
.wide { overflow-x: auto; }
svg { width: 100%; min-width: 34rem; height: auto; }
.plots { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(100%, 34rem), 1fr)); gap: 1.5rem; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; font-size: 13px; }
caption { text-align: left; font-weight: 600; padding: .4rem 0; }
th, td { padding: .15rem .6rem; text-align: left; white-space: nowrap; }
td:last-child { white-space: normal; min-width: 8rem; }
th { border-bottom: 1px solid var(--dim); }
tbody { border-bottom: 1px solid var(--faint); }
tbody tr:nth-child(even) { background: var(--raised); }
.right { text-align: right; }
tr.ours { color: var(--ours); font-weight: 600; }
tr.floor, tr.context, tr.alone, .dim { color: var(--dim); }
tr.floor { font-style: italic; }
tr.won, tr.met { color: var(--good); } tr.even, tr.open { color: var(--open); }
tr.lost, tr.missed, .bad { color: var(--bad); font-weight: 600; }
dt { font-weight: 600; } dd { margin: 0 0 .3rem 1rem; }
"""
_METHOD: Final = """
<p>Each subject has a server and a client process of its own that stay alive, and all of them take turns, round after
round (A B C, A B C), so that what drifts hits all alike. A turn that warms up comes first. A figure is the median over
the rounds; its interval is the narrowest pair of rounds that holds the median with a probability of 90 % or more, or
the least and the most if there are fewer than five. Percentiles are those of all times; in an
open loop each time counts from when its call was due. CPU time is that of all processes of the subject. The floors
are measured in the same run.</p>
"""


def page(outcome: Outcome) -> str:
    """Return the whole document."""
    stands = standings(outcome.rows)
    date = escape(str(outcome.environment.get("date", "")))
    cpu = escape(str(outcome.environment.get("cpu", "")))
    parts = [f'<h1>shmrpc: what a call costs</h1><p class="dim">Form {escape(outcome.form)}; {cpu}; {date}</p>']
    if not outcome.complete:
        parts.append('<p class="bad">Incomplete: this run was ended before its time.</p>')
    if stands:
        lost = "".join(f"<li>{escape(loss)}</li>" for loss in tables.losses(stands))
        parts.append(f"<h2>Standings</h2><p>{escape(tables.tally(stands))}</p>")
        parts.append(f'<h3>Where shmrpc loses</h3><ul class="bad">{lost}</ul>' if lost else "")
        parts.append(_table(tables.summary(stands)))
    drawn = "".join(f'<div class="wide">{plots.draw_svg(chart)}</div>' for chart in _charts(outcome))
    if drawn:
        parts.append(f'<h2>Plots</h2><div class="plots">{drawn}</div>')
    if outcome.targets:
        parts.append(f"<h2>Targets</h2>{_table(tables.targets(outcome))}")
    if outcome.absent:
        absent = "".join(f"<dt>{escape(name)}</dt><dd>{escape(why)}</dd>" for name, why in outcome.absent.items())
        parts.append(f"<h2>Not measured</h2><dl>{absent}</dl>")
    if outcome.rows:
        parts.append(f"<h2>Questions</h2><p>{escape(tables.RATIOS)}</p>")
        parts += [f"<section>{_table(table)}</section>" for table in tables.questions(outcome)]
    known = "".join(
        f"<dt>{escape(name)}</dt><dd>{escape(text)}</dd>" for name, text in environment.lines(outcome.environment)
    )
    parts.append(f"<h2>Method</h2>{_METHOD}<h2>Environment</h2><dl>{known}</dl>")
    return (
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        # Without it a browser asks the place of the page for an icon.
        '<link rel="icon" href="data:,">'
        f"<title>shmrpc: what a call costs</title><style>{_STYLE}</style></head>"
        f"<body><main>{''.join(parts)}</main></body></html>\n"
    )


def _charts(outcome: Outcome) -> list[charts.Chart | charts.Bars]:
    rows = outcome.rows
    return [
        *charts.small_calls(rows),
        *charts.latency(rows),
        *charts.sizes(rows),
        *charts.scaling(rows),
        *charts.study(rows),
        *charts.experiment(rows),
    ]


def _table(table: Table) -> str:
    head = "".join(
        f'<th scope="col"{_side(column.right)}>{escape(column.name) or "<span>&nbsp;</span>"}</th>'
        for column in table.columns
    )
    bodies = []
    for group in table.groups:
        rows = "".join(
            f'<tr class="{cells.tone}">'
            + "".join(
                f"<td{_side(column.right)}>{escape(text)}</td>"
                for column, text in zip(table.columns, cells.texts, strict=True)
            )
            + "</tr>"
            for cells in group
        )
        bodies.append(f"<tbody>{rows}</tbody>")
    about = f"<p>{escape(table.about)}</p>" if table.about else ""
    caption = f"<caption>{escape(table.title)}</caption>"
    return f'{about}<div class="wide"><table>{caption}<thead><tr>{head}</tr></thead>{"".join(bodies)}</table></div>'


def _side(right: bool) -> str:
    return ' class="right"' if right else ""
