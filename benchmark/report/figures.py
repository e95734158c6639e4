"""Figures as a reader sees them: three digits count, and what is not there is empty."""

from __future__ import annotations

import math
import re

from benchmark.rows import Line, Row

_NUMBER = re.compile(r"\d[\d,_]*(?:\.\d+)?")


def short(value: float | None) -> str:
    """Three digits, and commas in what is large."""
    if value is None or math.isnan(value):
        return ""
    if math.isinf(value):
        return "∞"
    if value and abs(value) < 0.01:
        return f"{value:.1g}"
    digits = 2 if abs(value) < 10 else 1 if abs(value) < 100 else 0
    return f"{value:,.{digits}f}"


def times(ratio: float | None) -> str:
    """Return a ratio."""
    text = short(ratio)
    return f"{text} ×" if text else ""


def measured(row: Row | None) -> str:
    """Return a row's leading figure and its unit."""
    if row is None or row.value is None:
        return ""
    unit = row.line.unit
    return f"{short(row.value)}{'' if unit.startswith('/') or not unit else ' '}{unit}"


def span(row: Row) -> str:
    """Return its interval, if there is more than one round."""
    if row.interval is None or len(row.rounds) < 2:
        return ""
    low, high = map(short, row.interval)
    return f"{low} … {high}"


def number(case: str) -> float | None:
    """Return the first number of a case, as of ``1,000`` or ``64 clients``."""
    found = _NUMBER.search(case)
    return float(found.group().replace(",", "").replace("_", "")) if found else None


def heading(line: Line) -> str:
    """Return the name and the unit of the leading figure."""
    names = {"rate": "rate", "cpu": "CPU per call"}
    name = names.get(line.lead, line.lead)
    return f"{name}, {line.unit}" if line.unit and line.unit not in name else name
