"""Tasks of a study for other processes: nothing, bytes or ints, and painting."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from benchmark.mandelbrot import paint


def nothing(size: int) -> None:
    """Do nothing."""


def some_bytes(size: int) -> bytes:
    """So many bytes."""
    return b"\1" * size


def some_ints(size: int) -> list[int]:
    """So many ints, in a list."""
    return list(range(size))


def an_array(size: int) -> npt.NDArray[np.int64]:
    """So many ints, in an array."""
    return np.arange(size)


#: By name; what each is given is a size, or a part of a window.
TASKS: Final[dict[str, Callable[[Any], Any]]] = {
    "nothing": nothing,
    "bytes": some_bytes,
    "ints": some_ints,
    "array": an_array,
    "paint": paint,
}


def check(task: str, size: int, result: Any) -> None:
    """Raise ValueError if this is not what the task gives."""
    expected = TASKS[task](size)
    same = np.array_equal(result, expected) if task == "array" else result == expected
    if not same:
        raise ValueError(f"{task} of {size:,}: another result came")
