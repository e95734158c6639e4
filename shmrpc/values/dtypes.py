"""The types of NumPy's elements, as they travel."""

from __future__ import annotations

import functools
import re
from typing import Any, Final

#: Objects are none of them, and neither are the texts that NumPy reads as several fields.
_TEXT: Final = re.compile(r"[<>|][biufcSUV]\d+|[<>][mM]8(\[\d*[A-Za-z]+\])?")


_described: Final[dict[Any, Any]] = {}
_MAX_KEPT: Final = 1024


class HoldsObjects(TypeError):
    """Elements that are Python's objects mean nothing to another process."""


def describe(np: Any, dtype: Any) -> Any:
    """What travels for a dtype; TypeError for one that cannot."""
    try:
        return _described[dtype]
    except KeyError:
        if len(_described) >= _MAX_KEPT:
            _described.clear()
        made = _described[dtype] = _describe(np, dtype)
        return made


def _describe(np: Any, dtype: Any) -> Any:
    if dtype.hasobject:
        raise HoldsObjects(
            f"a NumPy array of Python objects (dtype {dtype}) cannot be sent: use .tolist(), or codec='pickle'"
        )
    if dtype.subdtype is not None:
        base, shape = dtype.subdtype
        return {"base": describe(np, base), "shape": list(shape)}
    if dtype.names is None:
        if np.dtype(dtype.str) != dtype:
            raise TypeError(f"the dtype {dtype} is not NumPy's own and cannot be sent: send a .view() as integers")
        return dtype.str
    fields = [[name, describe(np, field), *rest] for name, (field, *rest) in _fields_of(dtype)]
    return {"fields": fields, "itemsize": dtype.itemsize}


def _fields_of(dtype: Any) -> list[tuple[str, Any]]:
    # The dtype of each, its offset and perhaps its title.
    return [(name, dtype.fields[name]) for name in dtype.names]


def build(np: Any, described: Any) -> Any:
    """The dtype; ValueError or TypeError if there is none such."""
    if isinstance(described, str):
        return _build_simple(np, described)
    if "base" in described:
        return np.dtype((build(np, described["base"]), tuple(described["shape"])))
    names, formats, offsets, titles = [], [], [], []
    for name, field, offset, *title in described["fields"]:
        names.append(name)
        formats.append(build(np, field))
        offsets.append(offset)
        titles.append(title[0] if title else None)
    fields = {"names": names, "formats": formats, "offsets": offsets, "itemsize": described["itemsize"]}
    if any(title is not None for title in titles):
        fields["titles"] = titles
    return np.dtype(fields)


@functools.lru_cache(_MAX_KEPT)
def _build_simple(np: Any, text: str) -> Any:
    if not _TEXT.fullmatch(text):
        raise ValueError(f"{text[:100]!r} is no dtype that travels")
    return np.dtype(text)
