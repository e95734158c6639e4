"""Parts of the benchmark in other languages than Python: built when they are first needed, and loaded."""

from __future__ import annotations

import ctypes
import functools
import os
import subprocess
from pathlib import Path
from typing import Final

#: Optimised as the core is.
_RUSTC: Final = (
    "rustc",
    "--edition=2024",
    "--crate-type=cdylib",
    "-Copt-level=3",
    "-Ccodegen-units=1",
    "-Cpanic=abort",
)
_COMPILERS: Final = {".rs": _RUSTC, ".c": ("cc", "-O2", "-shared", "-fPIC", "-pthread")}


@functools.cache
def library(name: str) -> ctypes.CDLL:
    """Return the library of a source in this directory."""
    source = Path(__file__).with_name(name)
    built = source.parent / "target" / f"lib{source.stem}.so"
    if not built.exists() or built.stat().st_mtime < source.stat().st_mtime:
        built.parent.mkdir(exist_ok=True)
        fresh = built.with_suffix(f".{os.getpid()}.so")
        subprocess.run([*_COMPILERS[source.suffix], "-o", fresh, source], check=True)
        fresh.replace(built)
    return ctypes.CDLL(str(built))
