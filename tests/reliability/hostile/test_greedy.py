"""Eight greedy clients, and a polite one beside them."""

from __future__ import annotations

import asyncio
import contextlib
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence

import pytest

import shmrpc
from tests.helpers.loops import one_loop
from tests.helpers.scale import LONG, scaled
from tests.helpers.server_process import ServerProcess
from tests.reliability.figures import note
from tests.reliability.hostile.greedy_client import KINDS

CALLS = scaled(100, 400)
#: Seconds between two calls of the polite client.
PAUSE = 0.005
GREEDY = 8


@contextlib.contextmanager
def greedy(kinds: Sequence[str]) -> Iterator[None]:
    """Run a greedy client of each kind during the block."""
    command = [sys.executable, "-m", "tests.reliability.hostile.greedy_client"]
    processes = [subprocess.Popen([*command, kind], stdout=subprocess.PIPE, text=True) for kind in kinds]
    try:
        for process in processes:
            assert process.stdout is not None
            assert process.stdout.readline() == "begun\n"
        yield
        assert [process.poll() for process in processes] == [None] * len(processes), "a greedy client has ended"
    finally:
        for process in processes:
            process.kill()
            process.communicate()


async def polite(client: shmrpc.Client) -> list[float]:
    """Return the seconds that each of some calls takes, sorted; check each answer."""
    taken = []
    for number in range(CALLS):
        await asyncio.sleep(PAUSE)
        began = time.perf_counter()
        assert await client.add(number, 1) == number + 1
        taken.append(time.perf_counter() - began)
    return sorted(taken)


@pytest.mark.slow
@one_loop
@pytest.mark.parametrize("kind", [*KINDS, "all of them"] if LONG else ["all of them"])
async def test_a_polite_client_is_served_beside_greedy_clients(server: ServerProcess, kind: str) -> None:
    callers = [each for each in KINDS if each != "computes"]
    kinds = [*callers, "calls", "bodies"] if kind == "all of them" else [kind] * GREEDY
    async with shmrpc.connect("tested") as client:
        await polite(client)
        quiet = await polite(client)
        with greedy(kinds):
            crowded = await polite(client)
    at = CALLS * 99 // 100
    note(
        f"polite beside {GREEDY} greedy, {kind}",
        p99_quiet=f"{quiet[at] * 1e3:.2f} ms",
        p99_crowded=f"{crowded[at] * 1e3:.2f} ms",
        p50s=f"{quiet[CALLS // 2] * 1e3:.2f} and {crowded[CALLS // 2] * 1e3:.2f} ms",
        ratio=f"{crowded[at] / quiet[at]:.1f}",
    )
