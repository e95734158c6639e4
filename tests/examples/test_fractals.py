"""The fractal explorer: tiles that fit together, what leaves the view is cancelled, and a killed worker loses none."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from websockets.exceptions import ConnectionClosed
from websockets.sync.client import ClientConnection, connect

from examples.fractals.picture import Canvas, Scene
from examples.fractals.sets import EXTENT, ORIGIN, SIDE, Pixels, Tile, paint

_BLACK = (0, 0, 0, 255)


def colour_at(point: complex, zoom: int, julia: tuple[float, float] | None = None) -> tuple[int, ...]:
    """Return the colour of a number, from the tile that contains the number."""
    place = (point - ORIGIN) / (EXTENT / 2**zoom)
    column, row = int(place.real), int(place.imag)
    x, y = int((place.real - column) * SIDE), SIDE - 1 - int((place.imag - row) * SIDE)
    return tuple(map(int, paint(Tile(zoom, column, row, julia))[y, x]))


@pytest.mark.parametrize("zoom", [0, 3, 8])
def test_only_members_of_the_set_are_black(zoom: int) -> None:
    inside = [0j, -1 + 0j, -0.12 + 0.74j, 0.25 + 0.5j - 0.01, -1.3 + 0j]
    outside = [0.5 + 0j, -2.1 + 0j, 1j + 0.2, -0.75 + 0.5j]
    assert [colour_at(point, zoom) for point in inside] == [_BLACK] * len(inside)
    assert _BLACK not in [colour_at(point, zoom) for point in outside]


def test_a_julia_set_is_that_of_its_constant() -> None:
    assert colour_at(0.99j, 3, (0.0, 0.0)) == _BLACK  # The unit disc.
    assert colour_at(0.8 + 0.7j, 3, (0.0, 0.0)) != _BLACK
    assert colour_at(0j, 3, (0.5, 0.5)) != _BLACK


def test_a_tile_is_its_four_parts() -> None:
    # At every second pixel of a part, half a pixel beside the middle of the whole's: where it is smooth they agree.
    whole = paint(Tile(2, 0, 0)).astype(int)
    parts = np.block(
        [[[paint(Tile(3, column, row))] for column in (0, 1)] for row in (1, 0)]  # The upper ones first.
    ).astype(int)
    assert np.abs(parts[::2, ::2] - whole).max() <= 2


def test_a_scene_shows_what_its_tiles_do() -> None:
    scene = Scene(300, 200, complex(-0.7, 0.3), 3, None)
    canvas = Canvas(scene)
    for tile in scene.tiles():
        canvas.add(tile, paint(tile))
    shown = np.asarray(canvas.picture())
    assert shown.shape == (200, 300, 4)
    left, bottom = scene.corner()
    pixel = EXTENT / 2**3 / SIDE
    for x, y in ((0, 0), (299, 0), (150, 100), (0, 199), (299, 199)):
        point = ORIGIN + complex(left + x + 0.5, bottom + (199 - y) + 0.5) * pixel
        assert tuple(map(int, shown[y, x])) == colour_at(point, 3)


def test_the_command_paints_a_picture(tmp_path: Path) -> None:
    path = tmp_path / "picture.png"
    command = [sys.executable, "-m", "examples.fractals", "--out", str(path), "--size", "700x300", "--workers", "2"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "by 2 workers" in done.stdout.replace("\n", " ")
    scene = Scene(700, 300, complex(-0.5), 2, None)
    canvas = Canvas(scene)
    for tile in scene.tiles():
        canvas.add(tile, paint(tile))
    assert np.array_equal(np.asarray(Image.open(path)), np.asarray(canvas.picture()))


@pytest.mark.parametrize(
    ("option", "told"),
    [
        ("--size=9", "expected a size such as 1920x1080"),
        ("--centre=up", "expected a complex number"),
        ("--julia=9", "expected a number near the sets"),
        ("--zoom=99", "expected a zoom from 0 to 42"),
        ("--workers=0", "expected 1 worker or more"),
    ],
)
def test_a_wrong_option_is_reported(option: str, told: str) -> None:
    command = [sys.executable, "-m", "examples.fractals", option]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 2
    assert told in done.stderr.replace("\n", " ")


@pytest.fixture
def socket() -> Iterator[ClientConnection]:
    """Yield a page's connection to an explorer."""
    command = [sys.executable, "-m", "examples.fractals", "--port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            found = re.search(r"http://(\S+),", process.stdout.readline())
            assert found is not None
            with connect(f"ws://{found[1]}/tiles", max_size=None) as connection:
                yield connection
        finally:
            process.terminate()
            _, errors = process.communicate(timeout=60)
    assert "Traceback" not in errors, errors


def show(socket: ClientConnection, tiles: dict[int, Tile]) -> None:
    """Says what the page shows."""
    listed = [[number, [tile.zoom, tile.column, tile.row, tile.julia]] for number, tile in tiles.items()]
    socket.send(json.dumps({"type": "show", "tiles": listed}))


def come(socket: ClientConnection, count: int) -> tuple[dict[int, Pixels], list[dict[str, Any]]]:
    """Receive so many tiles, and return them by number, with the reports that came meanwhile."""
    tiles: dict[int, Pixels] = {}
    reports: list[dict[str, Any]] = []
    while len(tiles) < count:
        data = socket.recv(timeout=120)
        if isinstance(data, bytes):
            tiles[int.from_bytes(data[:4], "little")] = np.frombuffer(data[4:], np.uint8).reshape(SIDE, SIDE, 4)
        else:
            reports.append(json.loads(data))
    return tiles, reports


def report(socket: ClientConnection) -> dict[str, Any]:
    """Receive a report when no tiles are on their way."""
    data = socket.recv(timeout=120)
    assert isinstance(data, str)
    return json.loads(data)  # type: ignore[no-any-return]


def test_a_page_is_sent_the_tiles_that_it_shows(socket: ClientConnection) -> None:
    wanted = {number: Tile(3, number % 4, number // 4) for number in range(12)}
    show(socket, wanted)
    tiles, reports = come(socket, len(wanted))
    assert tiles.keys() == wanted.keys()
    for number, tile in wanted.items():
        assert np.array_equal(tiles[number], paint(tile))
    assert reports
    assert reports[0]["workers"]


def test_tiles_that_leave_the_view_are_not_painted(socket: ClientConnection) -> None:
    # Points near the edge of the set take all steps: a tile takes long.
    deep = {number: Tile(30, int(1.75 * 2**28) + number, 2**29) for number in range(200)}
    show(socket, deep)
    show(socket, {1000: Tile(0, 0, 0)})
    tiles, _ = come(socket, 1)
    while 1000 not in tiles:
        tiles |= come(socket, 1)[0]
    assert len(tiles) < 100, "tiles were painted although the page did not show them"
    show(socket, {2000: Tile(0, 0, 0)})
    assert come(socket, 1)[0].keys() == {2000}


def test_no_tile_is_lost_when_a_worker_is_killed(socket: ClientConnection) -> None:
    workers = report(socket)["workers"].keys()
    wanted = {number: Tile(6, 10 + number % 8, 28 + number // 8) for number in range(64)}
    show(socket, wanted)
    tiles, _ = come(socket, 8)
    socket.send(json.dumps({"type": "kill"}))
    rest, _ = come(socket, len(wanted) - 8)
    assert (tiles | rest).keys() == wanted.keys()
    for number in (0, 20, 40, 63):
        assert np.array_equal((tiles | rest)[number], paint(wanted[number]))
    assert len(report(socket)["workers"].keys() & workers) == len(workers) - 1, "no worker was killed"


@pytest.mark.parametrize(
    "text",
    ["", "{}", '{"type": "show", "tiles": 3}', '{"type": "show", "tiles": [[1, [99, 0, 0, null]]]}', '{"type": "die"}'],
)
def test_a_malformed_list_of_tiles_ends_the_connection(socket: ClientConnection, text: str) -> None:
    socket.send(text)
    with pytest.raises(ConnectionClosed) as told:
        come(socket, 1)
    assert told.value.rcvd is not None
    assert told.value.rcvd.code == 1003
    assert "expected a list of tiles" in told.value.rcvd.reason
