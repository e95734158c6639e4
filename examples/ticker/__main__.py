"""Run with ``python -m examples.ticker``: the ticks of a market are recorded, watched and drawn, by a process each.

This process is the market. It publishes each tick once, in a topic that three others read: a recorder and an alarm, for
which it would wait, and a chart in the terminal, which shows the last tick and skips what it has no time for. The chart
is stopped for a third of the ticks, as by Ctrl-Z; neither the market nor the others notice.

The exit status is 1 if the recorder or the alarm has missed a tick, or the chart cannot account for each of them.
"""

from __future__ import annotations

import argparse
import csv
import multiprocessing
import os
import signal
import sys
import tempfile
import time
from collections.abc import Sequence
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any, Final

import shmrpc
from examples.ticker.market import Tick, jumps, ticks
from examples.ticker.readers import alarm, chart, record

#: Ticks that come at a time, and the seconds until the next ones do.
BATCH: Final = 100
PAUSE: Final = 0.01
PATIENCE: Final = 120.0  # Seconds.


def publish(topic: shmrpc.sync.Topic, values: Sequence[Tick]) -> float:
    """Publish ticks, and return the longest time for a batch, in seconds."""
    longest = 0.0
    for begin in range(0, len(values), BATCH):
        began = time.monotonic()
        topic.publish_many(values[begin : begin + BATCH], PATIENCE)
        longest = max(longest, time.monotonic() - began)
        time.sleep(PAUSE)
    return longest


def stop(process: BaseProcess) -> None:
    """Stop a process, and return once it is stopped."""
    assert process.pid is not None
    os.kill(process.pid, signal.SIGSTOP)
    os.waitid(os.P_PID, process.pid, os.WSTOPPED)


def trade(
    name: str, values: Sequence[Tick], readers: Sequence[BaseProcess], stopped: BaseProcess
) -> tuple[float, float]:
    """Publish all ticks, a third of them while a reader is stopped.

    Returns the longest time of a batch without a stopped reader, and with one.
    """
    third = len(values) // 3
    with shmrpc.sync.topic(name) as topic:
        end = time.monotonic() + PATIENCE
        while len(topic.subscribers()) < len(readers):
            if time.monotonic() > end or not all(each.is_alive() for each in readers):
                raise TimeoutError("not all readers have come")
            time.sleep(PAUSE)
        before = publish(topic, values[:third])
        stop(stopped)
        during = publish(topic, values[third : 2 * third])
        assert stopped.pid is not None
        os.kill(stopped.pid, signal.SIGCONT)
        return max(before, publish(topic, values[2 * third :])), during


def recorded(path: Path) -> list[tuple[int, Tick]]:
    """Return the ticks of a recorder's file, with their numbers."""
    with path.open(newline="") as file:
        return [(int(seq), {"price": float(price), "size": int(size)}) for seq, price, size in csv.reader(file)]


def run(count: int, path: Path) -> list[str]:
    """Has so many ticks published and read; returns what is wrong with what the readers have seen."""
    name, results = f"ticks.{os.getpid()}", f"ticks.{os.getpid()}.results"
    context = multiprocessing.get_context("spawn")
    drawing = context.Process(target=chart, args=(name, results))
    readers: list[BaseProcess] = [
        context.Process(target=record, args=(name, results, path)),
        context.Process(target=alarm, args=(name, results)),
        drawing,
    ]
    values = list(ticks(count))
    seen: dict[str, dict[str, Any]] = {}
    with shmrpc.sync.queue(results) as queue:
        for reader in readers:
            reader.start()
        try:
            usual, meanwhile = trade(name, values, readers, drawing)
            for _ in readers:
                result = queue.get(PATIENCE)
                seen[result["who"]] = result
            for reader in readers:
                reader.join(PATIENCE)
        finally:
            for reader in readers:
                reader.kill()
    read, skipped = seen["chart"]["read"], seen["chart"]["skipped"]
    sys.stdout.write(
        f"{count} ticks were recorded; the alarm was raised {len(seen['alarm']['jumps'])} times\n"
        f"the chart has shown {read} of them and skipped {skipped}: it was stopped for {count // 3}\n"
        f"the longest that {BATCH} ticks took to publish: {usual * 1e3:.1f} ms, {meanwhile * 1e3:.1f} ms meanwhile\n"
    )
    faults = [] if recorded(path) == list(enumerate(values)) else ["the recorder has not each tick, in order"]
    faults += [] if seen["alarm"]["jumps"] == jumps(count) else ["the alarm has missed a jump, or made one up"]
    faults += [] if read + skipped == count else [f"the chart knows nothing of {count - read - skipped} ticks"]
    faults += [] if skipped >= count // 3 - 1 else ["the chart was not stopped"]
    return faults + [f"process {each.pid} ended with {each.exitcode}" for each in readers if each.exitcode != 0]


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(prog="python -m examples.ticker", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--ticks", type=int, default=30_000, help="how many (30000; at least 3000)")
    parser.add_argument("file", type=Path, nargs="?", help="where to record them, as CSV; by default a temporary file")
    options = parser.parse_args()
    if options.ticks < 3000:
        parser.error("--ticks: expected 3000 or more, for the alarm to have something to find")
    with tempfile.TemporaryDirectory() as directory:
        if faults := run(options.ticks, options.file or Path(directory) / "ticks.csv"):
            sys.exit("\n".join(faults))


if __name__ == "__main__":
    main()
