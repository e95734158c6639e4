"""What ``make demo`` runs: measure Python's standard library in another process, and check every answer.

Starts the services code_metrics and calculator, each in a process of its own; sends every file of the
standard library to the first; measures the same files directly and compares; times calls of the second;
stops both and looks for anything that they left. The exit status is 1 if an answer differs or something
is left.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import signal
import subprocess
import sys
import sysconfig
import tempfile
import time
from collections.abc import Generator, Iterator, Sequence
from contextlib import closing
from pathlib import Path

import uvloop
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

import shmrpc
from examples.calculator import add
from examples.code_metrics import Metrics, measure
from shmrpc.transport.shm.cleanup import SHM_DIRECTORY, runtime_directory

ROOT = Path(sysconfig.get_path("stdlib"))
SERVICES = ("code_metrics", "calculator")
START_TIMEOUT = STOP_TIMEOUT = 10.0  # Seconds.
IN_FLIGHT = 16
ROUND_TRIPS, WARM_UP = 20_000, 1_000

console = Console()

#: What became of a file: its metrics, or the message of the ValueError.
Outcome = Metrics | str
Server = subprocess.Popen[bytes]


def standard_library(limit: int | None) -> list[str]:
    """The files of the running Python's own modules and tests, without what is installed beside them."""
    files = (file.relative_to(ROOT) for file in sorted(ROOT.rglob("*.py")) if file.is_file())
    own = [str(file) for file in files if not {"site-packages", "dist-packages"}.intersection(file.parts)]
    return own[:limit]


def sources(names: Sequence[str], description: str) -> Generator[tuple[str, bytes], None, None]:
    """Each file's name and content, read only when it is asked for, with a progress bar."""
    columns = (TextColumn("{task.description:<21}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console) as progress:
        for name in progress.track(names, description=description):
            yield name, (ROOT / name).read_bytes()


def start(servers: list[Server]) -> None:
    """Starts both services, each in a process of its own, and waits until they answer."""
    for name in SERVICES:
        command = [sys.executable, "-m", "shmrpc", "serve", f"examples.{name}:{name}"]
        # In a session of their own Ctrl-C does not reach them: we stop them, after we have stopped calling.
        servers.append(subprocess.Popen(command, cwd=Path(__file__).parents[1], start_new_session=True))
    for name in SERVICES:
        with shmrpc.sync.connect(name, timeout=START_TIMEOUT):
            pass


def stop(servers: Sequence[Server]) -> None:
    """Asks the servers to stop, and kills one that does not."""
    for server in servers:
        server.terminate()
    for server in servers:
        try:
            server.wait(STOP_TIMEOUT)
        except subprocess.TimeoutExpired:
            server.kill()
            server.wait()


async def measure_remotely(names: Sequence[str]) -> dict[str, Outcome]:
    """Every file measured by the service, several calls in flight."""
    outcomes: dict[str, Outcome] = {}

    async def work(client: shmrpc.Client, files: Iterator[tuple[str, bytes]]) -> None:
        for name, source in files:
            try:
                outcomes[name] = await client.call(measure, source, name)
            except ValueError as error:
                outcomes[name] = str(error)

    with closing(sources(names, "Calling code_metrics")) as files:
        async with (
            shmrpc.connect("code_metrics", timeout=START_TIMEOUT) as client,
            asyncio.TaskGroup() as tasks,
        ):
            for _ in range(IN_FLIGHT):
                tasks.create_task(work(client, files))  # They share the files: each takes the next one.
    return outcomes


def measure_directly(names: Sequence[str]) -> dict[str, Outcome]:
    """Every file measured in this process."""
    outcomes: dict[str, Outcome] = {}
    with closing(sources(names, "Measuring it directly")) as files:
        for name, source in files:
            try:
                outcomes[name] = measure(source, name)
            except ValueError as error:
                outcomes[name] = str(error)
    return outcomes


def show_totals(outcomes: dict[str, Outcome], seconds: float) -> None:
    """The table of what the calls brought."""
    total = sum((outcome for outcome in outcomes.values() if isinstance(outcome, Metrics)), Metrics())
    failures = sum(isinstance(outcome, str) for outcome in outcomes.values())
    size = sum((ROOT / name).stat().st_size for name in outcomes)
    table = Table("", title=f"Python {sys.version.split()[0]}, measured in another process")
    table.add_column("total", justify="right")
    rows = {"files": len(outcomes), "could not be parsed": failures}
    for field in Metrics.__struct_fields__:
        rows["lines of code" if field == "lines" else field] = getattr(total, field)
    for label, number in rows.items():
        table.add_row(label, f"{number:,}")
    table.add_section()
    table.add_row("seconds", f"{seconds:.2f}")
    table.add_row("calls/s", f"{len(outcomes) / seconds:,.0f}")
    table.add_row("MB/s", f"{size / seconds / 1e6:,.2f}")
    console.print(table)


def compare(remote: dict[str, Outcome], direct: dict[str, Outcome]) -> bool:
    """Whether both ways brought the same for every file; says which file if not."""
    different = [name for name in direct.keys() | remote.keys() if remote.get(name) != direct.get(name)]
    for name in sorted(different):
        console.print(f"[red]{name} differs:[/] called {remote.get(name)!r}, directly {direct.get(name)!r}")
    if not different:
        failures = sum(isinstance(outcome, str) for outcome in direct.values())
        console.print(
            f"Equal for each of {len(direct):,} files, the {failures} that could not be parsed among them."
        )
    return not different


async def time_calls() -> list[int]:
    """Nanoseconds of each call of the calculator, one after another."""
    times = []
    async with shmrpc.connect("calculator", timeout=START_TIMEOUT) as client:
        for i in range(-WARM_UP, ROUND_TRIPS):
            start = time.perf_counter_ns()
            await client.add(i, 2)
            times.append(time.perf_counter_ns() - start)
    return times[WARM_UP:]


def time_direct_calls() -> list[int]:
    """The same without a service, timed in the same way."""
    times = []
    for i in range(-WARM_UP, ROUND_TRIPS):
        start = time.perf_counter_ns()
        add(i, 2)
        times.append(time.perf_counter_ns() - start)
    return times[WARM_UP:]


def show_round_trips() -> None:
    """The table of how long one small call takes."""
    table = Table(title=f"add(i, 2), {ROUND_TRIPS:,} times, one at a time")
    for heading in ("", "p50 µs", "p99 µs", "calls/s"):
        table.add_column(heading, justify="right" if heading else "left")
    for label, times in (("another process", uvloop.run(time_calls())), ("directly", time_direct_calls())):
        times.sort()
        p50, p99 = (times[len(times) * percent // 100] / 1000 for percent in (50, 99))
        table.add_row(label, f"{p50:,.2f}", f"{p99:,.2f}", f"{len(times) / sum(times) * 1e9:,.0f}")
    console.print(table)


def demonstrate(limit: int | None) -> bool:
    """All that needs the servers; whether the answers were right."""
    names = standard_library(limit)
    begin = time.perf_counter()
    remote = uvloop.run(measure_remotely(names))
    show_totals(remote, time.perf_counter() - begin)
    equal = compare(remote, measure_directly(names))
    show_round_trips()
    return equal


def shared_memory() -> set[str]:
    """Names in shared memory that can be our servers'."""
    prefixes = tuple(f"{kind}shmrpc.{service}." for kind in ("", "sem.") for service in SERVICES)
    return {str(path) for path in SHM_DIRECTORY.iterdir() if path.name.startswith(prefixes)}


def nothing_left(before: set[str], servers: Sequence[Server]) -> bool:
    """Whether the servers are gone, with every name they had; shows it."""
    left = shared_memory() - before
    if left:
        time.sleep(1)  # Another program's handshake has such names for a moment; what is left stays.
        left &= shared_memory()
    left |= {str(path) for path in runtime_directory().glob("*")}
    left |= {f"process {server.pid}" for server in servers if Path(f"/proc/{server.pid}").exists()}
    for server in servers:
        console.print(f"Server process {server.pid} ended with status {server.returncode}.")
    console.print(
        f"Left in {SHM_DIRECTORY}, in {runtime_directory()} and of processes: {len(left) or 'nothing'}"
    )
    for name in sorted(left):
        console.print(f"[red]left behind:[/] {name}")
    return not left


def main() -> int:
    """The command line of the demo."""
    parser = argparse.ArgumentParser(description="Measure the standard library in another process.")
    parser.add_argument("--limit", type=int, metavar="N", help="only the first N files")
    limit = parser.parse_args().limit
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))  # So that the finally runs.
    before = shared_memory()
    servers: list[Server] = []
    with tempfile.TemporaryDirectory(prefix="shmrpc-demo-") as directory:
        os.environ["XDG_RUNTIME_DIR"] = directory  # Neither finds nor disturbs services that run already.
        try:
            start(servers)
            equal = demonstrate(limit)
        finally:
            stop(servers)
            clean = nothing_left(before, servers)
    return 0 if equal and clean else 1


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)
