"""Items of queues, topics and stores on the command line: JSON, as arguments or one per line of standard input."""

from __future__ import annotations

import base64
import binascii
import json
import sys
from collections.abc import Iterable
from typing import Any

import click


def parse_items(texts: tuple[str, ...], raw: bool, kind: str) -> Iterable[Any]:
    """Parse all texts at once, or, if there are none, yield the items of standard input line by line.

    ``raw``: each item is text with base64, and becomes bytes. Skips empty lines. Raises UsageError for a text that is
    no item of a ``kind``, such as "queue"; for a line, when the iterator reaches it.
    """
    if texts:
        return [_parse_item(text, raw, kind) for text in texts]
    return (_parse_item(line, raw, kind) for line in sys.stdin.buffer if line.strip())


def _parse_item(text: str | bytes, raw: bool, kind: str) -> Any:
    """Parse one item. Raises UsageError."""
    excerpt = (text if isinstance(text, str) else text.decode(errors="replace")).strip()[:40]
    try:
        value = json.loads(text)
    except ValueError as error:
        raise click.UsageError(f"{excerpt} is not JSON: {error}; a text has quotes: '\"text\"'") from None
    except RecursionError:
        raise click.UsageError(f"{excerpt[:20]}...: nested too deeply") from None
    if not raw:
        return value
    try:
        return base64.b64decode(value, validate=True)
    except (TypeError, ValueError, binascii.Error):
        raise click.UsageError(f"{excerpt}: the {kind} has raw bytes; expected a text with base64") from None
