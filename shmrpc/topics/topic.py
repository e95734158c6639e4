"""Publishing for event loops."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from shmrpc import _core
from shmrpc.basics.checks import check_many, public_class
from shmrpc.basics.drivers import AsyncioOnly
from shmrpc.basics.loops import running_loop
from shmrpc.basics.renamed import renamed_options
from shmrpc.objects.arguments import check_timeout
from shmrpc.objects.reservation import AsyncReservation
from shmrpc.objects.wait_queue import WaitQueue, undo_nothing
from shmrpc.objects.yield_budget import LoopYielder
from shmrpc.topics.topic_base import ATTACH_TIMEOUT, ROOM, WARN_AFTER, TopicBase, check_limits, open_topic
from shmrpc.wire.codec import CodecName

if TYPE_CHECKING:
    import numpy.typing


@public_class("shmrpc.Topic")
class Topic(AsyncioOnly, LoopYielder, TopicBase):
    """A publisher of a topic, in asyncio: see :func:`shmrpc.topic`.

    Both ends of ``async with`` wait in the loop, up to a second, until all subscribers have attached; the end closes
    the handle.

    A wait for room raises TopicFull, which names the slowest subscriber, if the timeout is over (in seconds; None: no
    limit), WaitStopped after :meth:`stop`, and LocalProtocolError if the handle is closed. A value that cannot be sent
    raises EncodeError, and one that is larger than ``max_memory`` ValueError. A cancelled wait may have published.
    """

    async def publish(self, value: Any, timeout: float | None = None) -> None:
        """Publish a value; wait while there is no room."""
        if timeout is not None:
            timeout = check_timeout(timeout)
        if self._budget.is_spent():
            await self._yield_to_loop()
        records = self._native.publish_now(value)
        if records is not None:
            await self._publish(records, timeout)

    async def publish_many(self, values: Iterable[Any], timeout: float | None = None) -> None:
        """Publish values, one after the other; wait until there is room for all of them.

        TopicFull and WaitStopped may come after some values were published: ``TopicFull.published`` is their number. A
        value that cannot be sent raises before any is published. Raises TypeError for a str or bytes.
        """
        check_many("publish_many()", values)
        if timeout is not None:
            timeout = check_timeout(timeout)
        if self._budget.is_spent():
            await self._yield_to_loop()
        records = self._native.publish_many_now(values)
        if records is not None:
            await self._publish(records, timeout)

    def reserve(
        self, shape: int | tuple[int, ...], dtype: numpy.typing.DTypeLike = "u1", timeout: float | None = None
    ) -> AsyncReservation[_core.PendingRecords]:
        """Make an array in shared memory, and publish it at the end of the block: ``async with t.reserve(...) as a``.

        Subscribers read the same memory, without a copy: do not write to the array after the block. The initial
        contents are undefined. If the block raises, or is cancelled, nothing is published. In a topic of raw bytes the
        block gets a memoryview of ``shape`` bytes, for which NumPy is not needed: otherwise a missing NumPy raises
        ImportError. Waits up to ``timeout`` seconds for memory, and again for room.
        """
        return AsyncReservation(self, shape, dtype, check_timeout(timeout))

    async def _publish(self, records: _core.PendingRecords, timeout: float | None) -> None:
        """Wait for room, and publish records. Raises TopicFull, after giving up the unpublished, and WaitStopped."""
        await self._wait_for_room(records, records.publish_or_sleep, timeout)

    async def _wait_for_room(
        self, records: _core.PendingRecords, attempt: Callable[[], bool], timeout: float | None
    ) -> None:
        """Wait in the loop until ``attempt()``, which publishes or reserves ``records`` itself, returns True.

        Logs a warning if the thread waits for a subscription of its own. Raises TopicFull, after giving the records up,
        and WaitStopped.
        """
        warning = running_loop().call_later(WARN_AFTER, self._warn_of_self_wait, records)
        try:
            # A cancelled wait does not take back the records that it has published.
            if await self._wait_queue(ROOM, WaitQueue).wait(attempt, undo_nothing, timeout):
                return
        finally:
            warning.cancel()
        self._raise_full(records, f"for {timeout:g} s")

    async def _send_copy(self, value: Any, timeout: float | None) -> None:
        """Publish a value that was too small to be reserved, as :meth:`publish` does."""
        await self.publish(value, timeout)

    async def _reserve(self, size: int, body: bytes | None, timeout: float | None) -> _core.PendingRecords | None:
        """Wait for memory, and return it; None if the core copies the value instead.

        Raises TopicFull and WaitStopped.
        """
        records = self._native.reserve(size, body)
        if records is not None and not records.reserve_now():
            await self._wait_for_room(records, records.reserve_or_sleep, timeout)
        return records

    async def _commit(self, reservation: _core.PendingRecords, timeout: float | None) -> None:
        """Publish what was reserved, after waiting for room. Raises TopicFull and WaitStopped."""
        if not reservation.publish_now():
            await self._publish(reservation, timeout)

    async def _attach(self) -> None:
        """Wait up to a second until all subscribers have attached to this publisher, and return also if some have not.

        Raises the errors of :meth:`WaitQueue.wait`: WaitStopped, LocalProtocolError and SharedMemoryError.
        """
        if not self._native.is_attached():
            await self._wait_queue(ROOM, WaitQueue).wait(self._native.attaching().is_over, undo_nothing, ATTACH_TIMEOUT)

    async def _await_open(self) -> Self:
        """Wait as _attach() does, at most a second, and return this handle."""
        await self._attach()
        return self

    async def __aenter__(self) -> Self:
        return await self._await_open()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None
    ) -> None:
        must_wait = True
        try:
            if not (self._object.is_closed or self._object.is_stopped):
                must_wait = False  # If the task is cancelled here, close() must not block the loop.
                await self._attach()
        finally:
            self._native.close(must_wait)
            self.close()


@renamed_options(high="high_watermark=", low="low_watermark=")
def topic(
    name: str,
    *,
    high_watermark: int = 1024,
    low_watermark: int | None = None,
    max_memory: int | str = "64MiB",
    raw: bool = False,
    codec: CodecName = "msgspec",
) -> Topic:
    """Open a topic to publish in it, for asyncio: ``async with shmrpc.topic("ticks") as t: await t.publish(x)``.

    ``high_watermark``: the number of messages that a subscriber with ``slow_policy="block"`` may be behind. Then the
    publisher waits until the subscriber is at most ``low_watermark`` messages behind, by default half of
    ``high_watermark``. ``max_memory``: the limit of the bytes of large messages that subscribers have not read. All
    handles of a process pass the same limits; each process has its own. ``raw``: messages are bytes; all processes that
    open the name pass the same. ``codec``: as for a queue.

    Raises NameConflict if the name is open as something else, or in this process with other limits, SharedMemoryError
    if there is no room, TypeError or ValueError for an invalid argument, and LocalProtocolError, WaitTimeout and
    RemoteProtocolError as :class:`Semaphore` does.
    """
    limits = check_limits(name, high_watermark, low_watermark, max_memory)
    return Topic._wrap_publisher(open_topic(name, raw), limits, codec)
