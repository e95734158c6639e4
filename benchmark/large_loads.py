"""The loads of large data: what a client does while it is measured. Each takes the client, as those in loads.py."""

from __future__ import annotations

import itertools
import mmap
import time
from typing import Any, Final, Literal

import msgspec

from benchmark.loads import Result

#: A picture of a camera: height, width, colours.
FRAME: Final = (1080, 1920, 3)
#: Blocks of shared memory begin where a page does.
_PAGE: Final = mmap.PAGESIZE

_now = time.perf_counter_ns


async def array_trip(client: Any, *, size: int, calls: int) -> Result:
    """An array of ``size`` bytes, built in place once, there and back again and again; nobody reads it."""
    echo, latencies = client.echo, [0] * calls
    array = client.empty(size, "uint8")
    array[:] = 1
    back = await echo(array)
    start = _now()
    for i in range(calls):
        before = _now()
        back = await echo(array)
        latencies[i] = _now() - before
    seconds = (_now() - start) / 1e9
    array[-1] = 2
    assert back.shape == array.shape
    assert back[-1] == 2, "what came back is a copy"
    return {"latencies": latencies, "calls": calls, "seconds": seconds}


async def bytes_trip(client: Any, *, size: int, calls: int) -> Result:
    """``bytes`` there and back."""
    echo, latencies, data = client.echo, [0] * calls, b"\1" * size
    back = await echo(data)
    start = _now()
    for i in range(calls):
        before = _now()
        back = await echo(data)
        latencies[i] = _now() - before
    seconds = (_now() - start) / 1e9
    assert back == data
    return {"latencies": latencies, "calls": calls, "seconds": seconds}


async def sweep(client: Any, *, of: Literal["ints", "bytes"], length: int, seconds: float) -> Result:
    """A list of so many ints, or so many bytes, there and back for a while, three times at least."""
    value: list[int] | bytes = list(range(length)) if of == "ints" else b"\1" * length
    latencies: list[int] = []
    echo = client.echo
    back = await echo(value)
    start = _now()
    end = start + int(seconds * 1e9)
    while len(latencies) < 3 or _now() < end:
        before = _now()
        back = await echo(value)
        latencies.append(_now() - before)
    elapsed = (_now() - start) / 1e9
    assert back == value
    size = len(msgspec.msgpack.encode(value))
    return {"latencies": latencies, "calls": len(latencies), "seconds": elapsed, "size": size}


async def frame_mean(client: Any, *, calls: int) -> Result:
    """A frame in and its mean back; after each call the server takes the mean of the same frame by itself."""
    frame = client.empty(FRAME, "uint8")
    frame[:] = 3
    await client.keep(frame)
    mean, time_mean = client.mean, client.time_mean
    latencies, alone = [0] * calls, [0] * calls
    for i in range(calls):
        before = _now()
        result = await mean(frame)
        latencies[i] = _now() - before
        alone[i] = await time_mean()
        assert result == 3
    await client.forget()
    return {"latencies": latencies, "alone": alone, "calls": 0, "seconds": 0.0}


async def one_way_messages(client: Any, *, endpoint: str, size: int, messages: int) -> Result:
    """``bytes`` to an endpoint that nobody answers; at the end a call that returns what the endpoint has seen.

    ``peak`` is the most shared memory that messages lay in at once. To ask for it costs 0.1 µs a message.
    """
    notify, data, peak = client.notify, b"\1" * size, 0
    # What an arena has in use is nobody's business but a benchmark's.
    memory = client._link.session.connection._channel.memory
    start = _now()
    for _ in range(messages):
        await notify(endpoint, data)
        peak = max(peak, memory()[1])
    seen = await client.taken()
    seconds = (_now() - start) / 1e9
    assert seen == [messages, messages]
    return {"latencies": [], "calls": messages, "seconds": seconds, "peak": peak}


async def copies(_client: Any, *, size: int, messages: int, footprint: int) -> Result:
    """The floor: so many copies of one ``bytes`` within this process, by memcpy.

    As in :func:`one_way_messages` there is one source. The destinations take turns; there are as many as go into
    ``footprint`` bytes, each begins on a page of its own, and they lie in shared memory that has been touched, since
    that has small pages, as the arena's has.
    """
    data, step = b"\1" * size, -(-size // _PAGE) * _PAGE
    places = max(1, footprint // step)
    with mmap.mmap(-1, places * step) as memory, memoryview(memory) as view:
        for at in range(0, places * step, step):
            view[at : at + size] = data
        turns = itertools.cycle([slice(at, at + size) for at in range(0, places * step, step)])
        start = _now()
        for place in itertools.islice(turns, messages):
            view[place] = data
        seconds = (_now() - start) / 1e9
    return {"latencies": [], "calls": messages, "seconds": seconds}
