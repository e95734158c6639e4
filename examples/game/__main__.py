"""Run with ``python -m examples.game``: eight players, a process each, play in one world, and some are killed.

The world is a store. In each move a player finds something and robs another, all of it or nothing. A scoreboard looks
at the world as it changes. This process kills players in the middle of what they do, and lets them come back.

The exit status is 1 if a point is missing or one too many, at the end or at any moment that the scoreboard has seen, or
if the world has forgotten a move that was done.
"""

from __future__ import annotations

import argparse
import contextlib
import multiprocessing
import os
import random
import signal
import sys
import tempfile
import time
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any, Final

import shmrpc
from examples.game.processes import PATIENCE, play, show
from examples.game.world import faults, is_complete, make

PLAYERS: Final = ("Ada", "Barbara", "Edsger", "Frances", "Grace", "Kurt", "Niklaus", "Tony")
_SPAWN: Final = multiprocessing.get_context("spawn")


class Table:
    """The processes of the players, and what each has written down."""

    def __init__(self, store: str, ledgers: Path) -> None:
        self._store = store
        self._ledgers = ledgers
        self._players: dict[str, BaseProcess] = {}
        #: Number of killed players, and of those killed within a move.
        self.killed = self.within = 0

    def seat(self, name: str) -> None:
        """Lets a player play: a new one, or one that was killed."""
        player = self._players[name] = _SPAWN.Process(target=play, args=(self._store, name, self._ledger(name)))
        player.start()

    def kill(self, name: str, world: shmrpc.sync.Store, within: bool) -> None:
        """Kills a player where it stands, or within a move.

        The player is stopped first: where the player stands then, it stands when it is killed.
        """
        player = self._players[name]
        assert player.pid is not None
        end = time.monotonic() + PATIENCE
        while True:
            os.kill(player.pid, signal.SIGSTOP)
            os.waitid(os.P_PID, player.pid, os.WSTOPPED)
            with contextlib.suppress(shmrpc.StoreBusy):  # The player was stopped as its move ended.
                is_within = world.stats().holder == player.pid
                if is_within or not within:
                    break
            os.kill(player.pid, signal.SIGCONT)
            if time.monotonic() > end:
                raise TimeoutError(f"{name} was never within a move")
        player.kill()
        player.join()
        self.killed += 1
        self.within += is_within

    def leave(self) -> list[str]:
        """Wait until all players have left, and return a list of faults."""
        for player in self._players.values():
            player.join(PATIENCE)
        return [f"{name} ended with {each.exitcode}" for name, each in self._players.items() if each.exitcode != 0]

    def clear(self) -> None:
        """Kill the players that still run."""
        for player in self._players.values():
            player.kill()

    def written(self, name: str) -> int:
        """Return the last move that a player has recorded as done."""
        with contextlib.suppress(FileNotFoundError):
            return int((self._ledger(name).read_bytes().splitlines() or [b"0"])[-1])
        return 0

    def _ledger(self, name: str) -> Path:
        return self._ledgers / name


def wait_for_move(world: shmrpc.sync.Store, name: str, moves: int) -> None:
    """Wait until a player has done more than ``moves`` moves."""
    for now in shmrpc.watch(world["players"][name], PATIENCE):
        if now.moves > moves:
            return


def run(kills: int, ledgers: Path) -> list[str]:
    """Plays until so many were killed, every second one within a move; returns what is wrong."""
    store = f"game.{os.getpid()}"
    table = Table(store, ledgers)
    scoreboard = _SPAWN.Process(target=show, args=(store,))
    with shmrpc.sync.store(store) as world:
        make(world, list(PLAYERS))
        try:
            scoreboard.start()
            for name in PLAYERS:
                table.seat(name)
            for name in PLAYERS:
                wait_for_move(world, name, 0)
            began, before = time.monotonic(), sum(player.moves for player in world["players"].values())
            for number in range(kills):
                name = random.choice(PLAYERS)
                table.kill(name, world, within=number % 2 == 0)
                moves = world["players"][name].moves
                table.seat(name)
                wait_for_move(world, name, moves)
            took = time.monotonic() - began
            world["over"] = True
            wrong = table.leave()
            seen: dict[str, Any] = world.inbox.take(PATIENCE)
            scoreboard.join(PATIENCE)
        finally:
            table.clear()
            scoreboard.kill()
        end: dict[str, Any] = world.copy()
    moves = {name: player.moves for name, player in end["players"].items()}
    written = {name: table.written(name) for name in PLAYERS}
    lost = sum(moves.values()) - sum(written.values())
    for player in sorted(end["players"].values(), key=lambda player: -player.points):
        sys.stdout.write(f"{player.name:8} {player.points:9,} points after {player.moves:7,} moves\n")
    sys.stdout.write(
        f"all have {end['found']:9,} points after {sum(moves.values()):7,} moves, "
        f"{(sum(moves.values()) - before) / took:,.0f} a second\n"
        f"{table.killed} players were killed, {table.within} of them within a move, which then has not happened, "
        f"and {lost} before they could write one down\n"
        f"the scoreboard has looked {seen['looks']:,} times\n"
    )
    wrong += seen["faults"] + faults(end)
    wrong += [] if is_complete(end) else ["the points are not those of the moves that were done"]
    wrong += [
        f"move {written[name]} of {name} was done, and is forgotten" for name in PLAYERS if written[name] > moves[name]
    ]
    return wrong + ([] if lost <= table.killed else [f"{lost} moves were done that no player has written down"])


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(prog="python -m examples.game", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--kills", type=int, default=12, help="how many players are killed (12)")
    options = parser.parse_args()
    if options.kills < 1:
        parser.error("--kills: expected 1 or more")
    with tempfile.TemporaryDirectory() as directory:
        if wrong := run(options.kills, Path(directory)):
            sys.exit("\n".join(wrong))


if __name__ == "__main__":
    main()
