"""Thread against process: our server in a thread of the client's process and in a process, and Python's executors.

The executors are used through the loop, with one worker. ThreadPoolExecutor hands a record over by reference: nothing
is encoded, and a worker can damage the caller's value. There, as wherever values are large, it is shown but not
compared.
"""

from __future__ import annotations

import dataclasses
from typing import Final

from benchmark.questions.chosen import THREAD_POOL, of_payloads
from benchmark.rows import Line, Row
from benchmark.run import Run
from benchmark.subjects import THREADS

NAME: Final = "threads"
TITLE: Final = "Thread against process"

_POOLS: Final = (THREAD_POOL, "process_pool")


def ask(run: Run) -> list[Row]:
    """Ask ours with a loop, and the executors."""
    ours = [subject for subject in run.subjects if subject.role == "ours" and subject.loop != "none"]
    threads = [dataclasses.replace(subject, role="ours") for subject in THREADS]
    pools = [subject for subject in run.subjects if subject.family in _POOLS and "call" in subject.abilities]
    subjects = [*ours, *threads, *pools]
    rows = run.line(Line(NAME, "small"), subjects, "one_after_another")
    return rows + run.line(Line(NAME, "record"), of_payloads(subjects), "echo", kind="record", size=0)
