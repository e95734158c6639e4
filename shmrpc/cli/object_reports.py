"""Lookup of the shared objects that a command names."""

from __future__ import annotations

import click

from shmrpc.cli.exit_codes import NOT_AVAILABLE, CommandFailed
from shmrpc.discovery.members import ObjectReport, inspect_all_objects, inspect_object
from shmrpc.errors import NameConflict

#: Command that shows the contents of a shared object, by its kind.
_SHOW_COMMANDS = {"queue": "queue peek", "topic": "topic watch"}


def wrong_kind_error(name: str, kind: str, expected: str) -> NameConflict:
    """Return the error for a name that is open as another kind than the command works on."""
    command = f"{_SHOW_COMMANDS[kind]} {name}" if kind in _SHOW_COMMANDS else "ls"
    return NameConflict(f"name {name!r} is open as {kind}, not as a {expected}: see 'shmrpc {command}'")


def report_for(name: str, kind: str) -> ObjectReport:
    """Return the report of the shared object with this name and kind.

    Raises UsageError for a malformed name, CommandFailed if no process has the name open, NameConflict if the name is
    of another kind.
    """
    try:
        report = inspect_object(name)
    except ValueError as error:
        raise click.UsageError(str(error)) from None
    if report is None:
        text = f"{kind} {name!r}: no process has it open; 'shmrpc {kind} ls' lists those that are"
        raise CommandFailed(text, NOT_AVAILABLE)
    if report.kind != kind:
        raise wrong_kind_error(name, report.kind, kind)
    return report


def find_reports(names: tuple[str, ...], kind: str) -> list[ObjectReport]:
    """Return the reports of the shared objects of this kind with these names, or of all if there are no names.

    Raises as :func:`report_for`. Objects that cannot be read are reported on stderr.
    """
    if names:
        return [report_for(name, kind) for name in dict.fromkeys(names)]
    return [each for each in inspect_all_objects(lambda message: click.echo(message, err=True)) if each.kind == kind]
