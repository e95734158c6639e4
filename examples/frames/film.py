"""The frames, the small frames that the workers make of them, and the picture that consists of small frames."""

from __future__ import annotations

import zlib
from pathlib import Path
from typing import Final, TypeAlias

import numpy as np
import numpy.typing as npt

Frame: TypeAlias = npt.NDArray[np.uint8]
#: Height, width and colours.
Shape: TypeAlias = tuple[int, int, int]

#: Pixels of a frame for one pixel of the picture, in each direction.
SCALE: Final = 8
#: The frames of a row of the picture.
COLUMNS: Final = 8


def draw(frame: Frame, number: int, count: int) -> None:
    """Draw a frame: a disc that crosses a sky."""
    height, width, _ = frame.shape
    y, x = np.ogrid[:height, :width]
    time = number / max(1, count - 1)
    frame[..., 0] = 40 + 60 * time
    frame[..., 1] = 60 + 80 * y // height
    frame[..., 2] = 120 + 120 * y // height
    center = width * (0.1 + 0.8 * time), height * (0.8 - 2.4 * time * (1 - time))
    disc = (x - center[0]) ** 2 + (y - center[1]) ** 2 < (height / 8) ** 2
    frame[disc] = (255, 220, 80)


def shrink(frame: Frame) -> Frame:
    """Return a small frame with dark edges: the mean of each square of pixels, darker where the colours change."""
    height, width, colours = frame.shape
    squares = frame.reshape(height // SCALE, SCALE, width // SCALE, SCALE, colours)
    small = squares.mean(axis=(1, 3))
    light = small.mean(axis=2)
    edges = np.hypot(*np.gradient(light))
    found: Frame = np.clip(small - edges[..., np.newaxis], 0, 255).astype(np.uint8)
    return found


def expected(number: int, count: int, shape: Shape) -> Frame:
    """Return the small frame that a worker has to make of a frame."""
    frame = np.empty(shape, np.uint8)
    draw(frame, number, count)
    return shrink(frame)


class Picture:
    """Small frames side by side, in rows."""

    def __init__(self, count: int, shape: Shape) -> None:
        self._height, self._width = shape[0] // SCALE, shape[1] // SCALE
        rows = -(-count // COLUMNS)
        self.pixels = np.zeros((rows * self._height, COLUMNS * self._width, 3), np.uint8)

    def part(self, number: int) -> Frame:
        """Return the part of the picture for a frame."""
        row, column = divmod(number, COLUMNS)
        top, left = row * self._height, column * self._width
        return self.pixels[top : top + self._height, left : left + self._width]

    def write(self, path: Path) -> None:
        """Write the picture as PNG."""
        height, width, _ = self.pixels.shape
        header = width.to_bytes(4, "big") + height.to_bytes(4, "big") + bytes([8, 2, 0, 0, 0])  # 8 bits each, RGB.
        rows = np.zeros((height, 1 + 3 * width), np.uint8)  # Before each row: that it is not filtered.
        rows[:, 1:] = self.pixels.reshape(height, -1)
        chunks = [(b"IHDR", header), (b"IDAT", zlib.compress(rows.tobytes())), (b"IEND", b"")]
        path.write_bytes(b"\x89PNG\r\n\x1a\n" + b"".join(_chunk(*each) for each in chunks))


def _chunk(kind: bytes, content: bytes) -> bytes:
    return len(content).to_bytes(4, "big") + kind + content + zlib.crc32(kind + content).to_bytes(4, "big")
