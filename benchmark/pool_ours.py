"""Our pool, as a rival's is written."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import shmrpc
from benchmark.command_tasks import TASKS
from benchmark.processes import Place


@contextlib.contextmanager
def connect_commands(place: Place) -> Iterator[Callable[..., Any]]:
    """What has a task done by one worker, and gives its result."""
    with shmrpc.sync.pool(1) as pool:

        def do(task: str, size: int) -> Any:
            return pool.submit(TASKS[task], size).result()

        yield do
