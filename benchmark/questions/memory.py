"""Memory of one more idle connection: shared memory, and anonymous memory of the server and of the client.

Shared memory is that of the whole machine (Shmem of /proc/meminfo), so nothing else may use any meanwhile. What the
kernel keeps for a socket, some kilobytes and the content of its buffers, is in no figure: subjects that use sockets
take more than is shown here. It is measured once.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

from benchmark.processes import Failed, anonymous_of, descendants
from benchmark.questions.connections import hold, let_go
from benchmark.rows import Line, Row
from benchmark.run import Pair, Run

NAME: Final = "memory"
TITLE: Final = "Memory of an idle connection"

SHARED, SERVER, CLIENT, ALL = "shared KiB", "server KiB", "client KiB", "KiB"
#: Connections that come before the others and make the room which the first ones need.
_FIRST: Final = 5


def ask(run: Run) -> list[Row]:
    """Ask every subject that can have many connections."""
    line, subjects = Line(NAME, "", ALL, ALL), run.able("connections")
    rows = []
    with run.pairs(subjects) as pairs:
        for pair in pairs:
            run.progress(f"{line}: {run.form.connections} connections, {pair.subject.name}")
            try:
                rows.append(_row(line, pair, run.form.connections))
                let_go(pair)
            except Failed as error:
                rows.append(Row(line, pair.subject.name, pair.subject.role, note=f"failed: {error}"))
                run.part(pair.subject.name)
    return rows + run.notes(line, subjects)


def _row(line: Line, pair: Pair, connections: int) -> Row:
    hold(pair, _FIRST)
    before = _used(pair)
    hold(pair, connections)
    after = _used(pair)
    # Memory that another process frees meanwhile is no saving of a connection.
    extra = {name: max(0, after[name] - before[name]) / connections / 1024 for name in before}
    extra[ALL] = sum(extra.values())
    return Row(line, pair.subject.name, pair.subject.role, [extra[ALL]], extra=extra)


def _used(pair: Pair) -> dict[str, int]:
    """Return the bytes in use, by kind of memory."""
    made = {SHARED: _shared()}
    for side, child in pair.sides().items():
        made[f"{side} KiB"] = sum(map(anonymous_of, (child.pid, *descendants(child.pid))))
    return made


def _shared() -> int:
    lines = Path("/proc/meminfo").read_text().splitlines()
    return sum(int(line.split()[1]) << 10 for line in lines if line.startswith("Shmem:"))
