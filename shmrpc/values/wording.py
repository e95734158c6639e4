"""What is wrong with a value, in a Python user's words: the codec speaks of arrays, objects and null."""

from __future__ import annotations

import re
from typing import Any, Final

import msgspec

from shmrpc.values.choices import choices_text, steps

#: In an error's text: here ends what is wrong, and begins the inner part of the path. The outer one comes later.
_INNER: Final = "\0"
#: msgspec's words for types that are not Python's own.
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
#: How msgspec begins to say what was expected. What follows may quote a value, and stays as it is.
_EXPECTED: Final = re.compile(r"Expected `([a-z |]+)`(?:, got `([^`]+)`)?")
#: The path, at the end and not in a value that is quoted.
_PATH: Final = re.compile(r" - at `((?:key` in `)?\$[^`]*)`\Z")
#: How msgspec begins to speak of a dict's field, and how we do.
_FIELDS: Final = {
    "Object missing required field `": "Missing required field `",
    "Object contains unknown field `": "Unknown field `",
}
_NOWHERE: Final = object()


def readable(error: msgspec.ValidationError, kind: Any, value: Any = _NOWHERE) -> msgspec.ValidationError:
    """The same error in Python's words: one path, from the outermost value to what is wrong in it; and the choices.

    ``value``: what does not fit, if it is known.
    """
    text = str(error)
    if _INNER in text:
        what, rest = text.split(_INNER, 1)
        inner, outer = split(rest.replace(_INNER, ""))
        text = f"{what} - at `${outer}{inner}`" if outer or inner else what
    what, path = split(text)
    return msgspec.ValidationError(_in_words(what, path, kind, value) + text[len(what) :])


def nested(error: msgspec.ValidationError, at: str = "") -> ValueError:
    """The same error, for the conversion around it to complete the path. ``at``: a step that leads to the value."""
    what, path = split(str(error))
    return ValueError(f"{what}{_INNER}{at}{path}")


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
    """The type's name of what stands at a path, if it is a collection that the codec calls an array."""
    for name, index in steps(path):
        if isinstance(value, dict) and name in value:
            value = value[name]
        elif isinstance(value, (list, tuple)) and index.isdigit() and int(index) < len(value):
            value = value[int(index)]
        else:
            return None
    return type(value).__name__ if isinstance(value, (tuple, set, frozenset)) else None
