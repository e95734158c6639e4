"""``python -m benchmark``: measures, shows what a run found, and compares two of them."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import click
from rich.console import Console

from benchmark import environment
from benchmark.progress import Shown
from benchmark.questions import QUESTIONS, STUDIES
from benchmark.report import compare as comparing
from benchmark.report import files, terminal
from benchmark.report.files import Outcome, Unreadable
from benchmark.report.markdown import markdown as as_markdown
from benchmark.rivals import RIVALS
from benchmark.rows import Row
from benchmark.run import FULL, QUICK, USUAL, Form, Run
from benchmark.subjects import OURS, Subject
from benchmark.targets import verdicts
from benchmark.verdict import Verdict

#: The columns of a report that is written to a file.
_COLUMNS: Final = 170
_INTERRUPTED: Final = 130

_output_file = click.Path(path_type=Path, dir_okay=False)
_output_directory = click.Path(path_type=Path, exists=True, file_okay=False, writable=True)
_result = click.Path(path_type=Path)


def _families(context: click.Context, parameter: click.Parameter, value: str) -> list[Subject]:
    """Return the rivals of those families."""
    known = list(dict.fromkeys(rival.family for rival in RIVALS))
    if value in ("all", "none"):
        return list(RIVALS) if value == "all" else []
    asked = [name.strip() for name in value.split(",") if name.strip()]
    unknown = [name for name in asked if name not in known]
    if unknown or not asked:
        wrong = ", ".join(map(repr, unknown)) or "nothing named"
        raise click.BadParameter(f"{wrong}; there are all, none, {', '.join(known)}", context, parameter)
    return [rival for rival in RIVALS if rival.family in asked]


def _writable(context: click.Context, parameter: click.Parameter, value: Path | None) -> Path | None:
    """Return a file can be written there: that is found out before anything is measured."""
    if value is not None:
        if not value.parent.is_dir():
            raise click.BadParameter(f"there is no directory {value.parent}", context, parameter)
        if value.exists() and not value.is_file():
            raise click.BadParameter(f"{value} is no file", context, parameter)
        if not os.access(value if value.exists() else value.parent, os.W_OK):
            raise click.BadParameter(f"{value} cannot be written", context, parameter)
    return value


_html = click.option(
    "--html", "html_path", type=_output_file, callback=_writable, help="Write a page with plots there."
)
_png = click.option(
    "--png",
    "png_path",
    type=_output_directory,
    help="Draw latency, sizes, scaling, queues and topics there.",
)
_json = click.option("--json", "json_path", type=_output_file, callback=_writable, help="Write the result there.")
_quick = click.option("--quick", is_flag=True, help="One round.")
_full = click.option("--full", is_flag=True, help="Five long rounds and every case.")
_pin = click.option("--pin", is_flag=True, help="Keep each client on one CPU and each server on another.")


@click.group(invoke_without_command=True)
@_quick
@_full
@click.option("--only", multiple=True, type=click.Choice(list(QUESTIONS)), help="Ask only this question.")
@click.option(
    "--rivals", "rivals", default="all", callback=_families, metavar="NAMES", help="Families, or all, or none."
)
@_pin
@_json
@_html
@_png
@click.pass_context
def main(
    context: click.Context,
    quick: bool,
    full: bool,
    only: tuple[str, ...],
    rivals: list[Subject],
    pin: bool,
    json_path: Path | None,
    html_path: Path | None,
    png_path: Path | None,
) -> None:
    """Measure what a call costs, with us and with every rival. Without a command it measures for 15 to 25 minutes.

    The quick form takes about two minutes, the full one three quarters of an hour.
    """
    if context.invoked_subcommand is None:
        questions = [name for name in QUESTIONS if name in only or (not only and not QUESTIONS[name].apart)]
        _ask(context, _form(quick, full), questions, rivals, pin, json_path, html_path, png_path)


@main.command()
@click.argument("parts", nargs=-1, type=click.Choice(list(STUDIES)))
@_quick
@_full
@_json
@_html
@_png
@click.pass_context
def study(
    context: click.Context,
    parts: tuple[str, ...],
    quick: bool,
    full: bool,
    json_path: Path | None,
    html_path: Path | None,
    png_path: Path | None,
) -> None:
    """Measure again what published studies did: with pools, with queues in shared memory, and with shared objects.

    PARTS: ``pools``, ``topics``, ``objects``; all of them without any.
    """
    asked = [name for part in (parts or STUDIES) for name in STUDIES[part]]
    _ask(context, _form(quick, full), asked, RIVALS, False, json_path, html_path, png_path)


def _form(quick: bool, full: bool) -> Form:
    if quick and full:
        raise click.UsageError("--quick or --full, not both")
    return QUICK if quick else FULL if full else USUAL


def _ask(
    context: click.Context,
    form: Form,
    questions: Sequence[str],
    rivals: Sequence[Subject],
    pin: bool,
    json_path: Path | None,
    html_path: Path | None,
    png_path: Path | None,
) -> None:
    console = _console()
    outcome, broken = _measure(form, questions, [*OURS, *rivals], pin, console)
    if json_path is not None:
        files.write(outcome, json_path)
    terminal.show(outcome, console)
    _draw(outcome, html_path, png_path)
    if not outcome.complete:
        context.exit(_INTERRUPTED)
    context.exit(1 if broken else 0)


def _measure(
    form: Form, questions: Sequence[str], subjects: Sequence[Subject], pin: bool, console: Console
) -> tuple[Outcome, bool]:
    """Ask all questions. After an interruption, or a question that breaks, what is known by then is kept."""
    known = environment.before(subjects, pinned=pin)
    rows: list[Row] = []
    broken: dict[str, str] = {}
    started, complete = time.monotonic(), True
    with Shown(console, len(questions)) as progress, Run(form, subjects, progress.step, pin) as run:
        for name in questions:
            progress.question(QUESTIONS[name].title)
            begun = len(run.measured)
            try:
                rows += QUESTIONS[name].ask(run)
            except KeyboardInterrupt:
                rows += run.measured[begun:]
                complete = False
                break
            except Exception as error:
                rows += run.measured[begun:]
                broken[f"question {name}"] = _breaking(error)
    known |= environment.after(time.monotonic() - started)
    targets: list[Verdict] = []
    try:
        targets = verdicts(rows)
    except Exception as error:
        broken["targets"] = _breaking(error)
    return Outcome(form.name, known, rows, targets, {**run.absent, **broken}, complete), bool(broken)


def _breaking(error: Exception) -> str:
    return f"it broke: {type(error).__name__}: {error}"


@main.command()
@click.argument("result", type=_result)
@_html
@_png
@click.option("--markdown", is_flag=True, help="Print the tables as the READMEs hold them.")
def show(result: Path, html_path: Path | None, png_path: Path | None, markdown: bool) -> None:
    """Show a stored result again."""
    outcome = _read(result)
    if markdown:
        click.echo(as_markdown(outcome), nl=False)
    else:
        terminal.show(outcome, _console())
    _draw(outcome, html_path, png_path)


@main.command()
@click.argument("old", type=_result)
@click.argument("new", type=_result)
@click.option("--fail", is_flag=True, help="Exit with 1 if something of ours became slower by more than 5 %.")
@click.pass_context
def compare(context: click.Context, old: Path, new: Path, fail: bool) -> None:
    """Show what became slower or faster from one result to another."""
    before, after = _read(old), _read(new)
    comparison = comparing.compare(before, after)
    console = _console()
    for remark in comparing.remarks(before, after, comparison):
        terminal.say(console, remark, "yellow")
    if comparison.changes:
        terminal.show_table(comparing.table(comparison), console)
    for word, rows in (("old", comparison.only_old), ("new", comparison.only_new)):
        for row in rows:
            terminal.say(console, f"Only in the {word} run: {row.line}: {row.subject}", "dim")
    if not fail:
        return
    if not comparison.judged:
        raise click.UsageError("--fail cannot tell: no row of both runs has rounds enough")
    failing = [change for change in comparison.changes if change.fails]
    for change in failing:
        became = f"slower, {change.worse:.2f} ×" if change.new.rounds else change.new.note
        terminal.say(console, f"Fails: {change.new.line}: {change.new.subject}: {became}", "bold red")
    context.exit(1 if failing else 0)


def _console() -> Console:
    console = Console()
    return console if console.is_terminal else Console(width=_COLUMNS)


def _read(path: Path) -> Outcome:
    try:
        return files.read(path)
    except Unreadable as error:
        raise click.ClickException(str(error)) from error


def _draw(outcome: Outcome, html_path: Path | None, png_path: Path | None) -> None:
    if html_path is None and png_path is None:
        return
    from benchmark.report import page, plots  # Matplotlib is slow to import.

    if html_path is not None:
        html_path.write_text(page.page(outcome), encoding="utf-8")
    if png_path is not None:
        plots.draw_pngs(outcome, png_path)


if __name__ == "__main__":
    main(prog_name="python -m benchmark")
