"""The targets of large data."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from typing import Final

from benchmark.questions import arrays, bulk, frame, payload_bytes
from benchmark.verdict import RowIndex, Target

_SOCKET: Final = "socket, large frames, uvloop"
_SMALL_SOCKET: Final = "socket, msgpack, uvloop"
_RIVAL: Final = "InterProcessPyObjects"
_OURS: Final = ("shmrpc, uvloop", "shmrpc, asyncio")


def targets() -> Iterator[Target]:
    """Yield those for arrays, a megabyte of bytes, messages one way, and a frame."""
    yield Target("array built in place, 64 MB against 64 KB, p50", "≤ 1.5 × the time", _arrays)
    for ours in _OURS:
        judge = functools.partial(_megabyte, ours=ours)
        yield Target(f"1 MB of bytes, there and back, p50, {ours}", "≥ 5 × the socket's throughput", judge)
    yield Target("messages of 400 KB, one way", f"≥ 2 × {_RIVAL}", _rival)
    yield Target("messages of 400 KB, one way", "≥ 80 % of memcpy", _memcpy)
    yield Target("a frame in and its mean back", "< 20 µs more than the mean", _frame)


def _arrays(found: RowIndex) -> tuple[str, bool]:
    little, large = (found.value(arrays.NAME, "", size) for size in ("64 KB", "64 MB"))
    return f"{large:.1f} µs against {little:.1f}, {large / little:.2f} ×", large <= 1.5 * little


def _megabyte(found: RowIndex, ours: str) -> tuple[str, bool]:
    own, peer, other = (found.value(payload_bytes.NAME, "1,000,000", name) for name in (ours, _SOCKET, _SMALL_SOCKET))
    text = f"{own:,.0f} µs against {peer:,.0f}, {peer / own:.1f} × ({other / own:.0f} × the socket of the small calls)"
    return text, peer >= 5 * own


def _rival(found: RowIndex) -> tuple[str, bool]:
    own, rival = (found.value(bulk.NAME, bulk.COPIED, name) for name in (_OURS[0], _RIVAL))
    return f"{own:.1f} GB/s, {own / rival:.1f} ×", own >= 2 * rival


def _memcpy(found: RowIndex) -> tuple[str, bool]:
    own, floor = (found.value(bulk.NAME, bulk.COPIED, name) for name in (_OURS[0], bulk.FLOOR))
    in_use = found.extra(bulk.NAME, bulk.COPIED, bulk.FLOOR, "MB in use")
    return f"{own:.1f} GB/s, {own / floor:.0%} (into {in_use:.0f} MB in turn)", own >= 0.8 * floor


def _frame(found: RowIndex) -> tuple[str, bool]:
    more, spinning = (found.extra(frame.NAME, "", name, frame.ADDED) for name in (frame.CALLED, frame.SPINNING))
    alone = found.value(frame.NAME, "", frame.ALONE)
    return f"{more:+.0f} µs to {alone:,.0f} ({spinning:+.0f} if the client spins)", more < 20
