"""The figures of a published study of shared memory for a pool of processes, as data. Times in microseconds.

They are of another machine and of another language, and stand beside ours for what they are: what its authors saw.
"""

from __future__ import annotations

from typing import Final, NamedTuple

_SIZES: Final = (10, 100, 1_000, 10_000, 100_000, 1_000_000)
_FROM_ONE: Final = (1, *_SIZES)


def _by_size(sizes: tuple[int, ...], *figures: float) -> dict[int, float]:
    return dict(zip(sizes, figures, strict=True))


class Window(NamedTuple):
    """A window of its fractal explorer: its size in pixels, seconds, arrays that were sent, bytes of them all."""

    width: int
    height: int
    seconds: float
    arrays: int
    bytes: int


#: Tables 1 and 2: a connection, a mutex there and back, a datagram and its reply.
CONNECT: Final = 123.0
MUTEX: Final = 117.0
DATAGRAMS: Final = 399.0
#: Table 3, by the bytes of a raw memory: read, written, both. What it gives as "<= 1" stands as 1.
MEMORY_SIZES: Final = (1_000, 10_000, 100_000, 1_000_000)
MEMORY: Final = {
    "read": _by_size(MEMORY_SIZES, 1, 3, 53, 509),
    "write": _by_size(MEMORY_SIZES, 1, 1, 8, 80),
    "both": _by_size(MEMORY_SIZES, 1, 3, 23, 343),
}
#: Table 4, by the number of ints: to bytes, and back.
INTS: Final = {
    "to bytes": _by_size(_SIZES, 1, 4, 38, 380, 4_187, 42_220),
    "from bytes": _by_size(_SIZES, 1, 3, 27, 273, 2_670, 27_772),
}
#: Table 5, by the number of ints: its serializer.
SERIALIZER: Final = {
    "encode": _by_size(_FROM_ONE, 51, 53, 79, 371, 3_050, 30_410, 308_082),
    "decode": _by_size(_FROM_ONE, 21, 18, 20, 43, 289, 2_605, 29_925),
}
#: Table 6: an empty task by sockets.
EMPTY: Final = 12_519.0
#: Table 7, by their number: a task that gives bytes, and one that gives an array of ints, all by sockets.
BY_SOCKETS: Final = {
    "bytes": _by_size(_SIZES, 9_387, 8_499, 8_327, 10_478, 21_463, 123_933),
    "array": _by_size(_SIZES, 8_185, 9_387, 12_001, 25_702, 166_141, 1_518_115),
}
#: Tables 8 and 9: the command by sockets, its result in memory, with a mutex around it and without.
PROTECTED: Final = {
    "bytes": _by_size(_FROM_ONE, 16_434, 15_425, 15_346, 15_344, 15_324, 15_341, 17_883),
    "array": _by_size(_FROM_ONE, 17_133, 18_281, 17_277, 18_327, 18_010, 23_810, 104_050),
}
UNPROTECTED: Final = {
    "bytes": _by_size(_FROM_ONE, 15_739, 13_263, 14_363, 14_345, 14_453, 14_416, 15_152),
    "array": _by_size(_FROM_ONE, 13_526, 13_662, 14_736, 14_492, 15_251, 22_278, 99_906),
}
#: Table 10: command and result by memory.
BY_MEMORY: Final = _by_size(_SIZES, 307, 312, 397, 1_372, 10_604, 99_093)
#: Table 11: its fractal explorer.
WINDOWS: Final = (
    Window(191, 186, 10, 16, 37_050),
    Window(385, 324, 40, 72, 130_808),
    Window(627, 491, 109, 180, 322_926),
)
#: A Mandelbrot set of 37,177 steps, in seconds: by one image, by a drone, by eight.
MANDELBROT: Final = (1_423.0, 591.0, 184.0)
