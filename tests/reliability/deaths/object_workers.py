"""Processes that open shared objects, use them at random, and are killed at any moment; the others must not notice."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import time
from typing import Any, Final

import shmrpc
import shmrpc.sync

#: Seconds of a wait at most: only a failure takes so long.
PATIENCE: Final = 30.0
WORKERS: Final = 4
PERMITS: Final = 2


def kill_loop(kills: int, seed: int) -> dict[str, int]:
    """Kill one worker after the other and start another one; return how often each end was seen.

    A worker that ends by itself has found an error, and raises AssertionError here.
    """
    chance, ends = random.Random(seed), {"killed": 0, "by points": 0}
    workers = [_begin(chance.random()) for _ in range(WORKERS)]
    try:
        for _ in range(kills):
            time.sleep(chance.random() ** 3 * 0.02)
            place = chance.randrange(WORKERS)
            os.kill(workers[place], signal.SIGKILL)
            _, status = os.waitpid(workers[place], 0)
            assert os.waitstatus_to_exitcode(status) == -signal.SIGKILL, f"a worker has ended by {status:#x}"
            ends["killed"] += 1
            workers[place] = _begin(chance.random())
    finally:
        for worker in workers:
            os.kill(worker, signal.SIGKILL)
            os.waitpid(worker, 0)
    return ends


def _begin(seed: float) -> int:
    worker = os.fork()
    if worker:
        return worker
    code = 9
    try:
        work(random.Random(seed))
    except BaseException:
        import traceback

        traceback.print_exc()
    finally:
        os._exit(code)


def work(chance: random.Random) -> None:
    """Use objects until the process is killed; raise on any inconsistency."""
    while True:
        with contextlib.ExitStack() as stack:
            names = Names()
            stack.callback(names.close)
            for _ in range(chance.randrange(1, 200)):
                chance.choice([names.use_gate, names.use_lock, names.use_memory, names.use_signals, names.use_event])()


class Names:
    """Open objects of all kinds."""

    def __init__(self) -> None:
        self.gate = shmrpc.sync.Semaphore("gpu", PERMITS)
        self.lock = shmrpc.sync.Lock("config")
        self.go = shmrpc.sync.Event("go")
        self.ready = shmrpc.sync.Signal("ready")
        self.frame = shmrpc.sync.memory("frame", 64)
        #: The holder of each lock, written by the holder itself.
        self._inside: Any = self.frame.array(4, "i8")

    def close(self) -> None:
        for name in (self.gate, self.lock, self.go, self.ready, self.frame):
            name.close()

    def use_gate(self) -> None:
        self.gate.acquire(PATIENCE)
        time.sleep(0)
        self.gate.release()

    def use_lock(self) -> None:
        self.lock.acquire(PATIENCE)
        self._stay_alone(0)
        self.lock.release()

    def use_memory(self) -> None:
        self.frame.lock.acquire(PATIENCE)
        self._stay_alone(1)
        self.frame.lock.release()

    def use_signals(self) -> None:
        self.ready.signal()
        self.ready.wait(PATIENCE)

    def use_event(self) -> None:
        self.go.set()
        self.go.wait(PATIENCE)
        self.go.clear()

    def _stay_alone(self, place: int) -> None:
        self._inside[place] = os.getpid()
        time.sleep(0)
        assert self._inside[place] == os.getpid(), "two processes hold one lock"
