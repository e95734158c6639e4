"""The work of each process: some play, one shows the scores."""

from __future__ import annotations

import os
import random
import sys
from pathlib import Path
from typing import Final

import shmrpc
from examples.game.world import Player, faults, treasure

PATIENCE: Final = 60.0  # Seconds.


def play(store: str, name: str, ledger: Path) -> None:
    """Play until the game is over. A player that comes back after a death goes on where the world says.

    A move is a transaction: a player that is killed within a move has not moved. Each player writes down the moves
    that have ended, so that the game can check that the world forgets none of them.
    """
    parent = os.getppid()
    with shmrpc.sync.store(store) as world, ledger.open("ab", buffering=0) as book:
        players: dict[str, Player] = world["players"]
        me = players[name]
        names = list(players)
        while not world["over"] and os.getppid() == parent:
            with world.transaction(PATIENCE):
                points = me.points
                me.find(treasure(name, me.moves))
                world["found"] += me.points - points
                me.rob(players[random.choice(names)])
                me.moves += 1
                done = me.moves
            book.write(b"%d\n" % done)


def show(store: str) -> None:
    """Show the scores after each change. Report the number of changes, and faults of the snapshots."""
    looks, wrong = 0, list[str]()
    with shmrpc.sync.store(store) as world:
        for now in shmrpc.watch(world, PATIENCE):
            looks += 1
            wrong += faults(now)
            best = sorted(now["players"].values(), key=lambda player: -player.points)
            if sys.stdout.isatty():
                sys.stdout.write("\r" + "  ".join(f"{player.name} {player.points}" for player in best))
                sys.stdout.flush()
            if now["over"]:
                world.inbox.put({"looks": looks, "faults": wrong[:10]})
                break
