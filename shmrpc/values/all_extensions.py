"""Table of all extensions, for the codecs and for docs/wire.md."""

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

#: Modules with extensions. Their classes are tried in this order, because NumPy's float64 is a float, too.
_MODULES: Final = (
    *(arrays, tensors, jax_arrays, arrow, buffers, standard, mappings, registry, references, pickling),
    foreign_arrays,
)

ALL_EXTENSIONS: Final[tuple[Extension, ...]] = tuple(each for module in _MODULES for each in module.EXTENSIONS)
registry.add_native(kind for each in ALL_EXTENSIONS for kind in each.writers if isinstance(kind, type))
