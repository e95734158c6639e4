"""Run with ``python -m examples.frames``: frames go through three workers into one picture, and one worker is killed.

A producer fills frames in the memory of a queue. Three processes work on them where they lie, and put what they make, a
good deal smaller, into a second queue. This process puts that together. On the way it kills one of the three that has a
frame in its hands: the frame comes back to the queue, and another worker gets it.

The exit status is 1 if a frame is missing or wrong in the picture, or if none has come back.
"""

from __future__ import annotations

import argparse
import contextlib
import multiprocessing
import os
import signal
import sys
import time
from collections.abc import Sequence
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Final

import numpy as np

import shmrpc
from examples.frames.film import SCALE, Picture, Shape, expected
from examples.frames.stages import PATIENCE, open_queues, produce, work

WORKERS: Final = 3


def kill_one(frames: shmrpc.sync.Queue, workers: Sequence[BaseProcess]) -> int:
    """Kills a worker that has a frame in its hands; its process id.

    The worker is stopped first: what the worker holds then, it holds when it is killed.
    """
    end = time.monotonic() + PATIENCE
    while time.monotonic() < end:
        for worker in workers:
            pid = worker.pid
            assert pid is not None
            os.kill(pid, signal.SIGSTOP)
            with contextlib.suppress(shmrpc.WaitTimeout):  # The worker was stopped as it was changing the queue.
                if any(held.pid == pid for held in frames.stats().held):
                    worker.kill()
                    worker.join()
                    return pid
            os.kill(pid, signal.SIGCONT)
    raise TimeoutError("no worker had a frame in its hands")


def run(count: int, shape: Shape, path: Path) -> list[str]:
    """Make the picture, and return a list of its faults."""
    names = (f"frames.{os.getpid()}", f"frames.{os.getpid()}.results")
    context = multiprocessing.get_context("spawn")
    workers = [context.Process(target=work, args=(names,)) for _ in range(WORKERS)]
    processes: list[BaseProcess] = [*workers, context.Process(target=produce, args=(names, count, shape))]
    frames, results = open_queues(names)
    picture, done, again = Picture(count, shape), set[int](), set[int]()
    with frames, results:  # The queues exist as long as this process has them open.
        for process in processes:
            process.start()
        try:
            victim = None
            while len(done) < count:
                result = results.get(PATIENCE)
                picture.part(result["number"])[:] = result["pixels"]
                done.add(result["number"])
                if result["again"]:
                    again.add(result["number"])
                if victim is None and len(done) >= count // 4:
                    victim = kill_one(frames, workers)
            for process in processes:
                process.join(PATIENCE)
        finally:
            for process in processes:
                process.kill()
    picture.write(path)
    wrong = [n for n in range(count) if not np.array_equal(picture.part(n), expected(n, count, shape))]
    came_back = ", ".join(map(str, sorted(again)))
    sys.stdout.write(
        f"{count} frames of {shape[1]} x {shape[0]} pixels in {path}\n"
        f"worker {victim} was killed; delivered again: frame {came_back}\n"
    )
    faults = [f"frame {n} is missing or wrong" for n in wrong]
    faults += [] if again else ["no frame has come back from the worker that was killed"]
    faults += [f"process {each.pid} ended with {each.exitcode}" for each in processes if each.exitcode != 0]
    return [fault for fault in faults if fault != f"process {victim} ended with {-signal.SIGKILL}"]


def _multiple(text: str) -> int:
    if (number := int(text)) < SCALE or number % SCALE:
        raise argparse.ArgumentTypeError(f"expected a multiple of {SCALE}, got {text}")
    return number


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(prog="python -m examples.frames", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--frames", type=int, default=64, help="how many (64; at least 16)")
    parser.add_argument("--height", type=_multiple, default=1080, help="of a frame (1080)")
    parser.add_argument("--width", type=_multiple, default=1920, help="of a frame (1920)")
    parser.add_argument("picture", type=Path, nargs="?", default=Path("frames.png"), help="the PNG file to write")
    options = parser.parse_args()
    if options.frames < 16:
        parser.error("--frames: expected 16 or more, or all may be done before one is killed")
    if faults := run(options.frames, (options.height, options.width, 3), options.picture):
        sys.exit("\n".join(faults))


if __name__ == "__main__":
    main()
