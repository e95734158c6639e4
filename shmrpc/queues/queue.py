"""Queues: many processes put, many get, in one order for all."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Generator, Iterable
from types import TracebackType
from typing import TYPE_CHECKING, Any, TypeVar

from shmrpc import _core
from shmrpc.basics.checks import check_many, public_class
from shmrpc.basics.drivers import AsyncIterableOnly, NotForWith
from shmrpc.basics.loops import running_loop
from shmrpc.errors import QueueBusy, QueueShutDown
from shmrpc.objects.arguments import check_item_count, check_timeout
from shmrpc.objects.handle import AsyncClosing
from shmrpc.objects.reservation import AwaitedReserving
from shmrpc.objects.turn_queue import PAUSE, Turns
from shmrpc.objects.yield_budget import Pausing
from shmrpc.queues.claim import Claim
from shmrpc.queues.outstanding_claims import LONG_WAIT, Prefetched
from shmrpc.queues.queue_base import DONE, ITEMS, NOTHING, ROOM, QueueBase, lease_of, opened_queue
from shmrpc.wire.codec import CodecName

if TYPE_CHECKING:
    import numpy.typing

_T = TypeVar("_T")


@public_class("shmrpc.Queue")
class Queue(AsyncIterableOnly, AsyncClosing, Pausing, QueueBase):
    """A queue of all processes that open its name, in asyncio: see :func:`shmrpc.queue`.

    Its methods are those of ``asyncio.Queue``, with a ``timeout`` in seconds, and a few more. ``async for`` gets items
    until the queue is shut down and empty. ``async with`` closes it at the end.

    Where one waits: raises QueueEmpty or QueueFull if the timeout is over, QueueShutDown, WaitStopped after
    :meth:`stop_waits`, and LocalProtocolError if it is closed. A wait that is cancelled has put or got nothing.
    """

    @functools.cached_property
    def _slice(self) -> _core.Slice:
        return self._native.slice

    async def put(self, item: Any, timeout: float | None = None) -> None:
        """Puts an item, and waits for room. Raises ValueError at once if there can never be any."""
        if timeout is not None:
            timeout = check_timeout(timeout)
        waiting: _core.Items | bool | None
        try:
            waiting = self._native.put_next(item)
            if waiting is False:
                await self._pause()
                waiting = self._native.put_now(item)
        except QueueBusy:
            waiting = await self._again(functools.partial(self._native.put_now, item), timeout)
        if waiting is not None:
            await self._put(waiting, timeout)

    async def put_many(self, items: Iterable[Any], timeout: float | None = None) -> None:
        """Puts items that stay together, and waits for room for all of them."""
        check_many("put_many()", items)
        if timeout is not None:
            timeout = check_timeout(timeout)
        if not isinstance(items, list):
            items = list(items)  # It may be needed twice.
        if self._slice.is_over():
            await self._pause()
        try:
            waiting = self._native.put_many_now(items)
        except QueueBusy:
            waiting = await self._again(functools.partial(self._native.put_many_now, items), timeout)
        if waiting is not None:
            await self._put(waiting, timeout)

    async def get(self, timeout: float | None = None) -> Any:
        """Waits for an item, removes it and returns it."""
        if timeout is not None:
            timeout = check_timeout(timeout)
        try:
            item = self._native.get_next(NOTHING)
        except QueueBusy:
            item = NOTHING
        return (await self.get_many(1, timeout))[0] if item is NOTHING else item

    async def get_many(self, most: int = 256, timeout: float | None = None) -> list[Any]:
        """Waits for an item; removes it and those that follow, up to ``most`` in all, and returns them.

        Fewer if they are many bytes, about 256 KiB at once; a large one comes alone.
        """
        if timeout is not None:
            timeout = check_timeout(timeout)
        if self._slice.is_over():
            await self._pause()
        try:
            items = self._native.get_many_now(check_item_count(most), False)
        except QueueBusy:
            items = []
        return items or await self._get(most, timeout)

    def claim(self, timeout: float | None = None, *, lease_timeout: float | None = None) -> Claiming:
        """Waits for an item to deal with: ``async with q.claim() as c``, or ``c = await q.claim()``, then ``c.ack()``.

        With ``lease_timeout``, in seconds, the claim ends by itself after that, and the item is delivered to another.
        """
        return Claiming(self.name, self._claim(check_timeout(timeout), lease_of(lease_timeout), None))

    def claims(self, prefetch: int = 1, *, lease_timeout: float | None = None) -> AsyncIterator[Claim]:
        """Claims one item after the other, until the queue is shut down and empty; at most ``prefetch`` at a time.

        Each claim is to be ended, in any task or thread, or by its lease: only then the next one comes. What somebody
        has claimed may come back: until that is decided, the queue is not empty here.
        """
        return self._claims(check_item_count(prefetch), lease_of(lease_timeout))

    async def _claims(self, prefetch: int, lease: float) -> AsyncIterator[Claim]:
        loop, changed = running_loop(), asyncio.Event()

        def wake() -> None:
            with contextlib.suppress(RuntimeError):  # The loop is closed: nobody waits any more.
                loop.call_soon_threadsafe(changed.set)

        given = Prefetched(prefetch, lease, wake)
        self._wakes.add(wake)
        try:
            while True:
                while given.is_full():
                    self._check_waits()
                    looking = loop.call_later(LONG_WAIT, given.warn, self.name)
                    try:
                        with contextlib.suppress(TimeoutError):
                            await asyncio.wait_for(changed.wait(), given.next_over())
                    finally:
                        looking.cancel()
                    changed.clear()
                try:
                    claim = await self._claim(None, lease, given)
                except QueueShutDown:
                    return
                given.keep(claim)
                yield claim
                del claim
        finally:
            self._wakes.discard(wake)

    def reserve(
        self, shape: int | tuple[int, ...], dtype: numpy.typing.DTypeLike = "u1", timeout: float | None = None
    ) -> AwaitedReserving[_core.Reservation]:
        """Makes an array in the queue's memory, an item at the end of the block: ``async with q.reserve(...) as a``.

        What it holds at first may be anything. If the block raises, there is no item. Of a queue of raw bytes it is a
        memoryview of ``shape`` bytes.
        """
        return AwaitedReserving(self, shape, dtype, check_timeout(timeout))

    async def join(self, timeout: float | None = None) -> None:
        """Waits until all items that were put are dealt with. Raises WaitTimeout."""
        timeout = check_timeout(timeout)
        if not self._native.is_done():
            done = await self._turn(DONE, self._native.is_done, self._is_done, timeout)
            if done is None:
                self._timed_out(timeout, DONE)

    def _is_done(self) -> bool | None:
        return self._native.is_done() or None

    async def _again(self, act: Callable[[], _T], timeout: float | None) -> _T:
        """Does what a stopped process has kept us from, until the timeout is over."""
        end = None if timeout is None else time.monotonic() + timeout
        while True:
            await asyncio.sleep(PAUSE)
            try:
                return act()
            except QueueBusy:
                if end is not None and time.monotonic() >= end:
                    raise

    async def _put(self, waiting: _core.Items | _core.Reservation, timeout: float | None) -> None:
        put = await self._turn(ROOM, waiting.may_put, lambda: waiting.put_now() or None, timeout)
        if put is None:
            self._timed_out(timeout, ROOM)

    async def _add(self, value: Any, timeout: float | None) -> None:
        await self.put(value, timeout)

    async def _reserve(self, size: int, body: bytes | None, timeout: float | None) -> _core.Reservation:
        reservation = self._native.reserve_now(size, body)
        if reservation is None:
            reserve = functools.partial(self._native.reserve_now, size, body)
            reservation = await self._turn(ROOM, self._native.may_put, reserve, timeout)
        if reservation is None:
            self._timed_out(timeout, ROOM)
        return reservation

    async def _commit(self, reservation: _core.Reservation, timeout: float | None) -> None:
        if not reservation.put_now():
            await self._put(reservation, timeout)

    async def _get(self, most: int, timeout: float | None) -> list[Any]:
        items = await self._turn(ITEMS, self._may_take, lambda: self._native.get_many_now(most, False) or None, timeout)
        if items is None:
            self._timed_out(timeout, ITEMS)
        return items

    async def _claim(self, timeout: float | None, lease: float, given: Prefetched | None) -> Claim:
        if self._slice.is_over():
            await self._pause()
        claim = None
        with contextlib.suppress(QueueBusy):
            claim = self._native.claim_now(lease, False)
        if claim is None:
            claim = await self._turn(
                ITEMS, self._may_take, functools.partial(self._native.claim_now, lease, False), timeout
            )
        if claim is None:
            self._timed_out(timeout, ITEMS)
        return Claim.of(self.name, claim, given)

    async def _turn(
        self, place: int, may_take: Callable[[], bool], take: Callable[[], _T | None], timeout: float | None
    ) -> _T | None:
        """Waits in the loop until ``take()`` returns something; None if the timeout is over."""
        wake_other = functools.partial(self._native.wake, place == ROOM)
        glance = self._native.glance if place == ITEMS else may_take
        taken = await self._line(place, Turns).take(glance, may_take, take, wake_other, timeout)
        if place == ROOM and taken is not None:
            wake_other()  # We may have been woken alone for room that others need, too.
        return taken

    def _may_take(self) -> bool:
        """Whether there may be an item. If not, the loop looks again when the next claim ends by itself."""
        if self._native.may_take():
            return True
        expiry = self._native.next_expiry()
        if expiry is not None:
            self._line(ITEMS, Turns).look_in(expiry)
        return False

    def __aiter__(self) -> AsyncIterator[Any]:
        return self

    async def __anext__(self) -> Any:
        try:
            return await self.get()
        except QueueShutDown:
            raise StopAsyncIteration from None


class Claiming(NotForWith, Coroutine[Any, Any, Claim]):
    """A claim that is to be waited for: awaited, as any coroutine, or by ``async with``."""

    def __init__(self, name: str, claiming: Coroutine[Any, Any, Claim]) -> None:
        # For Python's warning that it was never awaited.
        claiming.__qualname__ = "Queue.claim"  # type: ignore[attr-defined]
        self._name = name
        self._claiming = claiming
        self._claim: Claim | None = None

    def _kind_and_factory(self) -> tuple[str, str]:
        return f"a claim of queue {self._name!r}", "queue"

    def __await__(self) -> Generator[Any, None, Claim]:
        return self._claiming.__await__()

    def send(self, value: Any) -> Any:
        """Go on, for a task of asyncio that runs the claim as its coroutine."""
        return self._claiming.send(value)

    def throw(self, *error: Any) -> Any:
        """Raise an error where the claim waits, for such a task."""
        return self._claiming.throw(*error)

    def close(self) -> None:
        """End the wait without a claim."""
        self._claiming.close()

    async def __aenter__(self) -> Claim:
        claim = self._claim = await self._claiming
        return claim

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None
    ) -> None:
        if self._claim is not None:
            self._claim.__exit__(kind, error, tb)


def queue(
    name: str,
    maxsize: int = 0,
    *,
    max_memory: int | str = "1GiB",
    max_deliveries: int = 0,
    raw: bool = False,
    codec: CodecName = "msgspec",
) -> Queue:
    """Opens a queue of all processes that open its name, for asyncio; made by the first of them, empty.

    ``maxsize``: how many items may wait; 0: any number. ``max_memory``: how many bytes they may have, such as
    ``"64MiB"``; the queue starts small and grows as it needs to. ``max_deliveries``: after this many deliveries
    that nobody has acknowledged an item is a dead letter; 0: never. ``raw``: its items are bytes, or whatever has the
    buffer protocol. All that open the name say the same of these. ``codec``: how this process writes and reads values,
    as for calls.

    Raises NameInUse if the name is open as something else or otherwise, SharedMemoryError if there is no room, and
    LocalProtocolError if the directory where names are met is not safe.
    """
    return Queue._of(opened_queue(name, maxsize, max_memory, max_deliveries, raw), codec)
