"""The targets between hosts."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from typing import Final

from benchmark.questions import hosts
from benchmark.subjects import HOSTS, NEAR_ALONE, NEAR_EITHER
from benchmark.verdict import RowIndex, Target

_GRPC: Final = "grpc.aio, TCP"


def targets() -> Iterator[Target]:
    """Yield those against NATS alone on the same loop, against gRPC, and of a server that is near."""
    for subject in HOSTS:
        ours, bare = subject.name, f"nats-py, {subject.loop}"
        small = functools.partial(_time, hosts.SMALL, ours)
        rate = functools.partial(_rate, ours)
        yield Target(f"a small call, p50, {ours}", "≤ 1.3 × nats-py", functools.partial(small, bare, 1.3))
        yield Target(f"a small call, p50, {ours}", "no slower than grpc.aio", functools.partial(small, _GRPC, 1.0))
        yield Target(f"64 in flight, {ours}", "≥ 1.5 × nats-py", functools.partial(rate, bare, 1.5))
        yield Target(f"64 in flight, {ours}", "≥ 2 × grpc.aio", functools.partial(rate, _GRPC, 2.0))
        array = functools.partial(_time, hosts.ARRAY, ours, _GRPC, 1.0)
        yield Target(f"1 MB of float64 there and back, p50, {ours}", "no slower than grpc.aio", array)
    near = functools.partial(_time, hosts.NEAR, NEAR_EITHER.name, NEAR_ALONE.name, 1.03)
    yield Target("a small call to a server that is near", "as shared memory alone, within 3 %", near)


def _time(case: str, ours: str, rival: str, most: float, found: RowIndex) -> tuple[str, bool]:
    own, other = (found.value(hosts.NAME, case, name) for name in (ours, rival))
    return f"{own:,.2f} µs against {other:,.2f}, {own / other:.2f} ×", own <= most * other


def _rate(ours: str, rival: str, least: float, found: RowIndex) -> tuple[str, bool]:
    own, other = (found.value(hosts.NAME, hosts.IN_FLIGHT, name) for name in (ours, rival))
    return f"{own:,.0f}/s against {other:,.0f}, {own / other:.2f} ×", own >= least * other
