"""The sets and their tiles: what a worker paints. A tile has a zoom, a column and a row, as on a map of the world."""

from __future__ import annotations

from typing import Annotated, Final

import msgspec
import numpy as np
import numpy.typing as npt

#: Pixels along each side of a tile.
SIDE: Final = 256
#: Where the tile at zoom 0, column 0, row 0 begins, and how wide it is, in the plane.
ORIGIN: Final = complex(-2.5, -2.0)
EXTENT: Final = 4.0
#: With more, neighbouring pixels would be the same number: a double has 52 bits.
MAX_ZOOM: Final = 42

Pixels = npt.NDArray[np.uint8]
_Complex = npt.NDArray[np.complex128]

_Coordinate = Annotated[float, msgspec.Meta(ge=-4, le=4)]
_Place = Annotated[int, msgspec.Meta(ge=-(2**50), le=2**50)]


class Tile(msgspec.Struct, frozen=True, array_like=True):
    """A square of a set; rows are counted upwards."""

    zoom: Annotated[int, msgspec.Meta(ge=0, le=MAX_ZOOM)]
    column: _Place
    row: _Place
    #: The constant of a Julia set, as its two parts; the Mandelbrot set if there is none.
    julia: tuple[_Coordinate, _Coordinate] | None = None

    @property
    def limit(self) -> int:
        """After how many steps a point belongs to the set: the closer one looks, the more it takes to be sure."""
        return 128 + 48 * self.zoom

    def plane(self) -> _Complex:
        """Return the numbers at the centres of the pixels, the top row first; shape (SIDE, SIDE)."""
        extent = EXTENT / 2**self.zoom
        along = (np.arange(SIDE) + 0.5) / SIDE
        real = ORIGIN.real + (self.column + along) * extent
        imaginary = ORIGIN.imag + (self.row + along[::-1]) * extent
        plane: _Complex = real[np.newaxis, :] + 1j * imaginary[:, np.newaxis]
        return plane


def paint(tile: Tile) -> Pixels:
    """Return the colours of a tile: red, green, blue and opacity of each pixel; shape (SIDE, SIDE, 4)."""
    plane = tile.plane()
    if tile.julia is None:
        steps = _escape(np.zeros_like(plane), plane, tile.limit, known=_is_in_bulbs(plane))
    else:
        constant = np.full_like(plane, complex(*tile.julia))
        steps = _escape(plane, constant, tile.limit, known=np.zeros(plane.shape, bool))
    return _colour(steps)


def _is_in_bulbs(points: _Complex) -> npt.NDArray[np.bool_]:
    """Tell which points lie in the two largest parts of the Mandelbrot set, where each would take all steps."""
    shifted = points.real - 0.25
    distance = shifted**2 + points.imag**2
    in_cardioid = distance * (distance + shifted) <= points.imag**2 / 4
    in_circle = (points.real + 1) ** 2 + points.imag**2 <= 1 / 16
    return in_cardioid | in_circle


def _escape(start: _Complex, constant: _Complex, limit: int, known: npt.NDArray[np.bool_]) -> npt.NDArray[np.float64]:
    """Return how many steps of z → z² + c each point takes to leave, 0 for a point that never does.

    The steps have a fraction, so that colours change gently. ``known``: the points that never leave.
    """
    steps = np.zeros(start.size)
    left = np.flatnonzero(~known)  # The points that have not left.
    z, c = start.ravel()[left], constant.ravel()[left]
    for step in range(1, limit + 1):
        z = z * z + c
        away = z.real**2 + z.imag**2
        gone = away > 256.0
        if gone.any():
            steps[left[gone]] = step + 1 - np.log2(np.log2(away[gone]) / 2)
            stay = ~gone
            left, z, c = left[stay], z[stay], c[stay]
            if not left.size:
                break
    return steps.reshape(start.shape)


def _colour(steps: npt.NDArray[np.float64]) -> Pixels:
    """Return colours that change with the number of steps; black for points that never leave."""
    phase = np.sqrt(np.maximum(steps, 0))[..., np.newaxis] * 0.7 + np.array([3.6, 4.2, 4.9])
    pixels = np.full((*steps.shape, 4), 255, np.uint8)
    pixels[..., :3] = np.where(steps[..., np.newaxis] > 0, 127.5 * (1 + np.cos(phase)), 0).astype(np.uint8)
    return pixels
