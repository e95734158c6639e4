"""A form of the benchmark in which it tells nothing but that it works."""

from __future__ import annotations

from benchmark.run import Form

TINY = Form(
    "tiny",
    rounds=1,
    seconds=0.01,
    warm_up=0.0,
    in_flight=(1, 64),
    clients=(1, 8),
    sizes=(1, 1_000_000),
    rates=(200,),
    messages=5,
    idle=0.1,
    connections=3,
    most_ints=1,
    broadcast=1 << 20,
    all_starts=False,
)
