"""The parts of a small call, each by itself: loads that reach into our own client."""

from __future__ import annotations

import time
from typing import Any

from benchmark.durations import Durations
from benchmark.processes import Caller
from benchmark.results import Result
from shmrpc.wire import frames
from shmrpc.wire.codec import Body, get_codec

_now = time.perf_counter_ns


def request() -> tuple[int, Body]:
    """Opcode, without the endpoint's number, and body of the small call's frame."""
    return frames.CALL, get_codec("msgspec").encode_all((1000, 2))


async def frames_alone(caller: Caller, *, seconds: float) -> Result:
    """Return the frames of the small call, which the client neither makes nor reads: everything but its own Python."""
    session = caller.client.client._reconnector.session
    kind, body = request()
    opcode, exchange, next_id = frames.opcode(kind, session.numbers["add"]), session.exchange, session.next_id
    times: list[int] = []
    answer: Any = b""
    start = before = _now()
    end = start + int(seconds * 1e9)
    while before < end or not times:
        number = next_id()
        answer = exchange(opcode, number, body)
        if type(answer) is not bytes:
            answer = await session.wait_reply(number, answer)
        after = _now()
        times.append(after - before)
        before = after
    assert get_codec("msgspec").decoder(int)(answer) == 1002
    return Result(len(times), (before - start) / 1e9, Durations.of(times))


async def clock(_caller: Caller, *, seconds: float) -> Result:
    """Return two looks at the clock and nothing between: it is part of every figure here."""
    times: list[int] = []
    start = before = _now()
    end = start + int(seconds * 1e9)
    while before < end or not times:
        after = _now()
        times.append(after - before)
        before = after
    return Result(len(times), (before - start) / 1e9, Durations.of(times))
