"""The world: players with points, in a store."""

from __future__ import annotations

import random
from dataclasses import field
from typing import Any, Final

import shmrpc

#: The treasures that a player can find, with their points.
TREASURES: Final = {"shell": 1, "pearl": 10, "crown": 100}


@shmrpc.shared
class Player:
    """A player, whose methods change the world that it is in."""

    name: str
    points: int = 0
    moves: int = 0
    treasures: dict[str, int] = field(default_factory=dict)

    def find(self, treasure: str) -> None:
        """Add a treasure that the player has found."""
        self.treasures[treasure] = self.treasures.get(treasure, 0) + 1
        self.points += TREASURES[treasure]

    def rob(self, other: Player) -> None:
        """Take a tenth of the points of another player."""
        loot = other.points // 10
        other.points -= loot
        self.points += loot


def treasure(name: str, move: int) -> str:
    """Return what a player finds in a move of this number: always the same, so that every process can add it up."""
    return random.Random(f"{name} {move}").choices(list(TREASURES), (90, 9, 1))[0]


def found(name: str, moves: int) -> int:
    """Return the points that a player has found after ``moves`` moves."""
    return sum(TREASURES[treasure(name, move)] for move in range(moves))


def make(world: shmrpc.sync.Store, names: list[str]) -> None:
    """Make the world, with players that have not moved."""
    with world.transaction():
        world["players"] = {name: Player(name) for name in names}
        world["found"] = 0
        world["over"] = False


def faults(world: dict[str, Any]) -> list[str]:
    """Return what is wrong with the world at one moment: each point was found, and belongs to a player."""
    players: list[Player] = list(world["players"].values())
    points = sum(player.points for player in players)
    worth = sum(TREASURES[each] * count for player in players for each, count in player.treasures.items())
    wrong = [] if points == world["found"] else [f"the players have {points} points, and found {world['found']}"]
    return wrong + ([] if points == worth else [f"the players have {points} points, and treasures of {worth}"])


def is_complete(world: dict[str, Any]) -> bool:
    """Tell whether the points are those of all moves that the players have done, and of no other."""
    return bool(world["found"] == sum(found(player.name, player.moves) for player in world["players"].values()))
