"""All extensions: the codecs make their tables of these, and docs/wire.md describes them."""

from __future__ import annotations

from typing import Final

from shmrpc.values import arrays, arrow, buffers, pickling, registry, standard, tensors
from shmrpc.values.extension import Extension

#: In the order in which they are asked: NumPy's float64 is a float too.
ALL_EXTENSIONS: Final[tuple[Extension, ...]] = (
    *arrays.EXTENSIONS,
    *tensors.EXTENSIONS,
    *arrow.EXTENSIONS,
    *buffers.EXTENSIONS,
    *standard.EXTENSIONS,
    *registry.EXTENSIONS,
    *pickling.EXTENSIONS,
)
