"""A service that notes what it executes, callers that keep what they were told, and the comparison of both.

``python -m tests.reliability.deaths.called_notes URL NAME`` calls until its input ends, and prints what it was
told as JSON.
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

#: Where a server notes what it executes: a line for each call, written before it is answered.
LEDGER: Final = "SHMRPC_TESTED_NATS_LEDGER"
#: Callers of a client.
_CALLERS: Final = 4

service = shmrpc.Service("tested.nats.ledger")


@service.endpoint
async def note(call: str, seconds: float) -> str:
    """Notes a call as executed, once for each time."""
    descriptor = os.open(os.environ[LEDGER], os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    try:
        os.write(descriptor, f"{call}\n".encode())
    finally:
        os.close(descriptor)
    await asyncio.sleep(seconds)
    return call


@dataclasses.dataclass
class CallOutcomes:
    """What callers were told of their calls."""

    answered: set[str] = dataclasses.field(default_factory=set)
    not_executed: set[str] = dataclasses.field(default_factory=set)
    maybe_executed: set[str] = dataclasses.field(default_factory=set)
    #: What nobody should be told.
    other: list[str] = dataclasses.field(default_factory=list)


async def call_on(client: Any, name: str, stop: asyncio.Event, told: CallOutcomes, seed: int) -> None:
    """Calls one after the other."""
    chance = random.Random(seed)
    count = 0
    while not stop.is_set():
        count += 1
        call = f"{name}.{count}"
        try:
            assert await client.note(call, chance.choice([0, 0, 0.002, 0.02])) == call
            told.answered.add(call)
        except shmrpc.ConnectionLost as error:
            (told.maybe_executed if error.maybe_executed else told.not_executed).add(call)
        except shmrpc.ServiceUnavailable:  # No server came for a while.
            told.not_executed.add(call)
        except Exception as error:
            told.other.append(repr(error))


def check(ledger: Path, every: Iterable[CallOutcomes]) -> CallOutcomes:
    """Holds what callers were told against what was done; all of it together."""
    done = Counter(ledger.read_text().split())
    told = CallOutcomes()
    for each in every:
        told.answered |= each.answered
        told.not_executed |= each.not_executed
        told.maybe_executed |= each.maybe_executed
        told.other += each.other
    assert told.other == []
    assert [call for call, times in done.items() if times > 1] == []
    assert told.answered - done.keys() == set()
    assert told.not_executed & done.keys() == set()
    return told


async def _main(url: str, name: str) -> None:
    logging.getLogger("shmrpc").setLevel(logging.CRITICAL)  # It says each try.
    told, stop = CallOutcomes(), asyncio.Event()
    async with shmrpc.connect(service.name, at=url, timeout=PATIENCE, reconnect=True) as client:
        sys.stdout.write("calling\n")
        sys.stdout.flush()
        calling = [asyncio.create_task(call_on(client, f"{name}.{n}", stop, told, n)) for n in range(_CALLERS)]
        await asyncio.to_thread(sys.stdin.read)
        stop.set()
        await asyncio.gather(*calling)
    sys.stdout.write(json.dumps({key: [*values] for key, values in vars(told).items()}))


if __name__ == "__main__":
    asyncio.run(_main(*sys.argv[1:]))
