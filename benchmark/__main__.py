"""``python -m benchmark``: progress while it runs, tables at the end, JSON on request."""

from __future__ import annotations

import dataclasses
import json
import os
import platform
import time
from pathlib import Path
from typing import Any, Final

import click
from rich.console import Console
from rich.status import Status
from rich.table import Table

import shmrpc
from benchmark import plot, sweep
from benchmark.questions import QUESTIONS
from benchmark.rows import Row
from benchmark.subjects import Run
from benchmark.targets import verdicts
from benchmark.verdict import Verdict

#: What became of a target; None: not measured.
_WORDS: Final = {True: "met", False: "MISSED", None: "not measured"}


@click.command()
@click.option("--quick", is_flag=True, help="One short round: rough figures in about half a minute.")
@click.option("--only", multiple=True, type=click.Choice(list(QUESTIONS)), help="Ask only this question.")
@click.option("--json", "json_path", type=click.Path(path_type=Path, dir_okay=False), help="Write the result there.")
@click.option(
    "--plot", "plot_path", type=click.Path(path_type=Path, dir_okay=False), help="Draw the sweep there, as PNG."
)
def main(quick: bool, only: tuple[str, ...], json_path: Path | None, plot_path: Path | None) -> None:
    """Measure what a call costs: direct, thread to thread, process to process, and over a UNIX socket."""
    if plot_path is not None:
        if only and "sweep" not in only:
            raise click.UsageError("--plot draws the sweep: add --only sweep")
        plot.check(plot_path)
    console = Console()
    rows: list[Row] = []
    started, load = time.monotonic(), os.getloadavg()
    with console.status("starting") as status:
        run = Run(0.02 if quick else 1.0, _teller(console, status))
        for name, ask in QUESTIONS.items():
            if not only or name in only:
                rows += ask(run)
    judged = verdicts(rows)
    environment = _environment(load, time.monotonic() - started)
    _show(console, rows, judged, environment)
    if plot_path is not None:
        plot.draw(rows, plot_path)
    if json_path is not None:
        result = {
            "environment": environment,
            "rows": [dataclasses.asdict(row) for row in rows],
            "targets": [dataclasses.asdict(verdict) for verdict in judged],
        }
        json_path.write_text(json.dumps(result, indent=2) + "\n")


def _teller(console: Console, status: Status) -> Any:
    """Tells the step: in place on a terminal, as lines elsewhere."""
    return status.update if console.is_terminal else console.print


def _environment(load: tuple[float, ...], seconds: float) -> dict[str, Any]:
    models = [line for line in Path("/proc/cpuinfo").read_text().splitlines() if line.startswith("model name")]
    return {
        "cpu": models[0].partition(": ")[2] if models else platform.machine(),
        "usable cpus": len(os.sched_getaffinity(0)),
        "kernel": platform.release(),
        "python": platform.python_version(),
        "shmrpc": shmrpc.__version__,
        "load before": [round(each, 2) for each in load],
        "seconds": round(seconds),
    }


def _show(console: Console, rows: list[Row], judged: list[Verdict], environment: dict[str, Any]) -> None:
    table = Table(title="Times in µs; medians over the rounds")
    for column in ("question", "subject"):
        table.add_column(column)
    for column in ("p50", "p99", "p99.9", "calls/s", "CPU/call", "more"):
        table.add_column(column, justify="right")
    for row in rows:
        if sweep.is_swept(row):
            continue
        times = [f"{value:,.2f}" if value is not None else "" for value in (row.p50, row.p99, row.p999)]
        rate = f"{row.calls_per_second:,.0f}" if row.calls_per_second else ""
        cpu = f"{row.cpu:,.2f}" if row.cpu is not None else ""
        more = row.note or ", ".join(f"{name} {value:,.2f}" for name, value in row.extra.items())
        table.add_row(row.question, row.subject, *times, rate, cpu, more)
    if table.row_count:
        console.print(table)
    if any(map(sweep.is_swept, rows)):
        console.print(sweep.table(rows))
    targets = Table(title="Targets")
    for column in ("what", "target", "measured", ""):
        targets.add_column(column)
    for verdict in judged:
        targets.add_row(verdict.what, verdict.target, verdict.measured, _WORDS[verdict.met])
    if judged:
        console.print(targets)
    console.print(", ".join(f"{name} {value}" for name, value in environment.items()))


if __name__ == "__main__":
    main()
