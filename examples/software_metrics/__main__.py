"""Run with ``python -m examples.software_metrics``: the methods of the standard library, measured by 1, 2, n processes.

Each file is a task, and then each method: one message for each, though it is measured in a fraction of a millisecond.
What stands in two places is measured once. Beside it, one process does the same without a pool. The exit status is 1
if one of them finds something else than the others.
"""

from __future__ import annotations

import argparse
import asyncio
import functools
import operator
import os
import sys
import time
from collections.abc import Sequence

from rich.console import Console
from rich.table import Table

import shmrpc
from examples.demo import ROOT, standard_library
from examples.software_metrics.methods import Metrics, measure, methods_in

console = Console()


def by_one(files: Sequence[str]) -> Metrics:
    """Measures all methods in these files in this process."""
    methods = {method for file in files for method in methods_in(file)}
    return functools.reduce(operator.add, map(measure, methods), Metrics())


async def by_pool(files: Sequence[str], workers: int) -> tuple[Metrics, float]:
    """Measures them by a pool; and the seconds that this took without the start of the workers."""
    async with shmrpc.pool(workers) as pool:
        began = time.perf_counter()
        methods: set[str] = set()
        async for found in pool.map(methods_in, files, ordered=False):
            methods.update(found)
        total = Metrics()
        async for metrics in pool.map(measure, methods, ordered=False):
            total += metrics
        return total, time.perf_counter() - began


def compare(files: Sequence[str], pools: Sequence[int]) -> bool:
    """Measures by one process and by each pool, and prints what that took; whether all found the same."""
    began = time.perf_counter()
    expected = by_one(files)
    alone = time.perf_counter() - began
    table = Table(
        "measured by", "seconds", "times as fast", title=f"{expected.methods:,} methods in {len(files):,} files"
    )
    table.add_row("this process alone", f"{alone:.2f}", "1.00")
    same = True
    for workers in pools:
        total, seconds = asyncio.run(by_pool(files, workers))
        table.add_row(f"a pool of {workers}", f"{seconds:.2f}", f"{alone / seconds:.2f}")
        same = same and total == expected
    console.print(table)
    console.print(f"{expected.lines:,} lines, {expected.statements:,} statements, complexity {expected.complexity:,}")
    console.print("All found the same." if same else "They did not all find the same.")
    return same


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(
        prog="python -m examples.software_metrics", description=(__doc__ or "").partition("\n")[0]
    )
    parser.add_argument("--limit", type=int, metavar="N", help="only the first N files")
    files = [str(ROOT / name) for name in standard_library(parser.parse_args().limit)]
    sys.exit(not compare(files, sorted({1, 2, len(os.sched_getaffinity(0))})))


if __name__ == "__main__":
    main()
