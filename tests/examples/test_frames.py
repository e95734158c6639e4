"""The frames of the example are all in the picture, also after a worker was killed."""

from __future__ import annotations

import re
import subprocess
import sys
import zlib
from pathlib import Path

import numpy as np
import pytest

from examples.frames import __main__ as frames
from examples.frames.film import Picture, Shape


def test_no_frame_is_missing_after_a_worker_was_killed(tmp_path: Path) -> None:
    path = tmp_path / "frames.png"
    options = ["--frames", "24", "--height", "240", "--width", "320"]
    command = [sys.executable, "-m", "examples.frames", *options, str(path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "Traceback" not in done.stderr
    assert re.search(r"worker \d+ was killed; delivered again: frame \d+", done.stdout)
    content = path.read_bytes()
    assert content.startswith(b"\x89PNG")
    assert content[16:24] == (8 * 40).to_bytes(4, "big") + (3 * 30).to_bytes(4, "big")
    at = content.index(b"IDAT")
    rows = zlib.decompress(content[at + 4 : at + 4 + int.from_bytes(content[at - 4 : at], "big")])
    assert len(rows) == 90 * (1 + 3 * 320)


def test_a_frame_that_is_missing_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Forgetful(Picture):
        def part(self, number: int) -> np.ndarray:
            return super().part(number) if number != 7 else np.zeros_like(super().part(number))

    monkeypatch.setattr(frames, "Picture", Forgetful)
    shape: Shape = (120, 160, 3)
    assert frames.run(16, shape, tmp_path / "frames.png") == ["frame 7 is missing or wrong"]
