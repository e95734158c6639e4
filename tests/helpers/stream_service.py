"""A service of streams and of handlers that count how they begin and end."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import pathlib
import threading
import time
from collections import Counter
from collections.abc import AsyncIterator, Iterator

import shmrpc

_seen: Counter[str] = Counter()
_produced = 0
#: A barrier for three handlers in threads.
_meeting = threading.Barrier(3)


@contextlib.asynccontextmanager
async def lifespan(service: shmrpc.Service) -> AsyncIterator[dict[str, str]]:
    yield {"of": service.name}


service = shmrpc.Service("tested.flows", lifespan=lifespan)


@contextlib.contextmanager
def _watched(name: str) -> Iterator[None]:
    """Count how a handler ends: ``name:finished``, ``name:cancelled`` and the like."""
    _seen[f"{name}:began"] += 1
    try:
        yield
    except asyncio.CancelledError:
        _seen[f"{name}:cancelled"] += 1
        _seen[f"{name}:left"] += 1
        raise
    except GeneratorExit:
        _seen[f"{name}:closed"] += 1
        # Counts as cancelled: which of the two happens depends on where the handler is at that moment.
        _seen[f"{name}:left"] += 1
        raise
    except BaseException as error:
        _seen[f"{name}:{type(error).__name__}"] += 1
        raise
    else:
        _seen[f"{name}:finished"] += 1


@service.endpoint
def seen() -> dict[str, int]:
    """Return the counters."""
    return dict(_seen)


@service.endpoint
def produced() -> int:
    """Return the number of items that ``flood`` and ``blobs`` have made."""
    return _produced


@service.endpoint
def add(a: int, b: int) -> int:
    return a + b


@service.endpoint
async def count(n: int) -> AsyncIterator[int]:
    with _watched("count"):
        for i in range(n):
            yield i


@service.endpoint
def count_plainly(n: int) -> Iterator[int]:
    with _watched("count_plainly"):
        yield from range(n)


@service.endpoint(run_in="thread")
def count_in_thread(n: int) -> Iterator[str]:
    with _watched("count_in_thread"):
        for i in range(n):
            yield f"{i} {threading.current_thread().name}"


@service.endpoint
async def ticks(interval: float) -> AsyncIterator[float]:
    with _watched("ticks"):
        while True:
            yield time.monotonic()
            await asyncio.sleep(interval)


@service.endpoint
async def flood() -> AsyncIterator[int]:
    """Yield items as long and as fast as the caller takes them."""
    global _produced
    with _watched("flood"):
        for i in itertools.count():
            _produced += 1
            yield i


@service.endpoint
async def blobs(n: int, size: int) -> AsyncIterator[bytes]:
    global _produced
    for i in range(n):
        _produced += 1
        yield bytes([i % 256]) * size


@service.endpoint
async def fail_after(n: int) -> AsyncIterator[int]:
    with _watched("fail_after"):
        for i in range(n):
            yield i
        raise ValueError(f"after {n}")


@service.endpoint
async def odd_items() -> AsyncIterator[object]:
    yield 1
    yield object()


@service.endpoint
async def total(numbers: AsyncIterator[int], *, scale: int = 1) -> int:
    with _watched("total"):
        result = 0
        async for number in numbers:
            result += number
        return result * scale


@service.endpoint
async def first(n: int, items: AsyncIterator[int]) -> list[int]:
    """Take some items, stop reading, and answer a little later."""
    with _watched("first"):
        taken = []
        async for item in items:
            taken.append(item)
            if len(taken) == n:
                await items.aclose()  # type: ignore[attr-defined]
        await asyncio.sleep(0.05)
        return taken


@service.endpoint
async def refuse(items: AsyncIterator[int]) -> int:
    async for item in items:
        if item == 3:
            raise ValueError("three")
    return 0


@service.endpoint
async def tolerate(items: AsyncIterator[int]) -> str:
    taken = 0
    try:
        async for _ in items:
            taken += 1
    except Exception as error:
        return f"{taken} {type(error).__name__}"
    return f"{taken} all"


@service.endpoint
async def tolerate_slowly(n: int, items: AsyncIterator[bytes]) -> int:
    """Take some items, a moment apart, and stop reading."""
    taken = 0
    async for _ in items:
        await asyncio.sleep(0.01)
        taken += 1
        if taken == n:
            await items.aclose()  # type: ignore[attr-defined]
    return taken


@service.endpoint
async def idle(items: AsyncIterator[bytes]) -> None:
    """Read no item."""
    with _watched("idle"):
        await asyncio.sleep(60)


@service.endpoint
async def doubled(numbers: AsyncIterator[int]) -> AsyncIterator[int]:
    with _watched("doubled"):
        async for number in numbers:
            yield 2 * number


@service.endpoint
async def zipped(left: AsyncIterator[int], right: AsyncIterator[str]) -> AsyncIterator[tuple[int, str]]:
    async for number in left:
        async for text in right:
            yield number, text
            break


@service.endpoint
async def sleep(seconds: float, tag: str = "sleep") -> str:
    with _watched(tag):
        await asyncio.sleep(seconds)
        return tag


@service.endpoint
async def stubborn(seconds: float) -> str:
    """Ignore cancellation."""
    with _watched("stubborn"):
        end = asyncio.get_running_loop().time() + seconds
        while (left := end - asyncio.get_running_loop().time()) > 0:
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.sleep(left)
        return "done"


@service.endpoint
def release() -> None:
    """Release the handlers that wait."""
    _seen["released"] += 1


@service.endpoint
async def stubborn_until_released() -> None:
    """Ignore cancellation."""
    with _watched("stubborn"):
        while not _seen["released"]:
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.sleep(0.005)


@service.endpoint(run_in="thread")
def in_thread_until_released() -> None:
    with _watched("in_thread"):
        end = time.monotonic() + 60  # A failed test should not keep its server alive.
        while not _seen["released"] and time.monotonic() < end:
            time.sleep(0.005)


@service.endpoint(run_in="thread")
def meet_in_thread() -> str:
    """Return the thread's name once three threads have arrived."""
    _meeting.wait(60)
    return threading.current_thread().name


@service.endpoint
async def remaining() -> float | None:
    return shmrpc.current_call().remaining()


@service.endpoint
def remaining_plainly() -> float | None:
    return shmrpc.current_call().remaining()


@service.endpoint
async def who() -> tuple[int, int, str, str]:
    call = shmrpc.current_call()
    await asyncio.sleep(0)
    assert call is shmrpc.current_call()
    return call.pid, call.uid, call.endpoint, call.state["of"]


@service.endpoint
def who_plainly() -> tuple[int, int, str, str]:
    call = shmrpc.current_call()
    assert call is shmrpc.current_call()
    return call.pid, call.uid, call.endpoint, call.state["of"]


@service.endpoint
async def metadata() -> dict[str, str]:
    call = shmrpc.current_call()
    call.reply_metadata["pid"] = str(os.getpid())
    call.reply_metadata["raw"] = b"\x00\xff"
    return {key: repr(value) for key, value in call.metadata.items()}


@service.endpoint
async def metadata_and_items(n: int, *, fails: bool = False) -> AsyncIterator[int]:
    """Set metadata before the first item, before the last, and after the last."""
    told = shmrpc.current_call().reply_metadata
    told |= {"first": "1", "changes": "early"}
    for i in range(n):
        if i == n - 1:
            told["last"] = b"2"
        yield i
    told["changes"] = "late"
    if fails:
        raise ValueError("at the end")


@service.endpoint
async def metadata_and_total(numbers: AsyncIterator[int]) -> int:
    """Return the sum times a factor in the metadata; set the number of items as reply metadata."""
    call = shmrpc.current_call()
    taken = [number async for number in numbers]
    call.reply_metadata["items"] = str(len(taken))
    return sum(taken) * int(call.metadata["scale"])


@service.endpoint
async def metadata_and_failure() -> None:
    shmrpc.current_call().reply_metadata["why"] = "because"
    raise KeyError("no")


@service.endpoint(run_in="thread")
def in_thread(seconds: float) -> tuple[str, int]:
    time.sleep(seconds)
    return threading.current_thread().name, shmrpc.current_call().pid


@service.endpoint(run_in="process")
def in_process(a: int, b: int) -> tuple[int, int]:
    return os.getpid(), a + b


@service.endpoint(run_in="process")
def die_in_process() -> None:
    os._exit(3)


@service.endpoint(run_in="process")
def hold_in_process(seconds: float) -> None:
    time.sleep(seconds)


@service.endpoint
def hold(seconds: float) -> None:
    time.sleep(seconds)


@service.endpoint
def hold_while(path: str) -> None:
    """Block the loop while a file exists; create another file beside it to report that."""
    pathlib.Path(f"{path}.held").touch()
    while os.path.exists(path):
        time.sleep(0.002)


@service.endpoint
async def hold_later(seconds: float) -> None:
    await asyncio.sleep(0.001)
    time.sleep(seconds)
