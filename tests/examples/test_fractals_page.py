"""The explorer's page in Chromium: it shows a set, moves, zooms, and goes on when a worker is killed."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest
from PIL import Image

from examples.fractals.picture import Canvas, Scene
from examples.fractals.sets import paint

if TYPE_CHECKING:
    from playwright.sync_api import Page

pytestmark = pytest.mark.skipif(not os.environ.get("SHMRPC_BROWSER"), reason="needs Chromium: make test-browser")

WIDTH, HEIGHT = 1000, 700
#: Where the panel covers the picture.
PANEL = 260


@pytest.fixture
def page() -> Iterator[Page]:
    """Yield the page of a browser that shows an explorer with all its tiles."""
    from playwright.sync_api import sync_playwright

    browser_path = shutil.which("chromium")
    assert browser_path, "chromium is missing: apt install chromium"
    command = [sys.executable, "-m", "examples.fractals", "--port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            found = re.search(r"(http://\S+),", process.stdout.readline())
            assert found is not None
            with sync_playwright() as playwright:
                browser = playwright.chromium.launch(executable_path=browser_path, args=["--no-sandbox"])
                page = browser.new_page(viewport={"width": WIDTH, "height": HEIGHT})
                faults: list[str] = []
                page.on("pageerror", lambda error: faults.append(str(error)))
                page.goto(found[1])
                settle(page)
                yield page
                assert not faults
                browser.close()
        finally:
            process.terminate()
            process.wait(60)


def settle(page: Page) -> None:
    """Wait until the page has drawn all its tiles."""
    page.wait_for_timeout(100)  # The page asks for tiles when it draws the next time.
    page.wait_for_function("document.getElementById('missing').textContent === '0'", timeout=120_000)
    page.wait_for_timeout(100)


def shown(page: Page, path: Path) -> np.ndarray[tuple[int, ...], np.dtype[np.uint8]]:
    """Return the visible picture beside the panel."""
    page.screenshot(path=path)
    return np.asarray(Image.open(path).convert("RGB"))[:, : WIDTH - PANEL]


def painted(
    centre: complex, zoom: int, julia: tuple[float, float] | None = None
) -> np.ndarray[tuple[int, ...], np.dtype[np.uint8]]:
    """Return the same part of the picture, painted in this process."""
    scene = Scene(WIDTH, HEIGHT, centre, zoom, julia)
    canvas = Canvas(scene)
    for tile in scene.tiles():
        canvas.add(tile, paint(tile))
    return np.asarray(canvas.picture().convert("RGB"))[:, : WIDTH - PANEL]


def assert_alike(
    one: np.ndarray[tuple[int, ...], np.dtype[np.uint8]], other: np.ndarray[tuple[int, ...], np.dtype[np.uint8]]
) -> None:
    """Check that two pictures are the same up to a shift of one pixel, because the page rounds."""
    best = min(
        float(np.mean(np.abs(np.roll(one, (down, right), (0, 1))[4:-4, 4:-4].astype(int) - other[4:-4, 4:-4]) > 8))
        for down in (-1, 0, 1)
        for right in (-1, 0, 1)
    )
    assert best < 0.01


def workers(page: Page) -> list[str]:
    """Return the process ids that the panel shows."""
    return [line.split()[0] for line in page.locator(".worker").all_inner_texts()]


def test_the_page_shows_the_set(page: Page, tmp_path: Path) -> None:
    assert_alike(shown(page, tmp_path / "page.png"), painted(-0.5, 2))
    assert len(workers(page)) >= 1
    assert re.fullmatch(r"\d+\.\d\d %", page.locator("#transport").inner_text())


def test_dragging_and_zooming_show_the_right_part(page: Page, tmp_path: Path) -> None:
    page.mouse.move(400, 350)
    page.mouse.down()
    page.mouse.move(300, 250, steps=5)
    page.mouse.up()
    settle(page)
    centre = -0.5 + complex(100, -100) * 4 / 2**2 / 256
    assert_alike(shown(page, tmp_path / "moved.png"), painted(centre, 2))
    page.mouse.move(WIDTH / 2, HEIGHT / 2)
    for _ in range(2):
        page.mouse.wheel(0, -100)
        page.wait_for_timeout(50)
    settle(page)
    assert_alike(shown(page, tmp_path / "near.png"), painted(centre, 4))


def test_a_julia_set_is_that_of_the_middle(page: Page, tmp_path: Path) -> None:
    page.click("#set")
    settle(page)
    assert_alike(shown(page, tmp_path / "julia.png"), painted(0j, 2, (-0.5, 0.0)))


def test_the_page_goes_on_when_a_worker_is_killed(page: Page, tmp_path: Path) -> None:
    page.wait_for_function("document.querySelectorAll('.worker').length > 0")
    before = workers(page)
    page.mouse.move(WIDTH / 2, HEIGHT / 2)
    page.mouse.wheel(0, -100)
    page.click("#kill")
    settle(page)
    shown_pids = "[...document.querySelectorAll('.worker')].map(worker => worker.innerText.split(/\\s/)[0])"
    page.wait_for_function(f"before => !before.every(pid => {shown_pids}.includes(pid))", arg=before)
    page.wait_for_function(f"before => {shown_pids}.length === before.length", arg=before)
    assert_alike(shown(page, tmp_path / "page.png"), painted(-0.5, 3))
