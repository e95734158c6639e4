"""Declared types that the core reads by itself."""

from __future__ import annotations

import typing
from typing import Any, Final, NewType

Name = NewType("Name", str)

#: Types of each kind, and containers of containers.
KINDS: Final[list[Any]] = [
    None,
    bool,
    int,
    float,
    str,
    bytes,
    list,
    dict,
    list[int],
    list[float | None],
    dict[str, int],
    dict[int, list[str]],
    tuple[int, str],
    tuple[int, ...],
    tuple[tuple[int, ...], ...],
    list[list[list[float]]],
    dict[str, tuple[int, str] | None],
    dict[Any, Any],
    Any,
    tuple[()],
    int | str,
    float | bool,
    str | None,
    list[int] | None,
    Name,
    typing.Optional[bytes],  # noqa: UP045
]
