"""The ticks of the example are all recorded and watched, whichever process is stopped meanwhile."""

from __future__ import annotations

import itertools
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from examples.ticker import __main__ as ticker
from examples.ticker.market import Tick, is_jump, jumps, ticks


def test_no_tick_is_missing_though_the_chart_is_stopped(tmp_path: Path) -> None:
    path = tmp_path / "ticks.csv"
    command = [sys.executable, "-m", "examples.ticker", "--ticks", "6000", str(path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "Traceback" not in done.stderr
    found = re.search(r"the chart has shown (\d+) of them and skipped (\d+): it was stopped for 2000", done.stdout)
    assert found is not None, done.stdout
    assert int(found[1]) + int(found[2]) == 6000
    assert len(path.read_text().splitlines()) == 6000


def test_a_tick_that_is_missing_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    complete = ticker.recorded

    def forgetful(path: Path) -> list[tuple[int, Tick]]:
        return [each for each in complete(path) if each[0] != 7]

    monkeypatch.setattr(ticker, "recorded", forgetful)
    assert ticker.run(3000, tmp_path / "ticks.csv") == ["the recorder has not each tick, in order"]


def test_an_alarm_that_missed_a_tick_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ticker, "jumps", lambda count: [*jumps(count), count])
    assert ticker.run(3000, tmp_path / "ticks.csv") == ["the alarm has missed a jump, or made one up"]


def test_the_market_jumps_and_one_who_skips_ticks_cannot_tell() -> None:
    def prices() -> Iterator[float]:
        return (tick["price"] for tick in ticks(3000))

    assert jumps(3000) == [500, 1497, 2494]
    assert list(prices()) == list(prices())
    some = list(prices())[::50]
    assert sum(is_jump(before, after) for before, after in itertools.pairwise(some)) != 3
