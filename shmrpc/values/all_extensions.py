"""All extensions: the codecs make their tables of these, and docs/wire.md lists them."""

from __future__ import annotations

from typing import Final

from shmrpc.values import (
    arrays,
    arrow,
    buffers,
    foreign_arrays,
    jax_arrays,
    mappings,
    pickling,
    references,
    registry,
    standard,
    tensors,
)
from shmrpc.values.extension import Extension

#: The modules that add types. Their classes are tried in this order: NumPy's float64 is a float too.
_MODULES: Final = (
    *(arrays, tensors, jax_arrays, arrow, buffers, standard, mappings, registry, references, pickling),
    foreign_arrays,
)

ALL_EXTENSIONS: Final[tuple[Extension, ...]] = tuple(each for module in _MODULES for each in module.EXTENSIONS)
