"""Words of others, made fit for an error, a log and a terminal."""

from __future__ import annotations

from typing import Final

#: Characters of what a peer says in words, at most.
_LONGEST: Final = 2000


def escaped(words: str) -> str:
    """Return words in which each line break and control character is written as an escape."""
    if words.isprintable():
        return words
    return "".join(each if each.isprintable() else each.encode("unicode_escape").decode() for each in words)


def one_line(words: str) -> str:
    """Return a peer's words on one line, cut to a bounded length."""
    return escaped(words if len(words) <= _LONGEST else words[:_LONGEST] + "...")
