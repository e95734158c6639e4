"""Suggestions for misspelt names."""

from __future__ import annotations

from collections.abc import Iterable


def closest_match(name: str, names: Iterable[str]) -> str | None:
    """Return the name most like ``name``, ignoring case, or None if none is similar."""
    import difflib  # Slow to import, and needed only after a mistake.

    lowered: dict[str, str] = {}
    for each in names:
        lowered.setdefault(each.lower(), each)
    close = difflib.get_close_matches(name.lower(), lowered, n=1)
    return lowered[close[0]] if close else None
