"""Text from peers, made safe for errors, logs and terminals."""

from __future__ import annotations

from typing import Final

#: Largest number of characters shown of a peer's text.
_LONGEST: Final = 2000


def escaped(text: str) -> str:
    """Return the text with an escape in place of each unprintable character."""
    if text.isprintable():
        return text
    return "".join(each if each.isprintable() else each.encode("unicode_escape").decode() for each in text)


def one_line(text: str) -> str:
    """Return the first 2000 characters of a peer's text on one line, then ``...`` if there are more.

    Each unprintable character becomes an escape, which may make the line longer.
    """
    return escaped(text if len(text) <= _LONGEST else text[:_LONGEST] + "...")
