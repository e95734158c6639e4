"""A window on the Mandelbrot set in parts, each an array of bytes; point by point in Python, as a study painted it."""

from __future__ import annotations

import itertools
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

#: The edges of a window.
_LEFT, _RIGHT, _BOTTOM, _TOP = -2.2, 0.8, -1.4, 1.4
#: After how many steps a point belongs to the set.
STEPS: Final = 100


class Part(NamedTuple):
    """Some of a window's points, one row after the other."""

    width: int
    height: int
    #: The first of them, and the first that is not.
    start: int
    stop: int


def parts(width: int, height: int, count: int) -> list[Part]:
    """Return a window, cut into parts of about the same size."""
    total = width * height
    ends = [total * number // count for number in range(count + 1)]
    return [Part(width, height, start, stop) for start, stop in itertools.pairwise(ends)]


def paint(part: Part) -> npt.NDArray[np.uint8]:
    """After how many steps each of its points leaves; 0 if it never does."""
    width, height, start, stop = part
    found = bytearray(stop - start)
    for place in range(start, stop):
        row, column = divmod(place, width)
        point = complex(
            _LEFT + (_RIGHT - _LEFT) * column / width,
            _BOTTOM + (_TOP - _BOTTOM) * row / height,
        )
        z = 0j
        for step in range(1, STEPS):
            z = z * z + point
            if z.real * z.real + z.imag * z.imag > 4:
                found[place - start] = step
                break
    return np.frombuffer(found, np.uint8)
