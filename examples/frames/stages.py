"""The work of each process: one makes frames, some work on them."""

from __future__ import annotations

from typing import Final

import shmrpc
from examples.frames.film import Shape, draw, shrink

#: Frames that may wait for the workers, and bytes of all frames.
WAITING: Final = 8
MEMORY: Final = "256MiB"
#: Small frames that may wait for the writer.
RESULTS: Final = 4
PATIENCE: Final = 120.0  # Seconds.


def open_queues(names: tuple[str, str]) -> tuple[shmrpc.sync.Queue, shmrpc.sync.Queue]:
    """Open the queue of frames and the queue of results. Every process opens them with the same sizes."""
    return (
        shmrpc.sync.queue(names[0], WAITING, max_memory=MEMORY),
        shmrpc.sync.queue(names[1], RESULTS),
    )


def produce(names: tuple[str, str], count: int, shape: Shape) -> None:
    """Draw frames in the memory in which the workers read them."""
    frames, _ = open_queues(names)
    for number in range(count):
        with frames.reserve(shape, timeout=PATIENCE) as frame:
            draw(frame, number, count)
    frames.shutdown()


def work(names: tuple[str, str]) -> None:
    """Shrink each frame of the queue until there are no more.

    Each claim ends after its result was put: a worker that dies in between leaves a frame that is delivered again,
    and maybe a second result, which the writer has to take. The other way round, a frame would be missing.
    """
    frames, results = open_queues(names)
    for claim in frames.claims():
        with claim:
            small = shrink(claim.value)  # A view of the queue's memory: nothing was copied.
            # Only the producer puts frames, so an item's number is that of its frame.
            result = {"number": claim.number, "pixels": small, "again": claim.redelivered}
            results.put(result, PATIENCE)
