"""Encoding of NumPy's dtypes."""

from __future__ import annotations

import functools
import re
import sys
from typing import Any, Final

#: Texts that NumPy reads as one of its own dtypes, without objects and without fields.
_TEXT: Final = re.compile(r"[<>|][biufcSUV]\d+|[<>][mM]8(\[\d*[A-Za-z]+\])?")
_MAX_KEPT: Final = 1024
_encoded: Final[dict[Any, Any]] = {}


class HoldsObjects(TypeError):
    """Error of an array of Python objects, which mean nothing to another process."""


def encode(dtype: Any) -> Any:
    """Return the encoding of a dtype: a text, or a dict of parts.

    Raises HoldsObjects for one with Python objects, TypeError for another one that cannot be sent.
    """
    try:
        encoding = _encoded[dtype]  # Faster than `functools.lru_cache`.
    except KeyError:
        if len(_encoded) >= _MAX_KEPT:
            _encoded.clear()
        encoding = _encoded[dtype] = _encode(dtype)
    # The dtype of records equals that of plain structures.
    return encoding if dtype.type.__name__ != "record" else {"record": encoding}


def _encode(dtype: Any) -> Any:
    """Return the encoding of a dtype without the cache, and without the mark of records."""
    if dtype.hasobject:
        raise HoldsObjects(
            f"a NumPy array of Python objects (dtype {dtype}) cannot be sent: use .tolist(), or codec='pickle'"
        )
    if dtype.subdtype is not None:
        base, shape = dtype.subdtype
        return {"base": encode(base), "shape": list(shape)}
    if dtype.names is None:
        try:
            is_own = sys.modules["numpy"].dtype(dtype.str) == dtype
        except TypeError:  # NumPy has no dtype of this name.
            is_own = False
        if not is_own:
            raise TypeError(f"the dtype {dtype} is not NumPy's own and cannot be sent: {_advise_bits(dtype)}")
        return dtype.str
    # Each field has a dtype, an offset and perhaps a title.
    fields = ((name, *dtype.fields[name]) for name in dtype.names)
    return {
        "fields": [[name, encode(field), *rest] for name, field, *rest in fields],
        "itemsize": dtype.itemsize,
    }


def _advise_bits(dtype: Any) -> str:
    """Return the advice to send the bits of a dtype that is not NumPy's own."""
    return f"send value.view('u{dtype.itemsize}'), and call .view({dtype.name!r}) on what arrives"


def build(np: Any, encoded: Any) -> Any:
    """Build the dtype for an encoding. Raises ValueError, TypeError or KeyError for an invalid encoding."""
    if isinstance(encoded, str):
        return _build_from_text(np, encoded)
    if "record" in encoded:
        return np.dtype((np.record, build(np, encoded["record"])))
    if "base" in encoded:
        return np.dtype((build(np, encoded["base"]), tuple(encoded["shape"])))
    names, formats, offsets, titles = [], [], [], []
    for name, field, offset, *title in encoded["fields"]:
        names.append(name)
        formats.append(build(np, field))
        offsets.append(offset)
        titles.append(title[0] if title else None)
    fields = {"names": names, "formats": formats, "offsets": offsets, "itemsize": encoded["itemsize"]}
    if any(title is not None for title in titles):
        fields["titles"] = titles
    return np.dtype(fields)


@functools.lru_cache(_MAX_KEPT)
def _build_from_text(np: Any, text: str) -> Any:
    """Build a dtype without fields from its text. Raises ValueError for a text that NumPy might read differently.

    Raises TypeError for a size that NumPy does not have, as in ``<f3``.
    """
    if not _TEXT.fullmatch(text):
        raise ValueError(f"{text[:100]!r} is not a dtype that travels")
    return np.dtype(text)
