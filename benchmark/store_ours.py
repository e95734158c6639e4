"""Our stores, as a rival's are written: fields of a struct, of a dataclass, of a dict, and of a list."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any, Final

import shmrpc
from benchmark.processes import Rendezvous
from benchmark.queue_work import Part
from benchmark.store_work import FIELDS, KEYS, Field, Kept, Player, ValueStore, all_of, keys, nine, one, ten
from benchmark.subjects import Loop

_NAME: Final = "players"
_KEY: Final = "player"


shmrpc.shared(Player)

#: The player's type, and a field of it: as a statement reads and writes it, and as a key.
_SHAPES: Final[dict[str, tuple[Callable[[], Any], str, str]]] = {
    "struct": (list, "it[_{number}]", "_{number}"),
    "dataclass": (Player, "it.{name}", "'{name}'"),
    "dict": (lambda: dict.fromkeys(FIELDS, 0), "it['{name}']", "'{name}'"),
    "list": (lambda: [0] * len(FIELDS), "it[{number}]", "{number}"),
}


class _Shaped:
    """A store with a player of that shape."""

    loop: Loop = "none"

    def __init__(self, place: Rendezvous, shape: str) -> None:
        self.place, self._shape = place, shape

    def make(self, game: shmrpc.sync.Store) -> None:
        """Make the player, and the dict of keys."""
        game.update({_KEY: _SHAPES[self._shape][0](), "keys": dict.fromkeys(KEYS, 1)})
        if self._shape == "struct":
            game.struct(Field)

    @contextlib.contextmanager
    def open(self, part: Part) -> Iterator[Kept]:
        _, field, key = _SHAPES[self._shape]
        with shmrpc.sync.store(_NAME) as game:
            names: dict[str, Any] = {"it": game[_KEY], "add": shmrpc.atomic.add, "game": game}
            if self._shape == "struct":
                names |= {"it": game.struct(Field), **{f"_{member.value}": member for member in Field}}
            entries, incremented, added = game["keys"], f"{field} += 1", f"add(it, {key}, 1)"

            def reset() -> None:
                nine(f"{field} = 0", **names)(1)
                entries.update(dict.fromkeys(KEYS, 1))

            yield Kept(
                reset,
                all_of(field, **names),
                nine(incremented if part.writers == 1 else added, **names),
                one(added, **names),
                one(field, **names),
                ten(incremented, "with game.transaction():", **names),
                keys("it[key]", it=entries),
                keys("it[key] = 7", it=entries),
                keys("add(it, key, 1)", it=entries, add=shmrpc.atomic.add),
                lambda: sum(entries.values()),
            )


def _connect(shape: str) -> Callable[[Rendezvous], contextlib.AbstractContextManager[ValueStore]]:
    @contextlib.contextmanager
    def connect(place: Rendezvous) -> Iterator[ValueStore]:
        made = _Shaped(place, shape)
        with shmrpc.sync.store(_NAME) as game:
            made.make(game)
            yield made

    return connect


connect_struct, connect_dataclass, connect_dict, connect_list = map(_connect, _SHAPES)
