"""The program that ``make demo`` runs: measure Python's standard library in another process, and check every answer.

Starts two services, each in a process of its own; sends every file of the library to code_metrics; measures
the same files directly and compares; times calls of calculator; stops both and looks for anything they left.
The exit status is 1 if an answer differs or something is left.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import platform
import signal
import subprocess
import sys
import sysconfig
import tempfile
import time
from collections.abc import Generator, Iterator, Sequence
from contextlib import closing, suppress
from pathlib import Path

import uvloop
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Column, Table

import shmrpc
from examples.calculator import add
from examples.code_metrics import Metrics, Unparsable, measure
from shmrpc.host.cleanup import SHM_DIRECTORY, runtime_directory

ROOT = Path(sysconfig.get_path("stdlib"))
SERVICES = ("code_metrics", "calculator")
TIMEOUT = 10.0  # Seconds that a server may take to start, and to stop.
IN_FLIGHT = 16
ROUND_TRIPS, WARM_UP = 20_000, 1_000

console = Console()

#: The outcome of a file: its metrics, or the reason why it could not be parsed.
Outcome = Metrics | str
Server = subprocess.Popen[bytes]


def standard_library(limit: int | None) -> list[str]:
    """List the files of the running Python's own modules and tests, nothing installed beside them."""
    files = (file.relative_to(ROOT) for file in sorted(ROOT.rglob("*.py")) if file.is_file())
    own = [str(file) for file in files if not {"site-packages", "dist-packages"}.intersection(file.parts)]
    return own[:limit]


def sources(names: Sequence[str], description: str) -> Generator[tuple[str, bytes], None, None]:
    """Yield each file's name and content, read only when it is asked for, with a progress bar."""
    columns = (TextColumn("{task.description:<21}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console) as progress:
        for name in progress.track(names, description=description):
            yield name, (ROOT / name).read_bytes()


def start(servers: list[Server]) -> None:
    """Start both services, each in a process of its own, and wait until they answer."""
    for name in SERVICES:
        command = [sys.executable, "-m", "shmrpc", "serve", f"examples.{name}:{name}"]
        # In a session of their own Ctrl-C does not reach them: we stop them, after we have stopped calling.
        servers.append(subprocess.Popen(command, cwd=Path(__file__).parents[1], start_new_session=True))
    for name in SERVICES:
        with shmrpc.sync.connect(name, timeout=TIMEOUT):
            pass


def stop(servers: Sequence[Server]) -> None:
    """Ask the servers to stop, and kill one that does not."""
    for server in servers:
        server.terminate()
    for server in servers:
        with suppress(subprocess.TimeoutExpired):
            server.wait(TIMEOUT)
        server.kill()  # Nothing, to one that has ended.
        server.wait()


async def measure_remotely(names: Sequence[str]) -> dict[str, Outcome]:
    """Let the service measure every file, several calls in flight."""
    outcomes: dict[str, Outcome] = {}

    async def work(client: shmrpc.Client, files: Iterator[tuple[str, bytes]]) -> None:
        for name, source in files:
            try:
                outcomes[name] = await client.call(measure, source, name)
            except Unparsable as error:
                outcomes[name] = str(error)

    with closing(sources(names, "Calling code_metrics")) as files:
        async with shmrpc.connect("code_metrics", timeout=TIMEOUT) as client, asyncio.TaskGroup() as tasks:
            for _ in range(IN_FLIGHT):
                tasks.create_task(work(client, files))  # They share the files: each takes the next one.
    return outcomes


def measure_directly(names: Sequence[str]) -> dict[str, Outcome]:
    """Measure every file in this process."""
    outcomes: dict[str, Outcome] = {}
    with closing(sources(names, "Measuring it directly")) as files:
        for name, source in files:
            try:
                outcomes[name] = measure(source, name)
            except Unparsable as error:
                outcomes[name] = str(error)
    return outcomes


def show_totals(outcomes: dict[str, Outcome], seconds: float) -> None:
    """Print what the calls brought, and how fast."""
    total = sum((outcome for outcome in outcomes.values() if isinstance(outcome, Metrics)), Metrics())
    failures = sum(isinstance(outcome, str) for outcome in outcomes.values())
    size = sum((ROOT / name).stat().st_size for name in outcomes)
    table = Table("measured in another process", title=f"Library of Python {platform.python_version()}")
    table.add_column("total", justify="right")
    table.add_row("files", f"{len(outcomes):,}")
    for field in Metrics.__struct_fields__:
        table.add_row("lines of code" if field == "lines" else field, f"{getattr(total, field):,}")
    table.add_row("files that could not be parsed", f"{failures:,}", end_section=True)
    table.add_row("seconds", f"{seconds:.2f}")
    table.add_row("calls/s", f"{len(outcomes) / seconds:,.0f}")
    table.add_row("MB/s", f"{size / seconds / 1e6:,.2f}")
    console.print(table)


def compare(remote: dict[str, Outcome], direct: dict[str, Outcome]) -> bool:
    """Tell whether both ways brought the same for every file, and which file is different if not."""
    different = [name for name in direct if remote.get(name) != direct[name]]
    for name in different:
        console.print(f"{name}: called {remote.get(name)}, directly {direct[name]}", markup=False)
    same = len(direct) - len(different)
    console.print(f"Called or directly, the same result or failure: {same:,} of {len(direct):,} files.")
    return not different


async def time_calls() -> tuple[list[int], list[int]]:
    """Call the calculator, and its function directly, in turn; the nanoseconds of each call."""
    remote, direct = [], []
    async with shmrpc.connect("calculator", timeout=TIMEOUT) as client:
        for i in range(WARM_UP + ROUND_TRIPS):
            start = time.perf_counter_ns()
            await client.add(i, 2)
            middle = time.perf_counter_ns()
            add(i, 2)
            direct.append(time.perf_counter_ns() - middle)
            remote.append(middle - start)
    return remote[WARM_UP:], direct[WARM_UP:]


def show_round_trips() -> None:
    """Print how long one small call takes."""
    numbers = (Column(heading, justify="right") for heading in ("p50 µs", "p99 µs", "calls/s"))
    table = Table("add(i, 2)", *numbers, title=f"{ROUND_TRIPS:,} calls, one at a time")
    for label, times in zip(("another process", "directly"), uvloop.run(time_calls()), strict=True):
        times.sort()
        p50, p99 = (times[len(times) * percent // 100] / 1000 for percent in (50, 99))
        table.add_row(label, f"{p50:.2f}", f"{p99:.2f}", f"{len(times) / sum(times) * 1e9:,.0f}")
    console.print(table)


def demonstrate(limit: int | None) -> bool:
    """Do all that needs the servers; tell whether the answers were right."""
    names = standard_library(limit)
    begin = time.perf_counter()
    remote = uvloop.run(measure_remotely(names))
    show_totals(remote, time.perf_counter() - begin)
    equal = compare(remote, measure_directly(names))
    show_round_trips()
    return equal


def shared_memory() -> set[str]:
    """List the names in shared memory that can be our servers'."""
    prefixes = tuple(f"{kind}shmrpc.{service}." for kind in ("", "sem.") for service in SERVICES)
    return {str(path) for path in SHM_DIRECTORY.iterdir() if path.name.startswith(prefixes)}


def nothing_left(before: set[str], servers: Sequence[Server]) -> bool:
    """Tell whether the servers are gone with every name they had, and what is left if not."""
    left = shared_memory() - before
    if left:
        time.sleep(1)  # Another program's handshake has such names for a moment; what is left stays.
        left &= shared_memory()
    left |= {str(path) for path in runtime_directory().glob("*")}
    left |= {f"process {server.pid}" for server in servers if Path(f"/proc/{server.pid}").exists()}
    statuses = ", ".join(str(server.returncode) for server in servers)
    found = ", ".join(sorted(left)) or "nothing"
    console.print(f"Servers stopped, exit status {statuses}. Left of memory, sockets, processes: {found}.")
    return not left


def main() -> int:
    """Run the demo; the exit status."""
    parser = argparse.ArgumentParser(description="Measure the standard library in another process.")
    parser.add_argument("--limit", type=int, metavar="N", help="only the first N files")
    limit = parser.parse_args().limit
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))  # So that the finally runs.
    before = shared_memory()
    servers: list[Server] = []
    with tempfile.TemporaryDirectory(prefix="shmrpc-demo-") as directory:
        os.environ["SHMRPC_DIRECTORY"] = ""  # This variable would take precedence over the next one.
        os.environ["XDG_RUNTIME_DIR"] = directory  # Neither finds nor disturbs services that run already.
        try:
            start(servers)
            equal = demonstrate(limit)
        except KeyboardInterrupt:
            return 128 + signal.SIGINT
        finally:
            stop(servers)
            clean = nothing_left(before, servers)
    return 0 if equal and clean else 1


if __name__ == "__main__":
    sys.exit(main())
