"""Guesses what was meant by a name that does not exist."""

from __future__ import annotations

from collections.abc import Iterable


def closest(name: str, names: Iterable[str]) -> str | None:
    """The nearest of the names; None if none is near. Case is ignored."""
    import difflib  # Needed only after a mistake.

    lowered: dict[str, str] = {}
    for each in names:
        lowered.setdefault(each.lower(), each)
    close = difflib.get_close_matches(name.lower(), lowered, n=1)
    return lowered[close[0]] if close else None
