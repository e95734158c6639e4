"""Servers and callers are killed repeatedly under load: answered calls were executed once, and no call twice."""

from __future__ import annotations

import asyncio
import bisect
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Final

import numpy as np
import pytest

from tests.helpers import traces
from tests.helpers.host_names import swept
from tests.helpers.loops import one_loop
from tests.helpers.scale import scaled
from tests.helpers.server_process import eventually_in_loop
from tests.reliability import figures
from tests.reliability.deaths.kill_load import CALLERS, SURVIVORS, Calls, call_in_loop, call_in_threads
from tests.reliability.deaths.ledger import Book, CallOutcome, Kind

KILLS: Final = scaled(20, 1000)
#: Seconds from one kill to the next, shortest and longest.
PAUSES: Final = (0.02, 0.26)
#: Seconds for steps whose duration does not matter.
PATIENCE: Final = 60
#: Bytes by which the surviving caller may grow.
NOISE: Final = 24 << 20


class Processes:
    """A server and its callers, each replaced when it is killed."""

    def __init__(self, folder: Path, seed: int) -> None:
        self._forking = subprocess.Popen(
            [sys.executable, "-m", "tests.reliability.deaths.kill_load", str(folder)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self._dice = random.Random(seed)
        self.pids: dict[str, int] = {}

    async def _ask(self, order: str) -> int:
        assert self._forking.stdin is not None
        assert self._forking.stdout is not None
        self._forking.stdin.write(f"{order}\n")
        self._forking.stdin.flush()
        return int(await asyncio.wait_for(asyncio.to_thread(self._forking.stdout.readline), PATIENCE))

    async def start(self, role: str) -> None:
        """Start a process of this role."""
        self.pids[role] = await self._ask(f"start {role} {self._dice.randrange(1 << 30)}")

    async def kill(self, role: str) -> None:
        """Kill the process of this role, and start the next one."""
        os.kill(self.pids[role], signal.SIGKILL)
        assert await self._ask(f"reap {self.pids.pop(role)}") == -signal.SIGKILL, "the process had ended by itself"
        await self.start(role)

    async def end(self, role: str, expected: int) -> None:
        """Wait for the process to end by itself, or kill it."""
        if expected < 0:
            os.kill(self.pids[role], -expected)
        assert await self._ask(f"reap {self.pids.pop(role)}") == expected

    def close(self) -> None:
        """Kill the remaining processes."""
        for pid in self.pids.values():
            os.kill(pid, signal.SIGKILL)  # The process is not reaped, so its id is not reused.
        self._forking.communicate(timeout=PATIENCE)


@pytest.mark.slow
@one_loop
async def test_answered_calls_are_executed_once_and_no_call_is_executed_twice(tmp_path: Path) -> None:
    seed = int(os.environ.get("SHMRPC_SEED", "20"))
    print(f"SHMRPC_SEED={seed}")  # noqa: T201 - read when it fails
    dice = random.Random(seed)
    survivors = [Calls(survivor, tmp_path, seed + place) for place, survivor in enumerate(SURVIVORS)]
    books = {caller: Book(tmp_path / caller) for caller in CALLERS}
    books |= {calls.caller: calls.book for calls in survivors}
    processes = Processes(tmp_path, seed)
    kills: list[tuple[str, float]] = []
    base = await traces.settled()
    resident = 0
    try:
        for role in ("server", *CALLERS):
            await processes.start(role)
        surviving = [
            asyncio.create_task(call_in_loop(survivors[0])),
            asyncio.create_task(asyncio.to_thread(call_in_threads, survivors[1])),
        ]
        for number in range(KILLS):
            await asyncio.sleep(dice.uniform(*PAUSES))
            role = dice.choice(["server", *CALLERS])
            kills.append((role, time.monotonic()))
            await processes.kill(role)
            if number == KILLS // 4:
                resident = traces.resident()
        # A busy machine may have delayed calls between the kills.
        assert await eventually_in_loop(lambda: all(map(_has_all_kinds, books.values())), PATIENCE), "calls hang"
        for book in books.values():
            book.close()
        await asyncio.wait_for(asyncio.gather(*surviving), PATIENCE)
        for caller in CALLERS:
            await processes.end(caller, 0)
        await processes.end("server", -signal.SIGKILL)
        assert await traces.gone(base), f"{traces.traces()} instead of {base}"
        grown = traces.resident() - resident
        assert grown < NOISE
    finally:
        for book in books.values():
            book.close()
        processes.close()
    assert swept()  # Names of servers that died in a handshake.
    faults = tmp_path / "faults"
    assert not faults.exists(), faults.read_text()
    asked, answered = _accounted(books)
    deaths = [when for role, when in kills if role == "server"]
    figures.note(
        "kill loop",
        kills=len(kills),
        of_servers=len(deaths),
        calls=f"{asked:,}",
        answered=f"{answered:,}",
        error_in_a_loop_after=figures.times(_since(deaths, survivors[0].lost)),
        error_in_threads_after=figures.times(_since(deaths, survivors[1].lost)),
        grown=f"{grown / 1024:.0f} KiB",
    )


def _since(deaths: list[float], errors: list[float]) -> list[float]:
    """Seconds from the last death before each error."""
    places = [bisect.bisect(deaths, error) for error in errors]
    return [error - deaths[place - 1] for place, error in zip(places, errors, strict=True) if place]


def _has_all_kinds(book: Book) -> bool:
    """Return True if calls of each kind were answered, and one-way calls have arrived.

    More calls may be recorded meanwhile.
    """
    kinds, outcomes, executed = book.calls()
    kinds, outcomes = kinds[: len(outcomes)], outcomes[: len(kinds)]
    answered = set(kinds[outcomes == CallOutcome.ANSWERED].tolist())
    return {*Kind} - {Kind.ONE_WAY} <= answered and bool(executed[: len(kinds)][kinds == Kind.ONE_WAY].any())


def _accounted(books: dict[str, Book]) -> tuple[int, int]:
    """Compare the callers' outcomes with the executions; return the numbers of calls and of answered calls."""
    asked = answered = 0
    for caller, book in books.items():
        kinds, outcomes, executed = book.calls()
        assert executed.max() <= 1, f"{caller}: {np.flatnonzero(executed > 1)} more than once"
        acknowledged = outcomes == CallOutcome.ANSWERED
        assert (executed[acknowledged] == 1).all(), f"{caller}: answered, and not executed"
        assert (executed[outcomes == CallOutcome.NOT_EXECUTED] == 0).all(), f"{caller}: executed despite its outcome"
        for kind in set(Kind) - {Kind.ONE_WAY}:
            assert acknowledged[kinds == kind].any(), f"{caller}: no {kind.name} was answered"
        assert executed[kinds == Kind.ONE_WAY].any(), f"{caller}: one-way calls have not arrived"
        asked += len(outcomes)
        answered += int(acknowledged.sum())
    return asked, answered
