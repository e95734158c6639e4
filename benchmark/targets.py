"""What we mean to reach, held against what a run found."""

from __future__ import annotations

from collections.abc import Sequence

from benchmark import large_targets
from benchmark.rows import Row
from benchmark.verdict import Found, Verdict


def verdicts(rows: Sequence[Row]) -> list[Verdict]:
    """The verdict on each target whose rows are there."""
    found = Found(rows)
    made = []
    for judge in (
        _small,
        _sparse,
        _in_flight,
        _many,
        _thread,
        _sync,
        _large,
        _idle,
        _beside,
        _ticker,
        _memory,
        _streams,
        _options,
        *large_targets.JUDGES,
    ):
        try:
            made += judge(found)
        except KeyError:  # That question was not asked.
            continue
    return made


_SOCKET = "UNIX socket, uvloop"
_LOOPS = ("process, uvloop", "process, asyncio")


def _small(found: Found) -> list[Verdict]:
    peer, floor = found.p50("small", _SOCKET), found.p50("floor", "ping-pong of a word")
    made = []
    for subject in _LOOPS:
        ours = found.p50("small", subject)
        text = f"{ours:.2f} µs, {peer / ours:.0f} times (floor {floor:.2f} µs)"
        made.append(Verdict(f"small call, p50, {subject}", "30 × the socket, ≤ 2.0 µs", text, peer >= 30 * ours <= 60))
    return made


def _sparse(found: Found) -> list[Verdict]:
    peer = found.p50("every 2 ms", _SOCKET)
    return [
        Verdict(
            f"a call every 2 ms, p50, {subject}",
            "≤ 1.2 × the socket",
            f"{(ours := found.p50('every 2 ms', subject)):.1f} µs against {peer:.1f}, {ours / peer:.2f} ×",
            ours <= 1.2 * peer,
        )
        for subject in _LOOPS
    ]


def _in_flight(found: Found) -> list[Verdict]:
    peer = found.rate("64 in flight", _SOCKET)
    return [
        Verdict(
            f"64 tasks in flight, {subject}",
            "≥ 2 × the socket",
            f"{(ours := found.rate('64 in flight', subject)):,.0f}/s, {ours / peer:.1f} ×",
            ours >= 2 * peer,
        )
        for subject in _LOOPS
    ]


def _many(found: Found) -> list[Verdict]:
    ours, peer = found.rate("8 clients", "shmrpc"), found.rate("8 clients", "socket")
    least = found.extra("8 clients", "shmrpc", "least_share")
    text = f"{ours:,.0f}/s, {ours / peer:.1f} ×; the least served has {least:.0%} of a fair share"
    return [Verdict("8 client processes", "≥ 1.5 × the socket, none starves", text, ours >= 1.5 * peer and least > 0.1)]


def _thread(found: Found) -> list[Verdict]:
    return [
        Verdict(
            f"thread to thread, p50, {loop}",
            "≤ 3 × process to process",
            f"{(ours := found.p50('small', f'thread to thread, {loop}')):.2f} µs, "
            f"{ours / (process := found.p50('small', f'process, {loop}')):.2f} ×",
            ours <= 3 * process,
        )
        for loop in ("uvloop", "asyncio")
    ]


def _sync(found: Found) -> list[Verdict]:
    ours, other = found.p50("small", "process, sync"), found.p50("small", "process, uvloop")
    text = f"{ours:.2f} µs against {other:.2f}"
    return [Verdict("sync client, p50", "no slower than async", text, ours <= other * 1.02)]


def _large(found: Found) -> list[Verdict]:
    codec = found.p50("floor", "codec alone, large")
    return [
        Verdict(
            f"large call, p50, {subject}",
            "≥ 85 % is the codec's",
            f"{(ours := found.p50('large', subject)):.0f} µs, the codec's {codec:.0f}: {codec / ours:.0%}",
            codec >= 0.85 * ours,
        )
        for subject in (*_LOOPS, "process, sync")
    ]


def _idle(found: Found) -> list[Verdict]:
    made = []
    for subject in ("server", "client, 100 connections"):
        cpu, wakes = (found.extra("idle", subject, name) for name in ("cpu_ms", "wake_ups"))
        seconds = found.extra("idle", subject, "seconds")
        text = f"{cpu:.2f} ms, {wakes:.0f} wake-ups in {seconds:g} s"
        made.append(Verdict(f"idle, {subject}", "< 10 ms in 10 s, no periodic wake-ups", text, cpu < 10 and wakes < 5))
    return made


def _beside(found: Found) -> list[Verdict]:
    alone, beside = found.rate("busy", "alone"), found.rate("busy", "beside 100 idle connections")
    text = f"{beside:,.0f}/s against {alone:,.0f} alone: {1 - beside / alone:+.1%} lost"
    return [Verdict("a busy connection beside 100 idle ones", "loses ≤ 10 %", text, beside >= 0.9 * alone)]


def _ticker(found: Found) -> list[Verdict]:
    return [
        Verdict(
            f"1 ms ticker beside a calling task, {subject}",
            "p99 lateness < 2 ms",
            f"{(late := found.p99('ticker', subject)) / 1e3:.2f} ms",
            late < 2000,
        )
        for subject in _LOOPS
    ]


def _streams(found: Found) -> list[Verdict]:
    # A write on asyncio's transport is a send; uvloop's gathers those of one turn of the loop.
    peer, gathering = found.rate("stream", "UNIX socket, asyncio"), found.rate("stream", _SOCKET)
    return [
        Verdict(
            f"items of a stream, {subject}",
            "≥ 5 × the socket, sent one by one",
            f"{(ours := found.rate('stream', subject)):,.0f}/s, {ours / peer:.1f} × "
            f"({ours / gathering:.1f} × uvloop's socket, which gathers)",
            ours >= 5 * peer,
        )
        for subject in _LOOPS
    ]


def _options(found: Found) -> list[Verdict]:
    plain, mapped = found.p50("options", "plain"), found.rate("options", "map, 256 in a frame")
    made = []
    for form in ("under a deadline", "under a deadline, said each time"):
        more = found.p50("options", form) - plain
        made.append(Verdict(f"a call {form}", "≤ 0.3 µs more", f"{more:+.2f} µs", more <= 0.3))
    made.append(Verdict("map() of the small call", "≥ 1,000,000/s", f"{mapped:,.0f}/s", mapped >= 1_000_000))
    return made


def _memory(found: Found) -> list[Verdict]:
    shared, private = (found.extra("memory", "one idle connection", name) for name in ("shared_kib", "private_kib"))
    text = f"{shared:.0f} KiB shared + {private:.0f} KiB private"
    return [Verdict("memory for one more idle connection", "< 256 KiB", text, shared + private < 256)]
