"""Types of stores and of the objects in them, in a loop and in threads."""

from __future__ import annotations

import copy
import dataclasses
import enum
from typing import Any, assert_type

import shmrpc


@shmrpc.shared
class Player:
    """Becomes a dataclass, for a checker too."""

    name: str
    health: int = 100
    items: list[str] = dataclasses.field(default_factory=list)

    def hit(self, points: int) -> int:
        """Change the object in the store."""
        self.health -= points
        return self.health


@shmrpc.shared
@dataclasses.dataclass(frozen=True)
class Tile:
    """A class that is a dataclass already."""

    x: int
    owner: Player


@shmrpc.shared(open=True)
class Noted:
    """A class with attributes that no checker knows."""

    text: str


@shmrpc.shared
class Slotted:
    """A class with its own `__init__`."""

    __slots__ = ("size",)

    def __init__(self, size: str) -> None:
        self.size = int(size)


class Metrics(enum.IntEnum):
    """The fields of a struct."""

    calls = 0
    errors = 1


def objects(game: shmrpc.sync.Store) -> None:
    """Use attributes, which keep their types if an annotation names the class of the object."""
    assert_type(game["ada"], Any)
    ada: Player = game["ada"]
    assert_type(ada.health, int)
    assert_type(ada.items, list[str])
    assert_type(ada.hit(5), int)
    ada.health += 1
    ada.items.append("key")
    ada.health = "much"  # type: ignore[assignment]
    ada.healht = 1  # type: ignore[attr-defined]
    ada.items.append(1)  # type: ignore[arg-type]
    tile: Tile = game["tile"]
    assert_type(tile.owner.name, str)
    noted: Noted = game["noted"]
    assert_type(noted.text, str)
    noted.more = 1  # type: ignore[attr-defined]
    assert_type(Slotted("1").size, int)
    assert_type(copy.deepcopy(ada), Player)


def made() -> None:
    """Constructors are those of the classes."""
    assert_type(Player("Ada", 90, ["key"]), Player)
    assert_type(Tile(1, Player("Ada")), Tile)
    assert_type(Noted("text"), Noted)
    Player()  # type: ignore[call-arg]
    Player("Ada", "much")  # type: ignore[arg-type]
    Noted(1)  # type: ignore[arg-type]
    Slotted(1)  # type: ignore[arg-type]


def in_threads() -> None:
    """Use a store as a mapping, and a struct with numbered fields."""
    with shmrpc.sync.store("game", max_memory="1GiB", busy_timeout=2, pickle=True) as game:
        assert_type(game, shmrpc.sync.Store)
        game["scores"] = {"ada": 1}
        game |= {"bob": Player("Bob")}
        scores: dict[str, int] = game["scores"]
        ada: Player = game["ada"]
        assert_type(scores["ada"], int)
        assert_type(game.copy(), dict[Any, Any])
        assert_type(shmrpc.atomic.compare_and_set(scores, "ada", 1, 2), bool)
        assert_type(shmrpc.atomic.update(ada, "health", lambda health: int(health) // 2), int)
        shmrpc.atomic.add(ada, "health", 1)
        shmrpc.atomic.add(scores, "ada", "1")  # type: ignore[arg-type]
        with game.transaction(timeout=1.0):
            ada.health -= 5
        for now in shmrpc.watch(ada, timeout=1.0):
            assert_type(now, Player)
        for everything in shmrpc.watch(game):
            assert_type(everything, dict[Any, Any])
        for each in shmrpc.watch(scores):
            assert_type(each, dict[str, int])
        counted(game.struct(Metrics, {Metrics.calls: 10}))
        game.struct(Player)  # type: ignore[arg-type]
        assert_type(game.inbox.has_messages(), bool)
        assert_type(game.inbox.take(timeout=1.0), Any)
        game.wait_changed(1.0)
        assert_type(game.stats(), shmrpc.StoreStats)
        assert_type(game.stats().holder, int | None)


def counted(metrics: shmrpc.SharedStruct) -> None:
    """Use a struct as an argument."""
    metrics[Metrics.calls] += 1
    assert_type(metrics[Metrics.calls], Any)
    metrics["calls"]  # type: ignore[index]


async def in_a_loop() -> None:
    """Use a store in a loop, which awaits what waits."""
    async with shmrpc.store("game") as game:
        assert_type(game, shmrpc.Store)
        ada: Player = game["ada"]
        async with game.transaction(timeout=1.0):
            ada.hit(1)
        async for now in shmrpc.watch(ada):
            assert_type(now.health, int)
        await game.changed(timeout=1.0)
        game.inbox.put(Player("Bob"))
        assert_type(await game.inbox.read(timeout=1.0), Any)
        with game:  # type: ignore[attr-defined]
            pass
        shmrpc.store("game", max_memory=1.5)  # type: ignore[arg-type]
