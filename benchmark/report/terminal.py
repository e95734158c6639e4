"""The report in a terminal: how we stand, where we lose, the questions, the targets, and where it was measured."""

from __future__ import annotations

from typing import Final

from rich import box
from rich.console import Console
from rich.table import Table as RichTable
from rich.text import Text

from benchmark import environment
from benchmark.report import tables
from benchmark.report.files import Outcome
from benchmark.report.standings import standings
from benchmark.report.tables import Table, Tone

_STYLES: Final[dict[Tone, str]] = {
    "ours": "bold cyan",
    "floor": "italic dim",
    "context": "dim",
    "won": "green",
    "even": "yellow",
    "lost": "bold red",
    "alone": "dim",
    "met": "green",
    "missed": "bold red",
    "open": "yellow",
}
#: In a terminal with fewer columns than this, the minor columns of a table are left out.
_WIDE: Final = 150


def show(outcome: Outcome, console: Console) -> None:
    """Print the whole outcome."""
    stands = standings(outcome.rows)
    if not outcome.complete:
        say(console, "INCOMPLETE: this run was ended before its time.", "bold red")
    if stands:
        show_table(tables.summary(stands), console)
        say(console, tables.tally(stands), "bold")
        for loss in tables.losses(stands):
            say(console, f"Lost: {loss}", "red")
        console.print()
    for table in tables.questions(outcome):
        show_table(table, console)
    if outcome.rows:
        say(console, tables.RATIOS, "dim")
    if console.width < _WIDE and outcome.rows:
        say(console, f"A terminal of {_WIDE} columns shows more of them; so does --html.", "dim")
    if outcome.targets:
        console.print()
        show_table(tables.targets(outcome), console)
    for name, reason in outcome.absent.items():
        say(console, f"Not measured: {name}: {reason}", "yellow")
    say(console, f"form {outcome.form}", "dim")
    for name, text in environment.lines(outcome.environment):
        say(console, f"{name}: {text}", "dim")


def say(console: Console, text: str, style: str = "") -> None:
    """Print a text without markup."""
    console.print(Text(text, style))


def show_table(table: Table, console: Console) -> None:
    """Print a table."""
    shown = [number for number, column in enumerate(table.columns) if console.width >= _WIDE or not column.minor]
    made = RichTable(title=Text(table.title, "bold"), title_justify="left", box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0))
    for number in shown:
        column = table.columns[number]
        made.add_column(Text(column.name), justify="right" if column.right else "left", overflow="fold")
    for group in table.groups:
        for cells in group:
            made.add_row(*(Text(cells.texts[number]) for number in shown), style=_STYLES.get(cells.tone))
        made.add_section()
    console.print(made)
