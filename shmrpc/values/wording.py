"""What is wrong with a value, in a Python user's words: the codec speaks of arrays, objects and null."""

from __future__ import annotations

import re
from typing import Any, Final

import msgspec

from shmrpc.values.choices import choices_text, steps

#: In an error's text: here goes the rest of the path, which only the outer conversion knows the beginning of.
INNER: Final = "\0"
#: Other words of msgspec for types are Python's own.
_WORDS: Final = {
    "any": "Any",
    "array": "list",
    "decimal": "Decimal",
    "duration": "timedelta",
    "ext": "Ext",
    "null": "None",
    "object": "dict",
    "uuid": "UUID",
}
#: How it begins to say what was expected. What follows may quote a value, and stays as it is.
_EXPECTED: Final = re.compile(r"Expected `([a-z |]+)`(?:, got `([^`]+)`)?")
#: At the end, and not in a value that it quotes.
_PATH: Final = re.compile(r" - at `((?:key` in `)?\$[^`]*)`\Z")
#: What it says of a dict, before the name of the field.
_FIELDS: Final = {
    "Object missing required field `": "Missing required field `",
    "Object contains unknown field `": "Unknown field `",
}
_NOWHERE: Final = object()


def readable(error: msgspec.ValidationError, kind: Any, value: Any = _NOWHERE) -> msgspec.ValidationError:
    """With one path, from the outermost value to what is wrong in it, in Python's words, and with what may be chosen.

    ``value``: what does not fit, where it is known.
    """
    text = str(error)
    if INNER in text:
        what, rest = text.split(INNER, 1)
        inner, outer = split(rest.replace(INNER, ""))
        text = f"{what} - at `${outer}{inner}`" if outer or inner else what
    what, path = split(text)
    return msgspec.ValidationError(_in_words(what, path, kind, value) + text[len(what) :])


def split(text: str) -> tuple[str, str]:
    """What is wrong, and the path to it without the ``$``."""
    found = _PATH.search(text)
    return (text[: found.start()], found[1].removeprefix("$")) if found else (text, "")


def _in_words(what: str, path: str, kind: Any, value: Any) -> str:
    if what.startswith("Invalid enum value"):
        choices = choices_text(kind, path)
        return f"{what}, expected {choices}" if choices else what
    for theirs, ours in _FIELDS.items():
        if what.startswith(theirs):
            return ours + what.removeprefix(theirs)
    found = _EXPECTED.match(what)
    if found is None:
        return what
    wanted, got = found.groups()
    wanted = f"`{_translated(wanted)}`"
    if got is None:
        return f"Expected {wanted}{what[found.end() :]}"
    wanted = choices_text(kind, path, complete=True) or wanted
    return f"Expected {wanted}, got `{_name_at(value, path) or _translated(got)}`{what[found.end() :]}"


def _translated(words: str) -> str:
    return " | ".join(_WORDS.get(word, word) for word in words.split(" | "))


def _name_at(value: Any, path: str) -> str | None:
    """What stands at a path, if it is one of the collections that are arrays to the codec."""
    for name, index in steps(path):
        if isinstance(value, dict) and name in value:
            value = value[name]
        elif isinstance(value, (list, tuple)) and index.isdigit() and int(index) < len(value):
            value = value[int(index)]
        else:
            return None
    return type(value).__name__ if isinstance(value, (tuple, set, frozenset)) else None
