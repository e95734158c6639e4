"""Readers of the ticks. Each reader ends with the market, and then puts what it has seen into a queue."""

from __future__ import annotations

import csv
import sys
import time
from collections import deque
from pathlib import Path
from typing import Final

import shmrpc
from examples.ticker.market import is_jump

#: Seconds between two pictures of the chart: an eye sees no more.
PICTURE: Final = 0.04
#: Prices that a picture shows.
WIDTH: Final = 60
BARS: Final = "▁▂▃▄▅▆▇█"


def record(topic: str, results: str, path: Path) -> None:
    """Write each tick into a file. The market waits for this reader, and keeps unread ticks in memory."""
    with (
        shmrpc.sync.subscribe(topic, slow_policy="block", on_publisher_lost="raise") as ticks,
        path.open("w", newline="") as file,
    ):
        writer = csv.writer(file)
        try:
            while True:
                batch = ticks.get_many(1000)
                writer.writerows((m.seq, m.value["price"], m.value["size"]) for m in batch)
        except shmrpc.PublisherGone:  # All that it has published is read.
            _put(results, "recorder", {})


def alarm(topic: str, results: str) -> None:
    """Raise an alarm for each jump between two prices. Missing a tick could hide a jump."""
    jumps, before = [], 0.0
    with shmrpc.sync.subscribe(topic, slow_policy="block", on_publisher_lost="raise") as ticks:
        try:
            for tick in ticks:
                if before and is_jump(before, tick.value["price"]):
                    jumps.append(tick.seq)
                before = tick.value["price"]
        except shmrpc.PublisherGone:
            _put(results, "alarm", {"jumps": jumps})


def chart(topic: str, results: str) -> None:
    """Draw the current price. The chart skips older ticks, and the market does not wait for the chart."""
    prices, read = deque[float](maxlen=WIDTH), 0
    with shmrpc.sync.subscribe(topic, slow_policy=shmrpc.KeepLast(1), on_publisher_lost="raise") as ticks:
        try:
            for tick in ticks:
                prices.append(tick.value["price"])
                read += 1
                if sys.stdout.isatty():
                    _show(f"\r{picture(prices)} {prices[-1]:8.2f} ")
                time.sleep(PICTURE)
        except shmrpc.PublisherGone:
            _show("\n" if sys.stdout.isatty() else f"{picture(prices)} {prices[-1]:8.2f}\n")
            _put(results, "chart", {"read": read, "skipped": ticks.lost})


def picture(prices: deque[float]) -> str:
    """Draws prices as bars."""
    low, high = min(prices), max(prices)
    scale = (len(BARS) - 1) / ((high - low) or 1)
    return "".join(BARS[round((price - low) * scale)] for price in prices).rjust(WIDTH)


def _show(text: str) -> None:
    # Bytes, so that a terminal without these letters does not end the chart.
    sys.stdout.buffer.write(text.encode(sys.stdout.encoding, errors="replace"))
    sys.stdout.flush()


def _put(results: str, who: str, seen: dict[str, object]) -> None:
    with shmrpc.sync.queue(results) as queue:
        queue.put({"who": who, **seen})
