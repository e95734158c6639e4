"""Validation errors in Python's terms, where msgspec's own use arrays, objects and null."""

from __future__ import annotations

import re
from typing import Any, Final

import msgspec

from shmrpc.values.choices import KEY_IN, choices_text, steps

#: Separates, within the text of an error, the problem from the inner part of the path; the outer part follows later.
_INNER: Final = "\0"
#: Python's terms for msgspec's.
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
#: Beginning of msgspec's message about a type. The rest may quote a value, and stays unchanged.
_EXPECTED: Final = re.compile(r"Expected `([a-z |]+)`(?:, got `([^`]+)`)?")
#: Path at the end of a message, outside of quoted values.
_PATH: Final = re.compile(r" - at `((?:key[^`]*` in `)*\$[^`]*)`\Z")
#: Beginnings of msgspec's messages about fields of a dict, with Python's terms.
_FIELDS: Final = {
    "Object missing required field `": "Missing required field `",
    "Object contains unknown field `": "Unknown field `",
}
_NOWHERE: Final = object()


def translate_error(error: msgspec.ValidationError, kind: Any, value: Any = _NOWHERE) -> msgspec.ValidationError:
    """Return a validation error in Python's terms, with the path from the outermost value and the allowed choices.

    ``value`` is the value that was converted, if it is known.
    """
    text = str(error)
    if _INNER in text:
        what, rest = text.split(_INNER, 1)
        inner, outer = split_path(rest.replace(_INNER, ""))
        text = f"{what} - at `{_join_paths(outer, inner)}`" if outer or inner else what
    what, path = split_path(text)
    return msgspec.ValidationError(_translate_message(what, path, kind, value) + text[len(what) :])


def nested_error(error: msgspec.ValidationError, at: str = "") -> ValueError:
    """Return an inner error as a ValueError for the outer conversion, in which :func:`translate_error` joins the paths.

    ``at`` is a step of the path that comes before the inner error's path.
    """
    what, path = split_path(str(error))
    return ValueError(f"{what}{_INNER}{_join_paths(at, path).removeprefix('$')}")


def _join_paths(outer: str, inner: str) -> str:
    """Return the path, with its ``$``, that leads along ``outer`` and then along ``inner``."""
    key, inner_key_in, steps = inner.rpartition(f"{KEY_IN}$")
    first, key_in, rest = outer.partition(KEY_IN)
    return f"{key}{inner_key_in.removesuffix('$')}{'' if key_in else '$'}{first}{steps}{key_in}{rest}"


def split_path(text: str) -> tuple[str, str]:
    """Return the problem in an error text, and the path to it; "" without a path.

    The path has no ``$`` at its beginning. A path to a key of a dict, or to a part of it, is such as
    ``key.x` in `$[...]``.
    """
    found = _PATH.search(text)
    return (text[: found.start()], found[1].removeprefix("$")) if found else (text, "")


def _translate_message(what: str, path: str, kind: Any, value: Any) -> str:
    """Return a problem in Python's terms, with the choices of the declared type ``kind`` at the path."""
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
    wanted = f"`{_translate_types(wanted)}`"
    if got is None:
        return f"Expected {wanted}{what[found.end() :]}"
    wanted = choices_text(kind, path, complete=True) or wanted
    return f"Expected {wanted}, got `{_name_at(value, path) or _translate_types(got)}`{what[found.end() :]}"


def _translate_types(words: str) -> str:
    """Return type names of msgspec's, joined by ``" | "``, in Python's terms."""
    return " | ".join(_WORDS.get(word, word) for word in words.split(" | "))


def _name_at(value: Any, path: str) -> str | None:
    """Return the class name of a tuple or set at a path of a value, which the codec calls an array; else None."""
    for name, index in steps(path):
        if isinstance(value, dict) and name in value:
            value = value[name]
        elif isinstance(value, (list, tuple)) and index.isdigit() and int(index) < len(value):
            value = value[int(index)]
        else:
            return None
    return type(value).__name__ if isinstance(value, (tuple, set, frozenset)) else None
