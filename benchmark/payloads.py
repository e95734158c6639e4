"""Payloads: bytes, lists of ints, and a nested record."""

from __future__ import annotations

from typing import Any, Final

from benchmark.work import nested

#: A nested record of about 31 KB as JSON, 21 KB as MessagePack.
RECORD: Final = nested()


def payload(kind: str, size: int) -> Any:
    """``bytes`` or ``ints`` of that length, or the ``record``."""
    if kind == "bytes":
        return b"\1" * size
    if kind == "ints":
        return list(range(size))
    if kind == "record":
        return RECORD
    raise ValueError(f"kind: expected 'bytes', 'ints' or 'record', got {kind!r}")
