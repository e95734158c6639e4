"""Values that processes share under a lock of :mod:`multiprocessing`, which they have inherited.

``Value``, each with the lock that it comes with; ``Manager().dict``, in a process of its own; a ``ShareableList``, and
shared-memory-dict, which have no lock by which an increment is one step. Increments by one process take none.
"""

from __future__ import annotations

import contextlib
import multiprocessing
from collections.abc import Callable, Iterator
from multiprocessing import shared_memory
from pathlib import Path
from typing import Any, Final

from benchmark.processes import Rendezvous
from benchmark.queue_work import Part
from benchmark.store_work import FIELDS, KEYS, Kept, ValueStore, all_of, keys, nine, one
from benchmark.subjects import Loop

_context: Final = multiprocessing.get_context("fork")
#: Bytes of a shared-memory-dict: it writes all of it at once.
_ROOM: Final = 8192


class _Inherited:
    """The objects that forked processes inherit."""

    loop: Loop = "none"

    def __init__(self, place: Rendezvous, kept: Callable[[Part], Kept]) -> None:
        self.place, self._kept = place, kept

    @contextlib.contextmanager
    def open(self, part: Part) -> Iterator[Kept]:
        yield self._kept(part)


def _of_dict(it: Any, entries: Any, lock: Any) -> Callable[[Part], Kept]:
    """Of two dicts under a lock."""

    def kept(part: Part) -> Kept:
        names, field = {"it": it, "lock": lock}, "it['{name}']"
        alone, locked = f"{field} += 1", f"with lock: {field} += 1"

        def reset() -> None:
            it.update(dict.fromkeys(FIELDS, 0))
            entries.update(dict.fromkeys(KEYS, 1))

        return Kept(
            reset,
            all_of(field, **names),
            nine(alone if part.writers == 1 else locked, **names),
            one(locked, **names),
            one(field, **names),
            get=keys("it[key]", it=entries),
            set=keys("it[key] = 7", it=entries),
            bump=keys("with lock: it[key] += 1", it=entries, lock=lock),
            sum=lambda: sum(entries.values()),
        )

    return kept


@contextlib.contextmanager
def connect_manager(place: Rendezvous) -> Iterator[ValueStore]:
    """Yield a ``Manager().dict``."""
    with _context.Manager() as manager:
        yield _Inherited(place, _of_dict(manager.dict(), manager.dict(), _context.Lock()))


@contextlib.contextmanager
def connect_shared_memory_dict(place: Rendezvous) -> Iterator[ValueStore]:
    """shared-memory-dict, which pickles all of it each time."""
    from shared_memory_dict import SharedMemoryDict

    name = Path(place.directory).name
    with contextlib.ExitStack() as stack:
        made = [SharedMemoryDict(f"{name}-{part}", _ROOM) for part in ("fields", "keys")]
        for each in made:
            stack.callback(_remove, each.shm)
        yield _Inherited(place, _of_dict(made[0], made[1], _context.Lock()))


@contextlib.contextmanager
def connect_ultra(place: Rendezvous) -> Iterator[ValueStore]:
    """UltraDict, with the lock that it comes with."""
    from UltraDict import UltraDict

    with contextlib.ExitStack() as stack:
        made = [UltraDict(dict.fromkeys(names, 0)) for names in (FIELDS, KEYS)]
        for each in made:
            stack.callback(each.unlink)
            stack.callback(each.close)
        yield _Inherited(place, _of_dict(made[0], made[1], made[0].lock))


@contextlib.contextmanager
def connect_list(place: Rendezvous) -> Iterator[ValueStore]:
    """Yield a ``ShareableList``."""
    it, lock = shared_memory.ShareableList([0] * len(FIELDS)), _context.Lock()

    def kept(part: Part) -> Kept:
        names, field = {"it": it, "lock": lock}, "it[{number}]"
        alone, locked = f"{field} += 1", f"with lock: {field} += 1"
        return Kept(
            lambda: nine(f"{field} = 0", **names)(1),
            all_of(field, **names),
            nine(alone if part.writers == 1 else locked, **names),
            one(locked, **names),
            one(field, **names),
        )

    try:
        yield _Inherited(place, kept)
    finally:
        _remove(it.shm)


@contextlib.contextmanager
def connect_value(place: Rendezvous) -> Iterator[ValueStore]:
    """Yield a ``Value`` for each field."""
    values = [_context.Value("q") for _ in FIELDS]
    names = {f"_{number}": value for number, value in enumerate(values)}

    def kept(part: Part) -> Kept:
        field = "_{number}.value"
        # Its own way to say that an increment is one step; without it, each read and each write takes the lock.
        locked = f"with _{{number}}.get_lock(): {field} += 1"
        return Kept(
            lambda: nine(f"{field} = 0", **names)(1),
            all_of(field, **names),
            nine(f"{field} += 1" if part.writers == 1 else locked, **names),
            one(locked, **names),
            one(field, **names),
        )

    yield _Inherited(place, kept)


def _remove(memory: shared_memory.SharedMemory) -> None:
    memory.close()
    memory.unlink()
