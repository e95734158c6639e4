"""The time until the first answer: of a server that must start, and over one more connection to a running one.

``server``: from before its process is started, with interpreter, imports and all, to the answer at a client that waits
for it with its imports done; it tries to connect every millisecond. No round warms it up, and the quick form starts
only ours and the sockets. ``connection``: from before a client connects until the answer to its first call, in
processes that have done so before; disconnecting is not timed.

Whatever is started has its bytecode, as after an installation: the sources of this project are compiled beforehand.
"""

from __future__ import annotations

import compileall
import contextlib
import tempfile
import time
from pathlib import Path
from typing import Final

import benchmark
import shmrpc
from benchmark.processes import Failed, NotStarted, Rendezvous, client, function, server
from benchmark.questions.chosen import SOCKETS
from benchmark.results import Result
from benchmark.rows import Line, Row, row
from benchmark.run import Run, module_of
from benchmark.subjects import Subject

NAME: Final = "startup"
TITLE: Final = "Until the first answer"

#: Seconds for the first answer.
_PATIENCE: Final = 20.0


def ask(run: Run) -> list[Row]:
    """Ask every subject that has a server, and every one that can have many connections."""
    able = run.able("connections")
    compile_sources()
    rows = _servers(run)
    return rows + run.line(Line(NAME, "connection"), able, "one_more_connecting")


def compile_sources() -> None:
    """Compile our sources and those of the rivals' servers: a checkout may be without bytecode, or not keep any."""
    for package in (benchmark, shmrpc):
        for directory in package.__path__:
            compileall.compile_dir(Path(directory), quiet=2)


def _servers(run: Run) -> list[Row]:
    line = Line(NAME, "server", unit="ms", lead="ms")
    subjects = [subject for subject in run.able("call") if subject.serve is not None]
    if not run.form.all_starts:
        subjects = [subject for subject in subjects if subject.role == "ours" or subject.family == SOCKETS]
    results: dict[str, list[Result]] = {subject.name: [] for subject in subjects}
    notes: dict[str, str] = {}
    for number in range(1, run.form.rounds + 1):
        for subject in subjects:
            missing = run.absent.get(subject.name) or subject.missing()
            if missing or subject.name in notes:
                notes.setdefault(subject.name, missing)
                continue
            run.tell(line, number, subject.name)
            try:
                results[subject.name].append(_first_answer(subject))
            except (Failed, NotStarted, OSError) as error:
                notes[subject.name] = f"failed: {error}"
    return [
        Row(line, each.name, each.role, note=notes[each.name])
        if each.name in notes
        else row(line, each.name, each.role, results[each.name])
        for each in subjects
    ]


def _first_answer(subject: Subject) -> Result:
    with contextlib.ExitStack() as stack:
        directory = stack.enter_context(tempfile.TemporaryDirectory(prefix="shmrpc-benchmark-"))
        place = Rendezvous(directory, function(subject.shared)() if subject.shared else None)
        calling = stack.enter_context(client(subject.connect, subject.loop, place))
        calling.order(f"benchmark.{module_of(subject)}:first_answer_connecting", patience=_PATIENCE)
        assert subject.serve is not None
        start = time.monotonic()
        stack.enter_context(server(subject.serve, subject.server_loop, place))
        result: Result = calling.result(_PATIENCE)
        took = result.extra.pop("answered at") - start
    return Result(0, took, extra={"ms": took * 1e3})
