"""Values on the command line, for queues and topics: as JSON, given or on standard input, one to a line."""

from __future__ import annotations

import base64
import binascii
import json
import sys
from collections.abc import Callable, Iterable
from typing import Any

import click

from shmrpc.cli.commands import NOT_AVAILABLE, CommandFailed, option, seconds
from shmrpc.discovery.members import Report, report_of
from shmrpc.errors import NameInUse

#: What shows what is in a name of another kind.
_SHOWN_BY = {"queue": "queue peek", "topic": "topic watch"}


def other_kind(name: str, kind: str, expected: str) -> NameInUse:
    """Makes the error for a name that is open as another kind than a command is for."""
    command = f"{_SHOWN_BY[kind]} {name}" if kind in _SHOWN_BY else "ls"
    return NameInUse(f"name {name!r} is open as {kind}, not as a {expected}: see 'shmrpc {command}'")


def report_for(name: str, kind: str) -> Report:
    """Returns what can be seen of a name that processes have open as this kind."""
    try:
        found = report_of(name)
    except ValueError as error:
        raise click.UsageError(str(error)) from None
    if found is None:
        text = f"{kind} {name!r}: no process has it open; 'shmrpc {kind} ls' lists those that are"
        raise CommandFailed(text, NOT_AVAILABLE)
    if found.kind != kind:
        raise other_kind(name, found.kind, kind)
    return found


def timeout_option(text: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """The option of a command that waits."""
    help_text = f"Seconds to wait for {text}; 0: not at all.  [default: as long as it takes]"
    return option("--timeout", type=click.FloatRange(min=0), callback=seconds, help=help_text)


def values_of(texts: tuple[str, ...], raw: bool, of: str) -> Iterable[Any]:
    """The values that are given, all of which are read first, or else those of standard input, line by line.

    Raises UsageError for what is no value of ``of``, the queue or the topic.
    """
    if texts:
        return [_value(text, raw, of) for text in texts]
    return (_value(line, raw, of) for line in sys.stdin.buffer if line.strip())


def _value(text: str | bytes, raw: bool, of: str) -> Any:
    shown = (text if isinstance(text, str) else text.decode(errors="replace")).strip()[:40]
    try:
        value = json.loads(text)
    except ValueError as error:
        raise click.UsageError(f"{shown} is not JSON: {error}; a text has quotes: '\"text\"'") from None
    except RecursionError:
        raise click.UsageError(f"{shown[:20]}...: nested too deeply") from None
    if not raw:
        return value
    try:
        return base64.b64decode(value, validate=True)
    except (TypeError, ValueError, binascii.Error):
        raise click.UsageError(f"{shown}: the {of} has raw bytes; expected a text with base64") from None
