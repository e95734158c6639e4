"""Values on the command line: arguments out of text and files; results as text for people, and as JSON for programs."""

from __future__ import annotations

import base64
import importlib
import json
import math
import re
import sys
from collections.abc import Iterable, Iterator, Mapping, Set
from pathlib import Path, PurePath
from typing import Any, BinaryIO, Final

import click
import msgspec

from shmrpc.basics.missing import why_missing

#: Bytes of a value that are shown, and items of an array.
_SHOWN: Final = 100
#: What a terminal may obey. JSON has no need to escape these.
_CONTROL: Final = re.compile("[\x7f-\x9f\u2028\u2029]")


def argument(text: str) -> Any:
    """The argument that is written like this: a :class:`Source` for ``@...``, what it says as JSON, or the text."""
    if text.startswith("@"):
        return Source(text)
    try:
        return json.loads(text)
    except ValueError:
        return text
    except RecursionError:
        raise click.UsageError(f"{text[:20]}...: nested too deeply") from None


class Source:
    """A file, ``@FILE``, or standard input, ``@-``. UsageError if it cannot be read."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._is_input = text == "@-"
        self._path = Path(text.removeprefix("@"))

    def _open(self) -> BinaryIO:
        try:
            return sys.stdin.buffer if self._is_input else self._path.open("rb")
        except OSError as error:
            raise click.UsageError(
                f"{self._text}: {error.strerror}; for a text that begins with @ put it in quotes: '\"{self._text}\"'"
            ) from None

    def value(self) -> Any:
        """Its bytes; the array of a ``.npy`` file."""
        if self._path.suffix == ".npy":
            try:
                with self._open() as file:
                    return importlib.import_module("numpy").lib.format.read_array(file, allow_pickle=False)
            except ImportError as error:
                raise click.UsageError(f"{self._text}: an array needs NumPy: {why_missing('numpy', error)}") from None
            except (ValueError, EOFError, OSError) as error:
                raise click.UsageError(f"{self._text}: cannot be read as an array: {error}") from None
        try:
            with self._open() as file:
                return file.read()
        except OSError as error:
            raise click.UsageError(f"{self._text}: {error.strerror}") from None

    def items(self, *, as_bytes: bool) -> Iterator[Any]:
        """Its lines, for a stream: as bytes, or each read like an argument."""
        with self._open() as file:
            for line in file:
                line = line.rstrip(b"\r\n")
                yield line if as_bytes else argument(line.decode(errors="replace"))


def to_json(value: Any) -> str:
    """One line of strict JSON, also for what JSON has not.

    NaN and infinities: ``"NaN"``, ``"Infinity"``, ``"-Infinity"``. Bytes: base64. Tuples and sets: arrays. Complex
    numbers: ``{"real": 1.0, "imag": 2.0}``. Arrays: ``{"dtype": ..., "shape": [...], "data": [...]}``. Dates, times,
    Decimal, UUID, paths and everything else: text. A dict of other keys than texts and integers: pairs.
    """
    ascii_only = (sys.stdout.encoding or "").lower().replace("-", "") != "utf8"
    return json.dumps(_for_json(value), ensure_ascii=ascii_only, allow_nan=False)


def _for_json(value: Any) -> Any:
    match value:
        case None | bool() | str():
            return value
        case int():
            return int(value)
        case float():
            return float(value) if math.isfinite(value) else _number(value).strip('"')
        case bytes() | bytearray() | memoryview():
            return base64.b64encode(bytes(value)).decode()
        case complex():
            return {"real": _for_json(value.real), "imag": _for_json(value.imag)}
        case Mapping():
            pairs = [[_for_json(key), _for_json(each)] for key, each in value.items()]
            texts = {
                key if isinstance(key, str) else json.dumps(key) for key, _ in pairs if isinstance(key, (str, int))
            }
            if len(texts) < len(pairs):
                return pairs
            return {key if isinstance(key, str) else json.dumps(key): each for key, each in pairs}
        case list() | tuple() | Set():
            return [_for_json(each) for each in value]
    if _is_array(value):
        data = _for_json(_items(value))
        return {"dtype": str(value.dtype), "shape": [*map(int, value.shape)], "data": data} if value.shape else data
    if hasattr(value, "to_pylist"):  # Arrow's.
        return _for_json(value.to_pylist())
    try:
        builtins = msgspec.to_builtins(value, enc_hook=str)
    except Exception:  # It is somebody's code.
        return object.__repr__(value)
    return builtins if isinstance(builtins, str) else _for_json(builtins)


def to_text(value: Any, *, compact: bool = False) -> str:
    """A value for people: JSON where JSON has it, and Python's notation for the rest. ``compact``: in one line."""
    text = _text(value, None if compact else "\n")
    return _CONTROL.sub(lambda found: f"\\u{ord(found[0]):04x}", text)


def _text(value: Any, line: str | None) -> str:
    """``line``: a new line and the space before it; None if all is to be in one."""
    match value:
        case None | bool():
            return json.dumps(value)
        case str():
            return json.dumps(value, ensure_ascii=False)
        case int():
            return int.__repr__(value)
        case float():
            return _number(value)
        case bytes() | bytearray() | memoryview():
            start = bytes(value[:_SHOWN])
            return repr(start) if len(value) <= _SHOWN else f"{start!r}... ({len(value):,} bytes)"
        case Mapping():
            inner = line and line + "  "
            pairs = (f"{_key(key)}: {_text(each, inner)}" for key, each in value.items())
            return _enclosed("{", pairs, "}", line)
        case list() | tuple() | Set():
            inner = line and line + "  "
            return _enclosed("[", (_text(each, inner) for each in value), "]", line)
    if _is_array(value):
        return _of_array(value, line)
    if isinstance(value, PurePath):
        return _text(str(value), line)
    try:
        return _text(msgspec.to_builtins(value), line)
    except Exception:  # It is nothing that msgspec knows, as a date or a dataclass would be.
        return _one_line(_repr(value), line)


def _key(key: Any) -> str:
    if isinstance(key, tuple):
        return f"({', '.join(map(_key, key))}{',' * (len(key) == 1)})"
    return _text(key, None)


def _repr(value: Any) -> str:
    try:
        return repr(value)
    except Exception:  # It is somebody's code.
        return object.__repr__(value)


def _enclosed(begin: str, items: Iterable[str], end: str, line: str | None) -> str:
    found = list(items)
    if not found:
        return begin + end
    if line is None:
        return begin + ", ".join(found) + end
    return f"{begin}{line}  {f',{line}  '.join(found)}{line}{end}"


def _number(value: float) -> str:
    if math.isfinite(value):
        return float.__repr__(value)
    return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"


def _is_array(value: Any) -> bool:
    return all(hasattr(value, name) for name in ("shape", "dtype", "tolist"))


def _items(value: Any) -> Any:
    """The items of an array as lists, the value of one without dimensions."""
    items = value.tolist()
    return items if type(items) is not type(value) else str(items)  # Of a long double there is no Python number.


def _of_array(value: Any, line: str | None) -> str:
    """Shape, dtype and a part of an array."""
    if not value.shape:
        return _text(_items(value), line)
    numpy = sys.modules.get("numpy")
    if numpy is not None and isinstance(value, numpy.ndarray):
        part = numpy.array2string(value, threshold=_SHOWN, separator=", ")
    else:
        part = str(value)
    return f"array(shape={tuple(value.shape)}, dtype={value.dtype}, {_one_line(part, line)})"


def _one_line(text: str, line: str | None) -> str:
    return " ".join(text.split()) if line is None else text.replace("\n", line)
