"""Publishing in asyncio."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from shmrpc import _core
from shmrpc.basics.checks import check_many, public_class
from shmrpc.basics.drivers import AsyncioOnly
from shmrpc.basics.loops import running_loop
from shmrpc.objects.arguments import check_timeout
from shmrpc.objects.reservation import AwaitedReserving
from shmrpc.objects.wait_queue import Line
from shmrpc.objects.yield_budget import Pausing
from shmrpc.topics.topic_base import ATTACHING, LONG_WAIT, ROOM, TopicBase, limits_of, opened_topic
from shmrpc.wire.codec import CodecName

if TYPE_CHECKING:
    import numpy.typing


@public_class("shmrpc.Topic")
class Topic(AsyncioOnly, Pausing, TopicBase):
    """What this process publishes for all that subscribe, in asyncio: see :func:`shmrpc.topic`.

    What waits for room raises TopicFull if the timeout is over, which names the slowest subscriber, WaitStopped after
    :meth:`stop`, and LocalProtocolError if it is closed. A value that cannot be sent raises EncodeError, and one that
    is larger than ``max_memory`` ValueError. A wait that is cancelled may have published.
    """

    async def publish(self, value: Any, timeout: float | None = None) -> None:
        """Publishes a value, and waits for room."""
        if timeout is not None:
            timeout = check_timeout(timeout)
        if self._slice.is_over():
            await self._pause()
        records = self._native.publish_now(value)
        if records is not None:
            await self._publish(records, timeout)

    async def publish_many(self, values: Iterable[Any], timeout: float | None = None) -> None:
        """Publishes values, one after the other, and waits for room for all of them."""
        check_many("publish_many()", values)
        if timeout is not None:
            timeout = check_timeout(timeout)
        if self._slice.is_over():
            await self._pause()
        records = self._native.publish_many_now(values)
        if records is not None:
            await self._publish(records, timeout)

    def reserve(
        self, shape: int | tuple[int, ...], dtype: numpy.typing.DTypeLike = "u1", timeout: float | None = None
    ) -> AwaitedReserving[_core.Records]:
        """Makes an array in shared memory, published at the end of the block: ``async with t.reserve(...) as a``.

        Those that subscribe look at the same memory: nothing is copied, and the array is not to be written after the
        block. What it holds at first may be anything. If the block raises, or is cancelled, nothing is published. Of a
        topic of raw bytes it is a memoryview of ``shape`` bytes. Memory, and room, are waited for up to ``timeout``
        seconds each.
        """
        return AwaitedReserving(self, shape, dtype, check_timeout(timeout))

    async def _publish(self, records: _core.Records, timeout: float | None) -> None:
        await self._until(records, records.publish_or_sleep, timeout)

    async def _until(self, records: _core.Records, act: Callable[[], bool], timeout: float | None) -> None:
        looking = running_loop().call_later(LONG_WAIT, self._look_at_wait, records)
        try:
            if await self._line(ROOM, Line).wait(act, _nothing, timeout):
                return
        finally:
            looking.cancel()
        self._is_full(records, f"for {timeout:g} s")

    async def _add(self, value: Any, timeout: float | None) -> None:
        await self.publish(value, timeout)

    async def _reserve(self, size: int, body: bytes | None, timeout: float | None) -> _core.Records | None:
        records = self._native.reserve(size, body)
        if records is not None and not records.reserve_now():
            await self._until(records, records.reserve_or_sleep, timeout)
        return records

    async def _commit(self, reservation: _core.Records, timeout: float | None) -> None:
        if not reservation.publish_now():
            await self._publish(reservation, timeout)

    async def _attach(self) -> None:
        """Waits for a while until all that subscribe have turned to this publisher."""
        if not self._native.is_attached():
            await self._line(ROOM, Line).wait(self._native.attaching().is_over, _nothing, ATTACHING)

    async def _await_open(self) -> Self:
        await self._attach()
        return self

    async def __aenter__(self) -> Self:
        return await self._await_open()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None
    ) -> None:
        waits = True
        try:
            if not (self._name.is_closed or self._name.is_stopped):
                waits = False  # A task that is cancelled here does not hold up its loop instead.
                await self._attach()
        finally:
            self._native.close(waits)
            self.close()


def _nothing() -> None:
    """What was published is not taken back."""


def topic(
    name: str,
    *,
    high: int = 1024,
    low: int | None = None,
    max_memory: int | str = "64MiB",
    raw: bool = False,
    codec: CodecName = "msgspec",
) -> Topic:
    """Opens a topic to publish in it, for asyncio: ``async with shmrpc.topic("ticks") as t: await t.publish(x)``.

    ``high``: how many messages a subscriber that is waited for may be behind; then a publisher waits until it is behind
    by no more than ``low``, by default half of that. ``max_memory``: bytes of large messages that are held for those
    that have not read them. All handles of a process say the same of these; each process has its own. ``raw``: the
    messages are bytes, which all that open the name say. ``codec``: as for a queue.

    Raises NameInUse if the name is open as something else, or in this process with other limits, SharedMemoryError if
    there is no room.
    """
    limits = limits_of(name, high, low, max_memory)
    return Topic._publishing(opened_topic(name, raw), limits, codec)
