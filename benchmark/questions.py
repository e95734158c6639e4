"""The questions. Each takes a scale (1 is a full run) and returns rows; rounds are interleaved: A B C, A B C."""

from __future__ import annotations

import contextlib
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

import msgspec

from benchmark import large, loads, one_way, sweep
from benchmark.processes import Kind, Loop, client, server
from benchmark.rows import Row, row
from benchmark.subjects import Run, Subject, interleave, subjects_of
from shmrpc import _core

_PROCESSES: Final[tuple[tuple[Kind, Loop, Loop], ...]] = (
    ("shmrpc", "uvloop", "uvloop"),
    ("shmrpc", "asyncio", "asyncio"),
    ("socket", "uvloop", "uvloop"),
)
_ALL: Final[tuple[tuple[Kind, Loop, Loop], ...]] = (
    ("direct", "uvloop", "uvloop"),
    ("thread", "uvloop", "uvloop"),
    ("thread", "asyncio", "asyncio"),
    ("shmrpc", "sync", "uvloop"),
    *_PROCESSES,
)


def floors(run: Run) -> list[Row]:
    """What the machine and the codec take by themselves."""
    run.progress("floors: ping-pong and codec")
    made = []
    encode, decode = msgspec.msgpack.Encoder().encode, msgspec.msgpack.Decoder().decode
    ping_pong = [int(_core.ping_pong(run.calls(100_000))) for _ in range(max(3, run.rounds))]
    made.append(row("floor", "ping-pong of a word", [{"latencies": ping_pong, "calls": 0, "seconds": 1}]))
    for name, request, result in (("small", (1000, 2), 1002), ("large", (loads.NESTED,), loads.NESTED)):
        latencies = []
        for _ in range(run.calls(2_000)):
            before = time.perf_counter_ns()
            decode(encode(request))
            decode(encode(result))
            latencies.append(time.perf_counter_ns() - before)
        made.append(row("floor", f"codec alone, {name}", [{"latencies": latencies, "calls": 0, "seconds": 1}]))
    return made


def small_and_large(run: Run) -> list[Row]:
    """One call after another."""
    with subjects_of(*_ALL) as subjects:
        for subject in subjects:
            subject.do("one_after_another", calls=run.calls(5_000))

        def small(subject: Subject) -> loads.Result:
            calls = 10_000 if subject.kind == "socket" else 50_000
            return subject.do("one_after_another", calls=run.calls(calls))

        def large(subject: Subject) -> loads.Result:
            return subject.do("large", calls=run.calls(1_000))

        return interleave(run, "small", subjects, small) + interleave(run, "large", subjects, large)


def sparse(run: Run) -> list[Row]:
    """A call every 2 ms."""
    with subjects_of(*_PROCESSES) as subjects:
        return interleave(run, "every 2 ms", subjects, lambda s: s.do("sparse", calls=run.calls(500), interval=0.002))


def in_flight(run: Run) -> list[Row]:
    """64 tasks call at once."""
    with subjects_of(*_PROCESSES) as subjects:
        return interleave(
            run, "64 in flight", subjects, lambda s: s.do("in_flight", calls=run.calls(100_000), tasks=64)
        )


def streams(run: Run) -> list[Row]:
    """A stream of small items, each sent as it is made."""
    with subjects_of(*_PROCESSES, ("socket", "asyncio", "asyncio")) as subjects:
        for subject in subjects:
            subject.do("stream", calls=run.calls(5_000))
        return interleave(run, "stream", subjects, lambda s: s.do("stream", calls=run.calls(200_000)))


def options(run: Run) -> list[Row]:
    """What a deadline adds to a call, and what many calls in a frame save."""
    forms = {
        "plain": "one_after_another",
        "under a deadline": "under_a_deadline",
        "under a deadline, said each time": "under_a_deadline_each",
        "map, 256 in a frame": "mapped",
        "one way": "one_way",
    }
    with contextlib.ExitStack() as stack:
        subject = Subject(stack, "shmrpc", "uvloop")
        results: dict[str, list[loads.Result]] = {name: [] for name in forms}
        for number in range(-1, run.rounds):  # The first warms up.
            for name, load in forms.items():
                run.progress(f"options: round {number + 1} of {run.rounds}, {name}")
                result = subject.do(load, calls=run.calls(400_000 if load == "mapped" else 50_000))
                if number >= 0:
                    results[name].append(result)
        return [row("options", name, rounds) for name, rounds in results.items()]


def ticker(run: Run) -> list[Row]:
    """How late a 1 ms ticker is while a task calls without pause."""
    with subjects_of(*_PROCESSES) as subjects:
        return interleave(run, "ticker", subjects, lambda s: s.do("beside_a_ticker", seconds=max(0.1, 2 * run.scale)))


def many_clients(run: Run) -> list[Row]:
    """Eight client processes call without pause."""
    seconds = max(0.2, 2 * run.scale)
    results: dict[Kind, list[loads.Result]] = {"shmrpc": [], "socket": []}
    shares: dict[Kind, list[float]] = {"shmrpc": [], "socket": []}
    for number in range(run.rounds):
        for kind in results:
            run.progress(f"8 clients: round {number + 1} of {run.rounds}, {kind}")
            result = _eight(kind, seconds)
            results[kind].append(result)
            shares[kind].append(result["least"])
    made = [row("8 clients", kind, rounds) for kind, rounds in results.items()]
    for each in made:
        each.extra["least_share"] = min(shares[each.subject])  # type: ignore[index]
    return made


def _eight(kind: Kind, seconds: float) -> loads.Result:
    with contextlib.ExitStack() as stack:
        place = stack.enter_context(tempfile.TemporaryDirectory())
        serving = stack.enter_context(server(kind, "uvloop", place))
        clients = [stack.enter_context(client(kind, "uvloop", place)) for _ in range(8)]
        before, start = serving.cpu(), time.monotonic() + 0.3
        for each in clients:
            each.order("for_a_while", seconds=seconds, start_at=start)
        results = [each.result() for each in clients]
        calls = [result["calls"] for result in results]
        cpu = sum(result["cpu"] for result in results) + serving.cpu() - before
        least = min(calls) / (sum(calls) / len(calls))
        return {"latencies": [], "calls": sum(calls), "seconds": seconds, "cpu": cpu, "least": least}


def idle(run: Run) -> list[Row]:
    """What a server and 100 connections cost that do nothing."""
    seconds = max(0.5, 10 * run.scale)
    with tempfile.TemporaryDirectory() as place, server("shmrpc", "uvloop", place) as serving:
        with client("shmrpc", "uvloop", place, 100) as calling:
            calling.do("one_after_another", calls=100)
            calling.order("idle", seconds=seconds + 0.5)
            time.sleep(0.25)
            run.progress(f"idle: 100 connections for {seconds:g} s")
            before = [(child.cpu(), child.switches()) for child in (serving, calling)]
            time.sleep(seconds)
            after = [(child.cpu(), child.switches()) for child in (serving, calling)]
            calling.result()
    made = []
    for subject, old, new in zip(("server", "client, 100 connections"), before, after, strict=True):
        extra = {"cpu_ms": (new[0] - old[0]) * 1e3, "wake_ups": float(new[1] - old[1]), "seconds": seconds}
        made.append(Row("idle", subject, extra=extra))
    return made


def beside_idle(run: Run) -> list[Row]:
    """What 100 idle connections cost a busy one."""
    with contextlib.ExitStack() as stack:
        alone, beside = (Subject(stack, "shmrpc", "uvloop") for _ in range(2))
        alone.name, beside.name = "alone", "beside 100 idle connections"
        stack.enter_context(client("shmrpc", "uvloop", beside.place, 100))
        for subject in (alone, beside):
            subject.do("one_after_another", calls=run.calls(5_000))
        return interleave(run, "busy", [alone, beside], lambda s: s.do("one_after_another", calls=run.calls(50_000)))


def memory(run: Run) -> list[Row]:
    """What one more idle connection takes: shared memory, and what both processes have of their own."""
    connections = 200 if run.scale >= 1 else 20
    run.progress(f"memory: {connections} connections")

    def used() -> tuple[int, int]:
        return _shared_memory(), serving.anonymous() + calling.anonymous()

    with tempfile.TemporaryDirectory() as place, server("shmrpc", "uvloop", place) as serving:
        with client("shmrpc", "uvloop", place, 5) as calling:
            before = used()
            calling.do("connect_more", connections=connections)
            shared, private = (new - old for old, new in zip(before, used(), strict=True))
    extra = {"shared_kib": shared / connections / 1024, "private_kib": private / connections / 1024}
    return [Row("memory", "one idle connection", extra=extra)]


def _shared_memory() -> int:
    lines = Path("/proc/meminfo").read_text().splitlines()
    return sum(int(line.split()[1]) << 10 for line in lines if line.startswith("Shmem:"))


QUESTIONS: Final[dict[str, Callable[[Run], list[Row]]]] = {
    "floors": floors,
    "small-and-large": small_and_large,
    "sparse": sparse,
    "in-flight": in_flight,
    "streams": streams,
    "options": options,
    "ticker": ticker,
    "many-clients": many_clients,
    "idle": idle,
    "beside-idle": beside_idle,
    "memory": memory,
    "arrays": large.arrays,
    "megabyte": large.megabyte,
    "frame": large.frame,
    "one-way": one_way.one_way,
    "sweep": sweep.sweep,
}
