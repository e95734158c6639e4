"""Processes that put items into a queue and take items out at random, and are killed at any moment."""

from __future__ import annotations

import os
import random
import signal
import time
from pathlib import Path
from typing import Any, Final

import shmrpc
import shmrpc.sync
from tests.reliability.deaths.queue_ledger import Ledger, item, number_of

#: Seconds of a wait at most: only a failure takes so long.
PATIENCE: Final = 30.0
#: Processes; half of them put items.
WORKERS: Final = 4


def kill_loop(name: str, kills: int, seed: int, ledger: str, gets: bool, first: int) -> int:
    """Kill one worker after the other and start another one; return the number of the next worker.

    With ``gets`` some items are received by `get`, and lost if the process dies; without it all are claimed. A worker
    that ends by itself has found an error, and raises AssertionError here.
    """
    chance, path, serial = random.Random(seed), Path(ledger), first

    def begin(place: int) -> int:
        nonlocal serial
        serial += 1
        worker = os.fork()
        if not worker:
            _work(name, path, serial, place, gets, random.Random(f"{seed} {serial}"))
        return worker

    workers = [begin(place) for place in range(WORKERS)]
    try:
        for _ in range(kills):
            time.sleep(chance.random() ** 3 * 0.03)
            place = chance.randrange(WORKERS)
            os.kill(workers[place], signal.SIGKILL)
            _, status = os.waitpid(workers[place], 0)
            assert os.waitstatus_to_exitcode(status) == -signal.SIGKILL, f"a worker has ended by {status:#x}"
            workers[place] = begin(place)
    finally:
        for worker in workers:
            os.kill(worker, signal.SIGKILL)
            os.waitpid(worker, 0)
    return serial + 1


def _work(name: str, path: Path, serial: int, place: int, gets: bool, chance: random.Random) -> None:
    try:
        ledger = Ledger(path, serial)
        queue: Any = shmrpc.sync.attach(name, PATIENCE)
        with queue:
            if place % 2:
                _consume(queue, ledger, gets, chance)
            else:
                _produce(queue, ledger, serial << 32, chance)
    except BaseException:
        import traceback

        traceback.print_exc()
    finally:
        os._exit(9)


def _produce(queue: Any, ledger: Ledger, number: int, chance: random.Random) -> None:
    while True:
        count = chance.choice([1, 1, 1, 2, 30])
        numbers = range(number, number + count)
        number += count
        ledger.write("putting", *numbers)
        if count > 1:
            queue.put_many(map(item, numbers), PATIENCE)
        elif chance.random() < 0.05:
            with queue.reserve(20_000, "i8", PATIENCE) as filled:
                filled[:] = numbers[0]
        else:
            queue.put(item(numbers[0]), PATIENCE)
        ledger.write("put", *numbers)


def _consume(queue: Any, ledger: Ledger, gets: bool, chance: random.Random) -> None:
    held: list[tuple[shmrpc.Claim, int]] = []
    while True:
        most = chance.choice([1, 1, 5])
        if gets and chance.random() < 0.7:
            ledger.write("getting", most)
            got = queue.get_many(most, PATIENCE) if most > 1 else [queue.get(PATIENCE)]
            ledger.write("got", *map(number_of, got))
            queue.task_done(len(got))
        else:
            claim = queue.claim(PATIENCE)
            number = number_of(claim.value)
            ledger.write("claimed", number, int(claim.redelivered))
            held.append((claim, number))
        while held and (len(held) == 3 or chance.random() < 0.7):
            claim, number = held.pop(chance.randrange(len(held)))
            if chance.random() < 0.1:
                claim.nack()
                continue
            ledger.write("acknowledging", number)
            claim.ack()
            ledger.write("acknowledged", number)
