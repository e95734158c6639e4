"""Tables on standard output."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

import click

from shmrpc.basics.printable import escaped

if TYPE_CHECKING:
    from shmrpc.discovery.members import ObjectReport


def print_table(rows: Sequence[tuple[str, ...]]) -> None:
    """Print rows in aligned columns, the header first; print nothing if the header is the only row."""
    if len(rows) == 1:
        return
    rows = [tuple(map(escaped, row)) for row in rows]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        click.echo("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())


def print_shared_objects(reports: Iterable[ObjectReport]) -> None:
    """Print a table of shared objects and their members."""
    rows = [("NAME", "KIND", "ITEMS", "BYTES", "WAITERS", "MEMBERS")]
    for report in reports:
        members = ", ".join(f"{each.pid or '-'}{f' ({each.holds})' if each.holds else ''}" for each in report.members)
        items = "-" if report.depth is None else f"{report.depth:,}"
        rows.append((report.name, report.kind, items, f"{report.size:,}", str(report.waiters), members))
    print_table(rows)
