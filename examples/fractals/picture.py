"""A set as one picture, painted by a pool, with a progress bar."""

from __future__ import annotations

import itertools
import math
import time
from pathlib import Path
from typing import NamedTuple

import numpy as np
from PIL import Image
from rich.console import Console

import shmrpc
from examples.fractals.painter import Painted, Painter, Ticker, paint_here
from examples.fractals.sets import EXTENT, ORIGIN, SIDE, Pixels, Tile


class Scene(NamedTuple):
    """The part of a set that a picture shows."""

    width: int  # Pixels.
    height: int
    centre: complex
    zoom: int
    julia: tuple[float, float] | None

    def corner(self) -> tuple[int, int]:
        """Column and row of its lower left pixel, counted from the origin of the plane's tiles."""
        pixel = EXTENT / 2**self.zoom / SIDE
        middle = (self.centre - ORIGIN) / pixel
        return math.floor(middle.real) - self.width // 2, math.floor(middle.imag) - self.height // 2

    def tiles(self) -> list[Tile]:
        """Return the tiles that cover the picture."""
        left, bottom = self.corner()
        columns = range(left // SIDE, (left + self.width - 1) // SIDE + 1)
        rows = range(bottom // SIDE, (bottom + self.height - 1) // SIDE + 1)
        return [Tile(self.zoom, column, row, self.julia) for row, column in itertools.product(rows, columns)]


class Canvas:
    """The tiles of a scene, side by side."""

    def __init__(self, scene: Scene) -> None:
        self._scene, tiles = scene, scene.tiles()
        self._left, self._top = min(tile.column for tile in tiles), max(tile.row for tile in tiles)
        columns = max(tile.column for tile in tiles) - self._left + 1
        rows = self._top - min(tile.row for tile in tiles) + 1
        self._pixels = np.zeros((rows * SIDE, columns * SIDE, 4), np.uint8)

    def add(self, tile: Tile, pixels: Pixels) -> None:
        """Copy the pixels of a tile into the picture."""
        x, y = (tile.column - self._left) * SIDE, (self._top - tile.row) * SIDE
        self._pixels[y : y + SIDE, x : x + SIDE] = pixels

    def picture(self) -> Image.Image:
        """Return the part of the tiles that the scene shows."""
        scene = self._scene
        left, bottom = scene.corner()
        x, y = left - self._left * SIDE, (self._top + 1) * SIDE - bottom - scene.height
        return Image.fromarray(self._pixels[y : y + scene.height, x : x + scene.width])


async def draw(scene: Scene, path: Path, workers: int | None, console: Console) -> None:
    """Paints a scene and writes it to a file, in the format that the file's name ends with."""
    canvas, ticker, tiles = Canvas(scene), Ticker(), scene.tiles()
    async with shmrpc.pool(workers) as pool:
        painter, painting, began = Painter(pool), 0.0, time.monotonic()
        async with ticker.running():
            async for tile, painted in pool.map(_paint_with_tile, tiles, ordered=False, on_progress="painting tiles"):
                done = Painted(*painted)
                painter.note(began, done)
                painting += done.ended - done.began
                canvas.add(tile, done.pixels)
        seconds, count = time.monotonic() - began, len(painter.workers())
    canvas.picture().save(path)
    rate, cpus = len(tiles) / seconds, painting / seconds
    console.print(
        f"{path}: {scene.width} x {scene.height} in {seconds:.2f} s by {count} workers, {rate:.1f} tiles/s, "
        f"{cpus:.2f} CPUs of painting; a 1 ms ticker meanwhile: p99 {ticker.p99 * 1e3:.2f} ms"
    )


def _paint_with_tile(tile: Tile) -> tuple[Tile, Painted]:
    """Paint as :func:`painter.paint_here` does; return the tile too, because results come in any order."""
    return tile, paint_here(tile)
