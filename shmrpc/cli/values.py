"""Values on the command line: arguments from text and files, results as text and as JSON."""

from __future__ import annotations

import base64
import importlib
import json
import math
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from decimal import Decimal
from pathlib import Path, PurePath
from types import NoneType
from typing import Any, BinaryIO, Final

import click
import msgspec

from shmrpc.basics.import_hints import describe_import_failure
from shmrpc.introspection.client_types import TypeDescription
from shmrpc.introspection.describe import ParameterDescription

#: Converts the text of a number with a fraction or exponent.
NumberParser = Callable[[str], Decimal | float]

#: Python types that JSON may give for these types of parameters; other types may accept any value.
_TAKEN_FROM_JSON: Final[dict[str, tuple[type, ...]]] = {
    "None": (NoneType,),
    "bool": (bool,),
    "int": (int,),
    "float": (int, float),
    "complex": (int, float),
    "decimal.Decimal": (int, Decimal),
    "str": (str,),
    **dict.fromkeys(["bytes", "bytearray", "memoryview", "uuid.UUID", "pathlib.Path"], ()),
    **dict.fromkeys(["datetime.datetime", "datetime.date", "datetime.time", "datetime.timedelta"], ()),
}
#: Maximum number of bytes of a value, and of items of an array, to print.
_MAX_PRINTED: Final = 100
#: Bits of the largest int to print in decimal, whose cost grows with the square. Python refuses slightly larger ones.
_MAX_DECIMAL_BITS: Final = 10_000
#: Control characters of terminals that JSON does not escape.
_CONTROL: Final = re.compile("[\x7f-\x9f\u2028\u2029]")


def is_text(argument: str) -> bool:
    """Return True if an argument is text for any parameter: neither JSON nor ``@FILE``. Raises as _from_json() does."""
    return not argument.startswith("@") and _from_json(argument) is argument


def read_argument(argument: str, parameter: ParameterDescription | None, types: Sequence[TypeDescription]) -> Any:
    """Return the value of an argument for a parameter. Raises UsageError.

    ``parameter`` is None if the endpoint has none for the argument. ``@FILE`` and ``@-`` stand for the contents of a
    file; for a stream, for its lines, each read like an argument. Any other argument is JSON, or else text. ``types``:
    the classes of the service.
    """
    accepts, name, is_stream = "Any", "", False
    if parameter is not None:
        accepts, name, is_stream = parameter.accepts, parameter.name, parameter.stream
    number = _number_parser_for(accepts, types)
    if argument.startswith("@"):
        return _read_lines(argument, name, accepts, number) if is_stream else _read_file(argument)
    return _from_json(argument, number) if is_stream else _from_text(argument, name, accepts, number)


def _from_json(text: str, number: NumberParser = float) -> Any:
    """Parse a text as JSON; return the text itself if it is not JSON. Raises UsageError for too deep a nesting."""
    try:
        return json.loads(text, parse_float=number)
    except ValueError:
        return text
    except RecursionError:
        raise click.UsageError(f"{text[:20]}...: nested too deeply") from None


def _from_text(text: str, name: str, accepts: str, number: NumberParser) -> Any:
    """Return the value of a text for a parameter: the JSON value if its type fits, otherwise the text if a str fits.

    If neither fits, returns the JSON value, or the text that is no JSON, for the server to reject. Raises UsageError
    for a text in quotes that the parameter does not accept.
    """
    value, alternatives = _from_json(text, number), accepts.split(" | ")
    if any(type(value) in _TAKEN_FROM_JSON.get(each, (type(value),)) for each in alternatives):
        return value
    if "str" in alternatives:
        return text
    if isinstance(value, str) and not is_text(value):
        raise click.UsageError(f"{text}: parameter {name!r} takes {accepts}, not text; without its quotes: {value}")
    return value


def _number_parser_for(accepts: str, types: Sequence[TypeDescription]) -> NumberParser:
    """Return the parser of numbers with a fraction, by the types that the parameter accepts at any depth.

    Decimal if it accepts Decimals and no floats; :func:`_exact_float` if it accepts both; otherwise float.
    """
    within = {each.input_name: [each.accepts or "", *(field.accepts for field in each.fields)] for each in types}
    found, rest = set[str](), {accepts}
    while rest := rest - found:
        found |= rest
        rest = {text for name in re.findall(r"\w+", " ".join(rest)) for text in within.get(name, ())}
    words = re.findall(r"[\w.]+", re.sub(r"(decimal\.Decimal( \| str)?) \| float", r"\1", " ".join(found)))
    if "decimal.Decimal" not in words:
        return float
    return _exact_float if {"float", "complex", "Any"}.intersection(words) else Decimal


def _exact_float(text: str) -> float:
    """Return a float that the server may convert to a Decimal. Raises UsageError if that would lose digits."""
    number = float(text)
    if Decimal(repr(number)) != Decimal(text):
        raise click.UsageError(
            f'{text} has more digits than a float can hold; for a Decimal write it as text: "{text}"'
        )
    return number


def _open_source(source: str) -> BinaryIO:
    """Open a file for the caller to close, or return standard input. Raises UsageError if the file cannot be opened."""
    try:
        return sys.stdin.buffer if source == "@-" else Path(source.removeprefix("@")).open("rb")
    except OSError as error:
        raise click.UsageError(
            f"{source}: {error.strerror}; for a text that begins with @ put it in quotes: '\"{source}\"'"
        ) from None


def _read_file(source: str) -> Any:
    """Return the bytes of a file, or the array of a ``.npy`` file. Raises UsageError."""
    try:
        with _open_source(source) as file:
            if not source.endswith(".npy"):
                return file.read()
            return importlib.import_module("numpy").lib.format.read_array(file, allow_pickle=False)
    except ImportError as error:
        raise click.UsageError(f"{source}: an array needs NumPy: {describe_import_failure('numpy', error)}") from None
    except (ValueError, EOFError) as error:
        raise click.UsageError(f"{source}: cannot be read as an array: {error}") from None
    except OSError as error:
        raise click.UsageError(f"{source}: {error.strerror}") from None


def _read_lines(source: str, name: str, accepts: str, number: NumberParser) -> Iterator[Any]:
    """Yield the lines of a file without line ends, as bytes if the items of the stream may be bytes.

    Other lines become values as arguments do, with invalid UTF-8 replaced. Raises UsageError for a file that cannot be
    opened or a line that the parameter does not accept, when the caller gets there.
    """
    as_bytes = "bytes" in accepts.split(" | ")
    with _open_source(source) as file:
        for line in file:
            item = line.rstrip(b"\r\n")
            yield item if as_bytes else _from_text(item.decode(errors="replace"), name, accepts, number)


def to_json(value: Any) -> str:
    """Return one line of strict JSON, also for values that JSON does not have.

    NaN and infinities: ``"NaN"``, ``"Infinity"``, ``"-Infinity"``. Bytes: base64. Tuples and sets: arrays. Complex
    numbers: ``{"real": 1.0, "imag": 2.0}``. Very large ints: text, in hexadecimal. Arrays: ``{"dtype": ..., "shape":
    [...], "data": [...]}``. Dates, times, Decimal, UUID, paths and everything else: text. A dict with keys other than
    text and integers: pairs.
    """
    ascii_only = (sys.stdout.encoding or "").lower().replace("-", "") != "utf8"
    return json.dumps(_for_json(value), ensure_ascii=ascii_only, allow_nan=False)


def _for_json(value: Any) -> Any:
    """Return a value of types that JSON has."""
    match value:
        case None | bool() | str():
            return value
        case int():
            return int(value) if value.bit_length() <= _MAX_DECIMAL_BITS else hex(value)
        case float():
            return float(value) if math.isfinite(value) else _number_text(value).strip('"')
        case bytes() | bytearray() | memoryview():
            return base64.b64encode(bytes(value)).decode()
        case complex():
            return {"real": _for_json(value.real), "imag": _for_json(value.imag)}
        case Mapping():
            pairs = [[_for_json(key), _for_json(each)] for key, each in value.items()]
            texts = {
                key if isinstance(key, str) else json.dumps(key): each
                for key, each in pairs
                if isinstance(key, (str, int))
            }
            return texts if len(texts) == len(pairs) else pairs
        case list() | tuple() | Set():
            return [_for_json(each) for each in value]
    if _is_array(value):
        data = _for_json(_array_items(value))
        return {"dtype": str(value.dtype), "shape": [*map(int, value.shape)], "data": data} if value.shape else data
    if hasattr(value, "to_pylist"):  # Arrow's.
        return _for_json(value.to_pylist())
    try:
        builtins = msgspec.to_builtins(value, enc_hook=str)
    except Exception:  # Raised by the __str__ of a user's class.
        return object.__repr__(value)
    return builtins if isinstance(builtins, str) else _for_json(builtins)


def to_text(value: Any, *, compact: bool = False) -> str:
    """Return a readable text: JSON if JSON has the value, otherwise Python's notation. ``compact``: on one line."""
    text = _text(value, None if compact else "\n")
    return _CONTROL.sub(lambda found: f"\\u{ord(found[0]):04x}", text)


def _text(value: Any, line: str | None) -> str:
    """Return the readable text of a value. ``line``: line break and indentation at this depth; None for one line."""
    match value:
        case None | bool():
            return json.dumps(value)
        case str():
            return json.dumps(value, ensure_ascii=False)
        case int():
            return int.__repr__(value) if value.bit_length() <= _MAX_DECIMAL_BITS else hex(value)
        case float():
            return _number_text(value)
        case memoryview():
            return _text(value.tobytes(), line)  # Its items may be larger than bytes.
        case bytes() | bytearray():
            start = bytes(value[:_MAX_PRINTED])
            return repr(start) if len(value) <= _MAX_PRINTED else f"{start!r}... ({len(value):,} bytes)"
        case Mapping():
            inner = line and line + "  "
            pairs = (f"{_key_text(key)}: {_text(each, inner)}" for key, each in value.items())
            return _join_enclosed("{", pairs, "}", line)
        case list() | tuple() | Set():
            inner = line and line + "  "
            return _join_enclosed("[", (_text(each, inner) for each in value), "]", line)
    if _is_array(value):
        return _array_text(value, line)
    if isinstance(value, PurePath):
        return _text(str(value), line)
    try:
        return _text(msgspec.to_builtins(value), line)
    except Exception:  # msgspec does not support the type.
        return _one_line(_repr(value), line)


def _key_text(key: Any) -> str:
    """Return the text of a key of a dict."""
    if isinstance(key, tuple):
        return f"({', '.join(map(_key_text, key))}{',' * (len(key) == 1)})"
    return _text(key, None)


def _repr(value: Any) -> str:
    """Return the repr of a value, or the default one if the value's raises."""
    try:
        return repr(value)
    except Exception:  # Raised by a user's class.
        return object.__repr__(value)


def _join_enclosed(begin: str, items: Iterable[str], end: str, line: str | None) -> str:
    """Return items between delimiters, on one line or on several."""
    found = list(items)
    if not found:
        return begin + end
    if line is None:
        return begin + ", ".join(found) + end
    return f"{begin}{line}  {f',{line}  '.join(found)}{line}{end}"


def _number_text(value: float) -> str:
    """Return the text of a float, with the names of NaN and infinities."""
    if math.isfinite(value):
        return float.__repr__(value)
    return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"


def _is_array(value: Any) -> bool:
    """Return True for an array of NumPy or of a library with the same attributes."""
    return all(hasattr(value, name) for name in ("shape", "dtype", "tolist"))


def _array_items(value: Any) -> Any:
    """Return the items of an array as nested lists; of an array without dimensions, its value."""
    items = value.tolist()
    return items if type(items) is not type(value) else str(items)  # Python has no long double.


def _array_text(value: Any, line: str | None) -> str:
    """Return the shape, the dtype and a part of an array as text."""
    if not value.shape:
        return _text(_array_items(value), line)
    numpy = sys.modules.get("numpy")
    if numpy is not None and isinstance(value, numpy.ndarray):
        part = numpy.array2string(value, threshold=_MAX_PRINTED, separator=", ")
    else:
        part = str(value)
    return f"array(shape={tuple(value.shape)}, dtype={value.dtype}, {_one_line(part, line)})"


def _one_line(text: str, line: str | None) -> str:
    """Return a text on one line if ``line`` is None; indent its lines otherwise."""
    return " ".join(text.split()) if line is None else text.replace("\n", line)
