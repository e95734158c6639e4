"""Processes that change a store until they are killed."""

from __future__ import annotations

import os
import random
import signal
import time
import traceback
from pathlib import Path

import shmrpc.sync

ACCOUNTS = 20
TOTAL = 1000


def prepare(store: shmrpc.sync.Store) -> None:
    """Create the values that the workers change."""
    store["accounts"] = {f"account number {n}": TOTAL // ACCOUNTS for n in range(ACCOUNTS)}
    store["done"] = {}
    store["notes"] = []
    store["last"] = None


def work(name: str, worker: str, ledger: str, seed: int) -> None:
    """Transfer between accounts for ever; record each transfer in the store with it, and in the ledger after it."""
    dice = random.Random(seed)
    file = os.open(ledger, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    with shmrpc.sync.store(name, max_memory="8MiB", busy_timeout=10.0) as store:
        while True:
            one, other = dice.sample(range(ACCOUNTS), 2)
            amount = dice.randrange(10)
            with store.transaction():
                accounts, done = store["accounts"], store["done"]
                accounts[f"account number {one}"] -= amount
                accounts[f"account number {other}"] += amount
                done[worker] = done.get(worker, 0) + 1
                store["last"] = {"who": worker, "what": ["x" * dice.randrange(200), amount]}
                notes = store["notes"]
                notes.append([worker, done[worker]])
                if len(notes) > 50:
                    del notes[:25]
            shmrpc.atomic.add(store, "operations", 1) if "operations" in store else store.setdefault("operations", 0)
            os.write(file, b".")


def kill_loop(name: str, kills: int, seed: int, directory: str, first: int) -> None:
    """Fork workers, and kill them at random, three at a time."""
    dice = random.Random(seed)
    living: list[int] = []
    try:
        _kill_in_turn(name, range(first, first + kills), seed, directory, dice, living)
    finally:
        for pid in living:
            _kill(pid)


def _kill_in_turn(name: str, numbers: range, seed: int, directory: str, dice: random.Random, living: list[int]) -> None:
    for number in numbers:
        pid = os.fork()
        if pid == 0:
            try:
                work(name, f"worker {number}", str(Path(directory, f"{number}")), seed + number)
            except BaseException:
                traceback.print_exc()
            finally:
                os._exit(1)
        living.append(pid)
        if len(living) == 3:
            time.sleep(dice.random() * 0.03)
            _kill(living.pop(dice.randrange(3)))


def _kill(pid: int) -> None:
    os.kill(pid, signal.SIGKILL)
    _, status = os.waitpid(pid, 0)
    assert os.WTERMSIG(status) == signal.SIGKILL, f"a worker has failed: {status}"
