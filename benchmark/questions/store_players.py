"""A published experiment, corrected: nine fields of a player are incremented, by one, two and eight processes.

Ours by what the fields are of, a struct, a dataclass, a dict or a list, beside everything else that keeps Python values
for many processes. The rate counts each increment of a field once, and after each turn every field has to be what it
was incremented to. One process increments by ``+=``; of several, none may lose an increment of another: ours add by
``shmrpc.atomic.add``, rivals take the lock that is theirs, or one of :mod:`multiprocessing`. It is asked only by name,
or by ``python -m benchmark study``, as are the other questions of stores.
"""

from __future__ import annotations

from typing import Final

from benchmark.rows import Line, Row
from benchmark.run import Run
from benchmark.subjects import STORES

NAME: Final = "store-players"
TITLE: Final = "A study of shared objects"

WRITERS: Final = (1, 2, 8)


def ask(run: Run) -> list[Row]:
    """Ask ours and every rival."""
    rows: list[Row] = []
    subjects = [*STORES, *run.able("store")]
    for writers in WRITERS:
        line = Line(NAME, case(writers), "rate", "/s", higher_is_better=True)
        rows += run.line(line, subjects, "increments", module="store_work", writers=writers)
    return rows


def case(writers: int) -> str:
    """Return the case of so many processes."""
    return "1 writer" if writers == 1 else f"{writers} writers"
