"""What we mean to reach with large data."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from benchmark import large, one_way
from benchmark.verdict import Found, Verdict


def _arrays(found: Found) -> list[Verdict]:
    small, big = found.p50(large.ARRAYS, "64 KB"), found.p50(large.ARRAYS, "64 MB")
    text = f"{big:.1f} µs against {small:.1f}, {big / small:.2f} ×"
    what = "array built in place, 64 MB against 64 KB, p50"
    return [Verdict(what, "≤ 1.5 × the time", text, big <= 1.5 * small)]


def _megabyte(found: Found) -> list[Verdict]:
    peer, small_peer = (found.p50(large.MEGABYTE, name) for name in ("UNIX socket, uvloop", large.SMALL_PEER))
    return [
        Verdict(
            f"1 MB of bytes, there and back, p50, {subject}",
            "≥ 5 × the socket's throughput",
            f"{(ours := found.p50(large.MEGABYTE, subject)):,.0f} µs against {peer:,.0f}, {peer / ours:.1f} × "
            f"({small_peer / ours:.0f} × the socket of the small calls)",
            peer >= 5 * ours,
        )
        for subject in ("process, uvloop", "process, asyncio")
    ]


def _one_way(found: Found) -> list[Verdict]:
    what = "1000 messages of 400 KB, one way"
    ours, floor = found.rate(one_way.QUESTION, one_way.BYTES), found.rate(one_way.QUESTION, one_way.FLOOR)
    gigabytes, places = (found.extra(one_way.QUESTION, one_way.BYTES, name) for name in ("GB/s", "MB in use"))
    text = f"{gigabytes:.1f} GB/s, {ours / floor:.0%} (into {places:.0f} MB in turn)"
    return [_rival(found, what, ours, gigabytes), Verdict(what, "≥ 80 % of memcpy", text, ours >= 0.8 * floor)]


def _rival(found: Found, what: str, ours: float, gigabytes: float) -> Verdict:
    target, note = f"≥ 2 × {one_way.RIVAL}", found.note(one_way.QUESTION, one_way.RIVAL)
    if note:
        return Verdict(what, target, note, None)
    rival = found.rate(one_way.QUESTION, one_way.RIVAL)
    return Verdict(what, target, f"{gigabytes:.1f} GB/s, {ours / rival:.1f} ×", ours >= 2 * rival)


def _frame(found: Found) -> list[Verdict]:
    more, spinning = (found.extra(large.FRAME, name, "µs more than alone") for name in (large.CALLED, large.SPINNING))
    text = f"{more:+.0f} µs to {found.p50(large.FRAME, large.ALONE):,.0f} ({spinning:+.0f} if the client spins)"
    return [Verdict("a frame in and its mean back", "< 20 µs more than the mean", text, more < 20)]


JUDGES: Final[tuple[Callable[[Found], list[Verdict]], ...]] = (_arrays, _megabyte, _one_way, _frame)
