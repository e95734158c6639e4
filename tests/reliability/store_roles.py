"""Roles of members that change a store until they die, step by step; and a plain dict as the reference."""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import gc
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import shmrpc
import shmrpc.sync

#: Bytes of a value with pages of its own.
LARGE: Final = 1 << 20
#: Seconds of a wait at most: only a failure takes so long.
PATIENCE: Final = 30.0

#: One step of a role, with a store or a :class:`Plain`; ``n`` is another number each time.
Step = Callable[[Any, int], object]


@shmrpc.shared
@dataclasses.dataclass
class Player:
    """A shared class."""

    name: str
    health: int = 100
    items: list[str] = dataclasses.field(default_factory=list)


class Plain(dict[Any, Any]):
    """The contents of a store as plain values: the reference for its members."""

    def __init__(self) -> None:
        super().__init__()
        self.messages: list[Any] = []

    @contextlib.contextmanager
    def transaction(self) -> Iterator[None]:
        before = copy.deepcopy(dict(self)), list(self.messages)
        try:
            yield
        except BaseException:
            self.clear()
            self.update(before[0])
            self.messages[:] = before[1]
            raise

    @property
    def inbox(self) -> Plain:
        return self

    def put(self, message: Any) -> None:
        """Append a message."""
        self.messages.append(message)

    def take(self) -> Any:
        """Remove and return the first message."""
        return self.messages.pop(0)


def begin(store: Any) -> None:
    """Fill a store with its contents before a role begins."""
    store.clear()
    store["n"] = 7
    store["text"] = "a text that is too long for a cell"
    store["list"] = [*range(20), "twenty and a few more", [1, [2, 3]]]
    store["tree"] = {"a": {"b": [1, 2, {"c": "deep down in the tree"}]}, "d": list(range(50))}
    store["set"] = {1, "two", (3, "four and some more")}
    store["ada"] = Player("Ada Lovelace")
    store["large"] = bytearray(b"x" * LARGE)
    store.inbox.put({"first": ["message"]})
    store.inbox.put("the second message, which is long")


def _add(container: Any, key: str, by: int) -> None:
    if isinstance(container, Plain):
        container[key] += by
    elif isinstance(container, Player) and type(container) is Player:
        setattr(container, key, getattr(container, key) + by)
    else:
        shmrpc.atomic.add(container, key, by)


def _raise_health(s: Any, n: int) -> None:
    s["ada"].health += n


def _transfer(s: Any, n: int) -> None:
    with s.transaction():
        s["n"] -= n
        s["ada"].health += n
        s["ada"].items.append(f"item number {n}")
        s["tree"]["a"]["b"][2]["c"] = [n, "another text in its place"]
        s.inbox.put(["sent with it", n])
        del s["list"][3]


def _come_to_nothing(s: Any, n: int) -> None:
    with contextlib.suppress(ZeroDivisionError), s.transaction():
        s["list"].append(n)
        s["n"] = 1 // 0


def _change_much(s: Any, n: int) -> None:
    """Change so much that the log needs additional memory."""
    with s.transaction():
        numbers = s["many"]
        for index in range(5000):
            numbers[index] = n


def _look_and_drop(s: Any, n: int) -> None:
    seen = s["large"]
    assert len(seen) == LARGE
    del s["large"]
    del seen
    gc.collect()


def _wait(s: Any, n: int) -> None:
    if not isinstance(s, Plain):
        with contextlib.suppress(shmrpc.WaitTimeout):
            s["tree"].wait_changed(0.001)


#: Steps by role; each step happens entirely or not at all.
ROLES: Final[dict[str, list[Step]]] = {
    "sets": [
        lambda s, n: s.__setitem__("n", n),
        lambda s, n: s.__setitem__("text", f"another text, number {n}"),
        lambda s, n: s.__setitem__(f"a new key, {n}", n),
    ],
    "changes a field": [_raise_health, lambda s, n: setattr(s["ada"], "name", f"Ada, number {n}")],
    "adds": [lambda s, n: _add(s, "n", n), lambda s, n: _add(s["ada"], "health", n)],
    "appends": [
        lambda s, n: s["list"].append(n),
        lambda s, n: s["list"].append([n, "and a text that is long"]),
        lambda s, n: s["list"].extend(range(100)),
    ],
    "deletes": [
        lambda s, n: s["list"].__delitem__(0),
        lambda s, n: s["tree"].__delitem__("a"),
        lambda s, n: s["list"].clear(),
        lambda s, n: s.pop("text"),
    ],
    "replaces a tree": [lambda s, n: s.__setitem__("tree", {"new": [n, {"x": ["y" * 100] * 20}]})],
    "rearranges": [
        lambda s, n: s["list"].reverse(),
        lambda s, n: s["set"].add(f"member number {n}"),
        lambda s, n: s["set"].discard("two"),
    ],
    "transfers": [_transfer],
    "gives up": [_come_to_nothing, _transfer],
    "changes much": [lambda s, n: s.__setitem__("many", [0] * 5000), _change_much],
    "puts messages": [lambda s, n: s.inbox.put({"n": n}), lambda s, n: s.inbox.put(n)],
    "takes messages": [lambda s, n: s.inbox.take(), lambda s, n: s.inbox.take()],
    "grows": [lambda s, n: s.__setitem__("grown", bytearray(3 * LARGE))],
    "removes large values": [
        lambda s, n: s.__setitem__("grown", bytearray(8 * LARGE)),
        lambda s, n: s.__delitem__("grown"),
        lambda s, n: s.__delitem__("large"),
    ],
    "reads a removed value": [_look_and_drop],
    "waits": [_wait, lambda s, n: s.__setitem__("n", n), _wait],
}


def play(store: Any, role: str, n: int, steps: int | None = None) -> Iterator[None]:
    """Carry out the steps of a role, or the first ones; yield after each."""
    for step in ROLES[role][:steps]:
        step(store, n)
        yield


def follow(name: str, role: str, n: int, ledger: str, single_writer: bool = False) -> None:
    """Open a store, play a role, append a byte to the ledger after each step, and close the store."""
    noted = os.open(ledger, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    with shmrpc.sync.store(name, max_memory="64MiB", busy_timeout=PATIENCE, single_writer=single_writer) as store:
        for _ in play(store, role, n):
            os.write(noted, b".")


def acknowledged(ledger: Path) -> int:
    """Return the number of steps in a victim's ledger."""
    return ledger.stat().st_size if ledger.exists() else 0
