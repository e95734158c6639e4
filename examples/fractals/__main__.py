"""Run with ``python -m examples.fractals``: an explorer of Mandelbrot and Julia sets, on a web page.

``--out picture.png`` paints a picture instead. Both are painted by a pool of processes.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import re
import sys
from pathlib import Path

import uvicorn
from rich.console import Console

from examples.fractals.app import app
from examples.fractals.picture import Scene, draw
from examples.fractals.sets import MAX_ZOOM


def _size(text: str) -> tuple[int, int]:
    found = re.fullmatch(r"(\d{1,5})x(\d{1,5})", text)
    if not found or not all(1 <= int(side) <= 20_000 for side in found.groups()):
        raise argparse.ArgumentTypeError(f"expected a size such as 1920x1080, up to 20000 each, got {text!r}")
    return int(found[1]), int(found[2])


def _number(text: str) -> complex:
    try:
        number = complex(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"expected a complex number such as -0.75+0.1j, got {text!r}") from None
    if not (abs(number.real) <= 4 and abs(number.imag) <= 4):
        raise argparse.ArgumentTypeError(f"expected a number near the sets, of parts from -4 to 4, got {text!r}")
    return number


def _zoom(text: str) -> int:
    if not text.isdecimal() or not int(text) <= MAX_ZOOM:
        raise argparse.ArgumentTypeError(f"expected a zoom from 0 to {MAX_ZOOM}, got {text!r}")
    return int(text)


def _workers(text: str) -> int:
    if not text.isdecimal() or not int(text):
        raise argparse.ArgumentTypeError(f"expected 1 worker or more, got {text!r}")
    return int(text)


def explore(port: int) -> None:
    """Serve the page until Ctrl-C. ``port`` 0 is any free port."""
    config = uvicorn.Config(app, port=port, log_level="warning")
    with config.bind_socket() as bound:
        bound.listen()  # A browser that comes before the workers are ready waits for them.
        sys.stdout.write(f"The explorer is at http://127.0.0.1:{bound.getsockname()[1]}, until Ctrl-C.\n")
        sys.stdout.flush()
        with contextlib.suppress(KeyboardInterrupt):  # Raised again once the server has ended.
            uvicorn.Server(config).run([bound])


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(prog="python -m examples.fractals", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--port", type=int, default=8000, help="where the page is, on this host alone (8000; 0: any)")
    picture = parser.add_argument_group("a picture")
    picture.add_argument("--out", type=Path, metavar="PICTURE", help="the file to paint into, such as picture.png")
    picture.add_argument("--size", type=_size, default=(1280, 960), help="in pixels (1280x960)")
    picture.add_argument("--centre", type=_number, default=complex(-0.5), help="its middle: --centre=-0.75+0.1j (-0.5)")
    picture.add_argument("--zoom", type=_zoom, default=2, help="how often the scale is doubled (2)")
    picture.add_argument("--julia", type=_number, metavar="C", help="a Julia set: --julia=-0.8+0.156j")
    picture.add_argument("--workers", type=_workers, help="processes (one for each CPU)")
    options = parser.parse_args()
    if options.out is None:
        explore(options.port)
        return
    julia = None if options.julia is None else (options.julia.real, options.julia.imag)
    width, height = options.size
    scene = Scene(width, height, options.centre, options.zoom, julia)
    asyncio.run(draw(scene, options.out, options.workers, Console()))


if __name__ == "__main__":
    main()
