"""Queues for event loops."""

from __future__ import annotations

import asyncio
import contextlib
import functools
from collections.abc import AsyncIterator, Callable, Coroutine, Generator, Iterable
from types import TracebackType
from typing import TYPE_CHECKING, Any, TypeVar

from shmrpc import _core
from shmrpc.basics.checks import check_many, public_class
from shmrpc.basics.drivers import AsyncIterableOnly, NotForWith
from shmrpc.basics.loops import running_loop
from shmrpc.basics.timeouts import end_of_wait, seconds_left
from shmrpc.errors import QueueBusy, QueueShutDown
from shmrpc.objects.arguments import check_item_count, check_timeout
from shmrpc.objects.handle import AsyncContextHandle
from shmrpc.objects.reservation import AsyncReservation
from shmrpc.objects.turn_queue import BUSY_RETRY_INTERVAL, TurnQueue
from shmrpc.objects.wait_queue import wait_stopped_error
from shmrpc.objects.yield_budget import LoopYielder
from shmrpc.queues.claim import Claim
from shmrpc.queues.outstanding_claims import WARN_AFTER, OutstandingClaims
from shmrpc.queues.queue_base import DONE, ITEMS, NO_ITEM, ROOM, QueueBase, check_lease_timeout, open_queue
from shmrpc.wire.codec import CodecName

if TYPE_CHECKING:
    import numpy.typing

_T = TypeVar("_T")


@public_class("shmrpc.Queue")
class Queue(AsyncIterableOnly, AsyncContextHandle, LoopYielder, QueueBase):
    """A queue, which all processes that open its name share, in asyncio: see :func:`shmrpc.queue`.

    Its methods are those of ``asyncio.Queue``, with a ``timeout`` in seconds, and a few more. ``async for`` gets items
    until the queue is shut down and empty. ``async with`` closes the handle at the end.

    A wait raises QueueEmpty or QueueFull if the timeout is over (None: no limit; 0: one attempt), or QueueBusy if a
    stopped process blocks the queue then; QueueShutDown, WaitStopped after :meth:`stop`, SharedMemoryError if too many
    loops and threads wait, and LocalProtocolError if the handle is closed. An item that cannot be sent raises
    EncodeError, and one that cannot be read DecodeError: get() has lost it then. A cancelled wait has put or got
    nothing. An invalid argument raises TypeError or ValueError. Methods that do not wait raise QueueBusy and
    LocalProtocolError in the same cases.
    """

    @functools.cached_property
    def _budget(self) -> _core.YieldBudget:
        return self._native.yield_budget

    async def put(self, item: Any, timeout: float | None = None) -> None:
        """Put an item; wait while there is no room. Raises ValueError at once for an item that is too large."""
        if timeout is not None:
            timeout = check_timeout(timeout)
        pending: _core.PendingItems | bool | None
        try:
            pending = self._native.put_next(item)
            if pending is False:
                await self._yield_to_loop()
                pending = self._native.put_now(item)
        except QueueBusy:
            pending = await self._retry_while_busy(functools.partial(self._native.put_now, item), timeout)
        if pending is not None:
            await self._put_when_room(pending, timeout)

    async def put_many(self, items: Iterable[Any], timeout: float | None = None) -> None:
        """Put items that stay together, all or none; wait until there is room for all of them.

        Raises ValueError at once for items for which there can never be room, and TypeError for a str or bytes.
        """
        check_many("put_many()", items)
        if timeout is not None:
            timeout = check_timeout(timeout)
        if not isinstance(items, list):
            items = list(items)  # A second attempt needs them again.
        if self._budget.is_spent():
            await self._yield_to_loop()
        try:
            pending = self._native.put_many_now(items)
        except QueueBusy:
            pending = await self._retry_while_busy(functools.partial(self._native.put_many_now, items), timeout)
        if pending is not None:
            await self._put_when_room(pending, timeout)

    async def get(self, timeout: float | None = None) -> Any:
        """Wait for an item, remove it and return it.

        It counts as unfinished for :meth:`join` until :meth:`task_done`.
        """
        if timeout is not None:
            timeout = check_timeout(timeout)
        try:
            item = self._native.get_next(NO_ITEM)
        except QueueBusy:
            item = NO_ITEM
        return (await self.get_many(1, timeout))[0] if item is NO_ITEM else item

    async def get_many(self, max_items: int = 256, timeout: float | None = None) -> list[Any]:
        """Wait for an item; remove it and those that follow, up to ``max_items`` in all, and return them.

        Does not wait for more than one. Returns fewer if they have many bytes: about 256 KiB at once. A large item
        comes alone.
        """
        if timeout is not None:
            timeout = check_timeout(timeout)
        if self._budget.is_spent():
            await self._yield_to_loop()
        try:
            items = self._native.get_many_now(check_item_count(max_items), False)
        except QueueBusy:
            items = []
        return items or await self._get_in_turn(max_items, timeout)

    def claim(self, timeout: float | None = None, *, lease_timeout: float | None = None) -> PendingClaim:
        """Wait for an item and claim it: ``async with q.claim() as c``, or ``c = await q.claim()``, then ``c.ack()``.

        ``lease_timeout``: seconds after which the claim ends by itself, and the item is delivered again; None: never.
        Raises SharedMemoryError if the queue has too many claims.
        """
        return PendingClaim(self.name, self._claim(check_timeout(timeout), check_lease_timeout(lease_timeout), None))

    def claims(self, prefetch: int = 1, *, lease_timeout: float | None = None) -> AsyncIterator[Claim]:
        """Claim one item after the other, until the queue is shut down and empty; at most ``prefetch`` at a time.

        End each claim by ack() or nack(), in any task or thread, or let its lease expire: the next claim comes only
        then. A claimed item may return, so the queue is not empty for this iterator until all claims have ended. A step
        raises WaitStopped, LocalProtocolError and SharedMemoryError as :meth:`claim` does.
        """
        return self._claims(check_item_count(prefetch), check_lease_timeout(lease_timeout))

    async def _claims(self, prefetch: int, lease: float) -> AsyncIterator[Claim]:
        """Yield claims until the queue is shut down and empty; wait while ``prefetch`` claims are outstanding.

        Logs a warning if the program seems to have forgotten to end the last claim.
        """
        loop, changed = running_loop(), asyncio.Event()

        def wake() -> None:
            with contextlib.suppress(RuntimeError):  # The loop is closed, so no task waits.
                loop.call_soon_threadsafe(changed.set)

        outstanding = OutstandingClaims(prefetch, lease, wake)
        self._claim_wakers.add(wake)
        try:
            while True:
                while outstanding.is_full():
                    self._check_can_wait()
                    warning = loop.call_later(WARN_AFTER, outstanding.warn_of_forgotten_claim, self.name)
                    try:
                        with contextlib.suppress(TimeoutError):
                            await asyncio.wait_for(changed.wait(), outstanding.next_expiry())
                    finally:
                        warning.cancel()
                    changed.clear()
                try:
                    claim = await self._claim(None, lease, outstanding)
                except QueueShutDown:
                    return
                outstanding.remember_last(claim)
                yield claim
                del claim
        finally:
            self._claim_wakers.discard(wake)

    def reserve(
        self, shape: int | tuple[int, ...], dtype: numpy.typing.DTypeLike = "u1", timeout: float | None = None
    ) -> AsyncReservation[_core.Reservation]:
        """Make an array in the queue's memory, and put it at the end of the block: ``async with q.reserve(...) as a``.

        The initial contents are undefined. If the block raises, nothing is put. In a queue of raw bytes the block gets
        a memoryview of ``shape`` bytes. Waits up to ``timeout`` seconds for memory, and again for room at the end of
        the block; both raise QueueFull. Raises ValueError for an array that is too large, EncodeError for a dtype that
        cannot be sent, and ImportError without NumPy, which raw bytes do not need.
        """
        return AsyncReservation(self, shape, dtype, check_timeout(timeout))

    async def join(self, timeout: float | None = None) -> None:
        """Wait until all items that were put are done: acknowledged, marked by :meth:`task_done`, dropped or dead.

        Raises WaitTimeout and WaitStopped.
        """
        timeout = check_timeout(timeout)
        with contextlib.suppress(QueueBusy):
            if self._native.is_done():
                return
        done = await self._try_in_turn(DONE, self._may_be_done, lambda: self._native.is_done() or None, timeout)
        if done is None:
            self._raise_timeout(timeout, DONE)

    def _may_be_done(self) -> bool:
        """Return True if all items are done, or if a process that was stopped within a change hides it: a hint."""
        try:
            return self._native.is_done()
        except QueueBusy:
            return True

    async def _retry_while_busy(self, attempt: Callable[[], _T], timeout: float | None) -> _T:
        """Retry an attempt while a stopped process blocks it; return its result.

        Sleeps first, because the caller has just met QueueBusy. Raises QueueBusy after the timeout, WaitStopped, and
        what ``attempt`` raises.
        """
        end = end_of_wait(timeout)
        while True:
            if self._object.is_stopped:
                raise wait_stopped_error(self._object)
            await asyncio.sleep(BUSY_RETRY_INTERVAL)
            try:
                return attempt()
            except QueueBusy:
                if seconds_left(end) == 0:
                    raise

    async def _put_when_room(self, pending: _core.PendingItems | _core.Reservation, timeout: float | None) -> None:
        """Wait for room, and put items or a reservation. Raises QueueFull, QueueShutDown, QueueBusy and WaitStopped."""
        put = await self._try_in_turn(ROOM, pending.may_put, lambda: pending.put_now() or None, timeout)
        if put is None:
            self._raise_timeout(timeout, ROOM)

    async def _send_copy(self, value: Any, timeout: float | None) -> None:
        """Put a value that was too small to be reserved, as :meth:`put` does."""
        await self.put(value, timeout)

    async def _reserve(self, size: int, body: bytes | None, timeout: float | None) -> _core.Reservation:
        """Wait for memory, and return it.

        Raises QueueFull, QueueShutDown, QueueBusy, WaitStopped, and ValueError for too many bytes.
        """
        reservation = None
        with contextlib.suppress(QueueBusy):
            reservation = self._native.reserve_now(size, body)
        if reservation is None:
            reserve = functools.partial(self._native.reserve_now, size, body)
            reservation = await self._try_in_turn(ROOM, self._native.may_put, reserve, timeout)
        if reservation is None:
            self._raise_timeout(timeout, ROOM)
        return reservation

    async def _commit(self, reservation: _core.Reservation, timeout: float | None) -> None:
        """Put what was reserved, after waiting for room if there is none. Raises as :meth:`_put_when_room` does."""
        is_put = False
        with contextlib.suppress(QueueBusy):
            is_put = reservation.put_now()
        if not is_put:
            await self._put_when_room(reservation, timeout)

    async def _get_in_turn(self, max_items: int, timeout: float | None) -> list[Any]:
        """Wait for items, remove and return them.

        Raises QueueEmpty, QueueShutDown, QueueBusy, WaitStopped and DecodeError.
        """
        items = await self._try_in_turn(
            ITEMS, self._may_have_item, lambda: self._native.get_many_now(max_items, False) or None, timeout
        )
        if items is None:
            self._raise_timeout(timeout, ITEMS)
        return items

    async def _claim(self, timeout: float | None, lease: float, outstanding: OutstandingClaims | None) -> Claim:
        """Wait for an item, and claim it. Raises QueueEmpty, QueueShutDown, WaitStopped and SharedMemoryError.

        ``lease``: seconds; 0 for none. ``outstanding``: the claims of the iterator, to which this one is added, if any.
        """
        if self._budget.is_spent():
            await self._yield_to_loop()
        claim = None
        with contextlib.suppress(QueueBusy):
            claim = self._native.claim_now(lease, False)
        if claim is None:
            claim = await self._try_in_turn(
                ITEMS, self._may_have_item, functools.partial(self._native.claim_now, lease, False), timeout
            )
        if claim is None:
            self._raise_timeout(timeout, ITEMS)
        return Claim.of(self.name, claim, outstanding)

    async def _try_in_turn(
        self, wait_set: int, may_succeed: Callable[[], bool], attempt: Callable[[], _T | None], timeout: float | None
    ) -> _T | None:
        """Wait in the loop until ``attempt()`` returns a result, and return it; return None after the timeout.

        Raises WaitStopped, and the errors of ``attempt``. After a successful attempt for room, wakes another waiter.
        """
        wake_other = functools.partial(self._native.wake, wait_set == ROOM)
        spin = self._native.glance if wait_set == ITEMS else may_succeed
        result = await self._wait_queue(wait_set, TurnQueue).try_in_turn(
            spin, may_succeed, attempt, wake_other, timeout
        )
        if wait_set == ROOM and result is not None:
            wake_other()  # The wake-up may have been for more room than this task has used.
        return result

    def _may_have_item(self) -> bool:
        """Return True if there may be an item; otherwise set a timer that polls when the next lease expires."""
        if self._native.may_take():
            return True
        expiry = self._native.next_expiry()
        if expiry is not None:
            self._wait_queue(ITEMS, TurnQueue).poll_in(expiry)
        return False

    def __aiter__(self) -> AsyncIterator[Any]:
        return self

    async def __anext__(self) -> Any:
        try:
            return await self.get()
        except QueueShutDown:
            raise StopAsyncIteration from None


class PendingClaim(NotForWith, Coroutine[Any, Any, Claim]):
    """A wait for a claim, which a task awaits as a coroutine, or enters by ``async with``, once.

    The end of ``async with`` acknowledges the claim, or calls ``nack()`` if the block raises.
    """

    def __init__(self, name: str, claiming: Coroutine[Any, Any, Claim]) -> None:
        # Python's warning of a coroutine that was never awaited shows this name.
        claiming.__qualname__ = "Queue.claim"  # type: ignore[attr-defined]
        self._queue_name = name
        self._claiming = claiming
        self._claim: Claim | None = None

    def _kind_and_factory(self) -> tuple[str, str]:
        """Return a description of the claim, and the name of the function that opens queues."""
        return f"a claim of queue {self._queue_name!r}", "queue"

    def __await__(self) -> Generator[Any, None, Claim]:
        return self._claiming.__await__()

    def send(self, value: Any) -> Any:
        """Run the wait until it suspends again, for the task that has this object as its coroutine."""
        return self._claiming.send(value)

    def throw(self, *error: Any) -> Any:
        """Raise an error in the wait, for the task that has this object as its coroutine."""
        return self._claiming.throw(*error)

    def close(self) -> None:
        """End the wait without a claim. Does not end a claim that the wait has returned."""
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
    """Open a queue, which all processes that open its name share, for asyncio. The first process makes it, empty.

    ``maxsize``: the limit of waiting items; 0: none. ``max_memory``: the limit of their bytes, such as ``"64MiB"``,
    from 64 KiB to 16 GiB; the queue starts small and grows on demand. ``max_deliveries``: the number of deliveries
    without an acknowledgement after which an item becomes a dead letter; 0: never. ``raw``: items are bytes, or any
    object with the buffer protocol. All processes that open the name pass the same values. ``codec``: the encoding of
    values in this process, as for calls.

    Raises NameConflict if the name is open as something else or with other values, SharedMemoryError if there is no
    room, LocalProtocolError if the directory of shared objects is not safe, WaitTimeout if a stopped process is opening
    or closing the queue, RemoteProtocolError if another version of shmrpc has made it, and TypeError or ValueError for
    an invalid argument.
    """
    return Queue._wrap(open_queue(name, maxsize, max_memory, max_deliveries, raw), codec)
