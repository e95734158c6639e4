"""A service that records its calls, callers that record the outcomes, and the comparison of both.

``python -m tests.reliability.deaths.recorded_calls URL NAME`` calls until its input ends, and prints the outcomes as
JSON.
"""

from __future__ import annotations

import asyncio
import dataclasses
import json
import logging
import os
import random
import sys
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final

import shmrpc
from tests.helpers.server_process import PATIENCE

#: The variable with the path of a server's ledger: a line for each executed call, written before its answer.
LEDGER: Final = "SHMRPC_TESTED_NATS_LEDGER"
#: Concurrent callers of a client.
_CALLERS: Final = 4

service = shmrpc.Service("tested.nats.ledger")


@service.endpoint
async def note(call: str, seconds: float) -> str:
    """Record each execution of a call."""
    descriptor = os.open(os.environ[LEDGER], os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    try:
        os.write(descriptor, f"{call}\n".encode())
    finally:
        os.close(descriptor)
    await asyncio.sleep(seconds)
    return call


@dataclasses.dataclass
class CallOutcomes:
    """Calls by outcome, as their callers saw it."""

    answered: set[str] = dataclasses.field(default_factory=set)
    not_executed: set[str] = dataclasses.field(default_factory=set)
    maybe_executed: set[str] = dataclasses.field(default_factory=set)
    #: Errors that no call should raise.
    other: list[str] = dataclasses.field(default_factory=list)


async def call_on(client: Any, name: str, stop: asyncio.Event, outcomes: CallOutcomes, seed: int) -> None:
    """Make calls one after the other and record their outcomes."""
    chance = random.Random(seed)
    count = 0
    while not stop.is_set():
        count += 1
        call = f"{name}.{count}"
        try:
            assert await client.note(call, chance.choice([0, 0, 0.002, 0.02])) == call
            outcomes.answered.add(call)
        except shmrpc.ConnectionLost as error:
            (outcomes.maybe_executed if error.maybe_executed else outcomes.not_executed).add(call)
        except shmrpc.ServiceUnavailable:  # No server came for a while.
            outcomes.not_executed.add(call)
        except Exception as error:
            outcomes.other.append(repr(error))


def check(ledger: Path, every: Iterable[CallOutcomes]) -> CallOutcomes:
    """Compare all callers' outcomes with the ledger; return the outcomes together."""
    done = Counter(ledger.read_text().split())
    outcomes = CallOutcomes()
    for each in every:
        outcomes.answered |= each.answered
        outcomes.not_executed |= each.not_executed
        outcomes.maybe_executed |= each.maybe_executed
        outcomes.other += each.other
    assert outcomes.other == []
    assert [call for call, times in done.items() if times > 1] == []
    assert outcomes.answered - done.keys() == set()
    assert outcomes.not_executed & done.keys() == set()
    return outcomes


async def _main(url: str, name: str) -> None:
    logging.getLogger("shmrpc").setLevel(logging.CRITICAL)  # The logger reports each attempt to connect.
    outcomes, stop = CallOutcomes(), asyncio.Event()
    async with shmrpc.connect(service.name, at=url, timeout=PATIENCE, reconnect=True) as client:
        sys.stdout.write("calling\n")
        sys.stdout.flush()
        calling = [asyncio.create_task(call_on(client, f"{name}.{n}", stop, outcomes, n)) for n in range(_CALLERS)]
        await asyncio.to_thread(sys.stdin.read)
        stop.set()
        await asyncio.gather(*calling)
    sys.stdout.write(json.dumps({key: [*values] for key, values in vars(outcomes).items()}))


if __name__ == "__main__":
    asyncio.run(_main(*sys.argv[1:]))
