"""Servers and callers are killed again and again under load: what was answered was done once, and nothing twice."""

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
#: Seconds from one kill to the next.
PAUSES: Final = (0.02, 0.26)
#: Seconds for what must happen, and does not depend on speed.
PATIENCE: Final = 60
#: Bytes that the memory of who calls through it all may grow by.
NOISE: Final = 24 << 20


class Processes:
    """A server and its callers, each in the place of one that was killed."""

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
        """The next process of this role."""
        self.pids[role] = await self._ask(f"start {role} {self._dice.randrange(1 << 30)}")

    async def kill(self, role: str) -> None:
        """Kills it, and starts the next one."""
        os.kill(self.pids[role], signal.SIGKILL)
        assert await self._ask(f"reap {self.pids.pop(role)}") == -signal.SIGKILL, "it had ended by itself"
        await self.start(role)

    async def end(self, role: str, expected: int) -> None:
        """Waits for its own end, or kills it."""
        if expected < 0:
            os.kill(self.pids[role], -expected)
        assert await self._ask(f"reap {self.pids.pop(role)}") == expected

    def close(self) -> None:
        """Whatever is left ends."""
        for pid in self.pids.values():
            os.kill(pid, signal.SIGKILL)  # Nobody has waited for it, so the number is its own.
        self._forking.communicate(timeout=PATIENCE)


@pytest.mark.slow
@one_loop
async def test_every_acknowledged_call_is_accounted_for(tmp_path: Path) -> None:
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
        # However few of them a busy machine has let through between the kills.
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
    assert swept()  # Of servers that died in a handshake.
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
    """Whether calls of each kind were answered, and one-way calls have arrived. More may come meanwhile."""
    kinds, told, executed = book.calls()
    kinds, told = kinds[: len(told)], told[: len(kinds)]
    answered = set(kinds[told == CallOutcome.ANSWERED].tolist())
    return {*Kind} - {Kind.ONE_WAY} <= answered and bool(executed[: len(kinds)][kinds == Kind.ONE_WAY].any())


def _accounted(books: dict[str, Book]) -> tuple[int, int]:
    """Holds what callers were told against what was done; how many calls, and how many were answered."""
    asked = answered = 0
    for caller, book in books.items():
        kinds, told, executed = book.calls()
        assert executed.max() <= 1, f"{caller}: {np.flatnonzero(executed > 1)} more than once"
        acknowledged = told == CallOutcome.ANSWERED
        assert (executed[acknowledged] == 1).all(), f"{caller}: answered, and not executed"
        assert (executed[told == CallOutcome.NOT_EXECUTED] == 0).all(), f"{caller}: executed in spite of what was told"
        for kind in set(Kind) - {Kind.ONE_WAY}:
            assert acknowledged[kinds == kind].any(), f"{caller}: no {kind.name} was answered"
        assert executed[kinds == Kind.ONE_WAY].any(), f"{caller}: no one-way call arrived"
        asked += len(told)
        answered += int(acknowledged.sum())
    return asked, answered
