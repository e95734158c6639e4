"""InterProcessPyObjects: objects in one piece of memory for two processes, which take turns.

One process has the turn all the time, as in its own benchmark. Two hand it to each other each time that they have
incremented all fields. There cannot be more. The memory's name is taken away at the end of each turn of ours.
"""

from __future__ import annotations

import contextlib
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

from benchmark.processes import Rendezvous
from benchmark.queue_work import Part
from benchmark.rivals.inter_process_py_objects import Trial, unlink
from benchmark.store_work import (
    FIELDS,
    KEYS,
    Field,
    Kept,
    Player,
    Repeated,
    ValueStore,
    all_of,
    keys,
    nine,
    of_fields,
    one,
    repeated,
)
from benchmark.subjects import Loop

with warnings.catch_warnings():
    # The package warns of every version of Python that is newer than itself.
    warnings.simplefilter("ignore")
    import ipc_py_objects

_ROOM: Final = 16 << 20
#: Seconds that the other side may take to come.
_PATIENCE: Final = 10.0

#: The player, and a field of it.
_SHAPES: Final[dict[str, tuple[Callable[[], Any], str]]] = {
    "list": (lambda: [0] * len(FIELDS), "it[_{number}]"),
    "dataclass": (Player, "it.{name}"),
    "dict": (lambda: dict.fromkeys(FIELDS, 0), "it['{name}']"),
}


class _Memory:
    loop: Loop = "none"

    def __init__(self, place: Rendezvous, shape: str) -> None:
        self.place, self._shape = place, shape

    @contextlib.contextmanager
    def open(self, part: Part) -> Iterator[Kept]:
        if part.writers > 2:
            raise RuntimeError("two processes at most can have its memory")
        make, field = _SHAPES[self._shape]
        name = f"{Path(self.place.directory).name}-players"
        path = Path("/dev/shm", name)
        if part.number == 0:
            memory = ipc_py_objects.SharedMemory(name, create=True, size=_ROOM)
            try:
                it = _given(memory, make()) if part.writers == 2 else memory.map_object(make())
                entries = memory.map_object(dict.fromkeys(KEYS, 1)) if part.writers == 1 else {}
                yield _kept(it, entries, field, memory if part.writers == 2 else None)
            finally:
                unlink(name)
        else:
            # The package cannot map the memory before the other side has given it its size.
            _until(lambda: path.exists() and path.stat().st_size > 0)
            memory = ipc_py_objects.SharedMemory(name)
            memory.init_consumer(_PATIENCE)
            yield _kept(_taken(memory), {}, field, memory)


def _given(memory: Any, made: Any) -> Any:
    """Return the object, which the other side will take."""
    memory.wait_consumer_ready(_PATIENCE)
    with Trial(memory):
        return memory.put_message(made)


def _taken(memory: Any) -> Any:
    taken: list[Any] = []

    def take() -> bool:
        with Trial(memory):
            if memory.has_messages():
                taken.append(memory.take_message())
        return bool(taken)

    _until(take)
    return taken[0]


def _until(is_so: Callable[[], bool]) -> None:
    end = time.monotonic() + _PATIENCE
    while not is_so():
        if time.monotonic() > end:
            raise TimeoutError("the other side has not come")
        time.sleep(0.001)


def _kept(it: Any, entries: Any, field: str, memory: Any) -> Kept:
    """``memory``: for turns, if there are two."""
    names: dict[str, Any] = {f"_{member.value}": member for member in Field}
    names |= {"it": it, "turn": memory and Trial(memory)}
    statement = f"{field} += 1"

    def reset() -> None:
        nine(f"{field} = 0", **names)(1)
        for key in entries:
            entries[key] = 1

    def in_turns(statements: list[str]) -> Repeated:
        return repeated("with turn:", *(f"    {each}" for each in statements), **names)

    return Kept(
        reset,
        all_of(field, **names),
        in_turns(of_fields(statement)) if memory else nine(statement, **names),
        in_turns(of_fields(statement, (0,))) if memory else one(statement, **names),
        one(field, **names),
        get=keys("it[key]", it=entries),
        set=keys("it[key] = 7", it=entries),
        bump=keys("it[key] += 1", it=entries),
        sum=lambda: sum(entries[key] for key in KEYS),
    )


def _connect(shape: str) -> Callable[[Rendezvous], contextlib.AbstractContextManager[ValueStore]]:
    @contextlib.contextmanager
    def connect(place: Rendezvous) -> Iterator[ValueStore]:
        yield _Memory(place, shape)

    return connect


connect_list, connect_dataclass, connect_dict = map(_connect, _SHAPES)
