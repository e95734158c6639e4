"""The points of the example are all there, whichever process is killed on the way."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import shmrpc
from examples.game import __main__ as game
from examples.game import world


def test_no_point_is_missing_after_players_were_killed() -> None:
    command = [sys.executable, "-m", "examples.game", "--kills", "3"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "Traceback" not in done.stderr
    said = re.search(r"(\d+) players were killed, (\d+) of them within a move.* and (\d+) before", done.stdout)
    assert said is not None, done.stdout
    killed, within, lost = map(int, said.groups())
    assert killed == 3 and within >= 2 and lost <= 3


def test_a_move_that_the_world_forgets_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    written = game.Table.written
    monkeypatch.setattr(game.Table, "written", lambda table, name: written(table, name) + (name == "Ada") * 10**9)
    (fault,) = game.run(1, tmp_path)
    assert re.fullmatch(r"move \d+ of Ada was done, and is forgotten", fault)


def _world() -> dict[str, Any]:
    with shmrpc.sync.store("tested.game") as s:
        world.make(s, ["Ada", "Tony"])
        ada, tony = s["players"]["Ada"], s["players"]["Tony"]
        for move in range(200):
            with s.transaction():
                points = ada.points
                ada.find(world.treasure("Ada", move))
                s["found"] += ada.points - points
                ada.moves += 1
                tony.rob(ada)
        made: dict[str, Any] = s.copy()
    assert world.faults(made) == [] and world.is_complete(made)
    return made


def test_a_point_that_is_missing_and_one_too_many_are_found() -> None:
    made = _world()
    for points in (-1, 2):
        made["players"]["Tony"].points += points
        assert len(world.faults(made)) == 2
    made["found"] += 1
    assert len(world.faults(made)) == 1 and not world.is_complete(made)


def test_a_move_without_its_points_is_found() -> None:
    made = _world()
    made["players"]["Ada"].moves += 1
    assert world.faults(made) == [] and not world.is_complete(made)
