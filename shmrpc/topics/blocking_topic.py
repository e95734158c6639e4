"""Publishing in threads."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, Self

from shmrpc import _core
from shmrpc.basics.checks import check_many, public_class, public_name
from shmrpc.basics.drivers import ThreadsOnly
from shmrpc.objects.arguments import check_timeout
from shmrpc.objects.handle import Closing
from shmrpc.objects.reservation import BlockingReserving
from shmrpc.objects.wait_queue import stopped_wait
from shmrpc.topics.topic_base import ATTACHING, LONG_WAIT, TopicBase, limits_of, opened_topic
from shmrpc.wire.codec import CodecName

if TYPE_CHECKING:
    import numpy.typing


@public_class("shmrpc.sync.Topic")
class BlockingTopic(ThreadsOnly, Closing, TopicBase):
    """A :class:`shmrpc.Topic` whose methods block the thread that calls them. Any number of threads may use it."""

    def publish(self, value: Any, timeout: float | None = None) -> None:
        """Publishes a value, and waits for room."""
        if timeout is not None:
            timeout = check_timeout(timeout)
        records = self._native.publish_now(value)
        if records is not None:
            self._publish(records, timeout)

    def publish_many(self, values: Iterable[Any], timeout: float | None = None) -> None:
        """Publishes values, one after the other, and waits for room for all of them."""
        check_many("publish_many()", values)
        if timeout is not None:
            timeout = check_timeout(timeout)
        records = self._native.publish_many_now(values)
        if records is not None:
            self._publish(records, timeout)

    def reserve(
        self, shape: int | tuple[int, ...], dtype: numpy.typing.DTypeLike = "u1", timeout: float | None = None
    ) -> BlockingReserving[_core.Records]:
        """Makes an array in shared memory, published at the end of the block: ``with t.reserve(...) as a``.

        As :meth:`shmrpc.Topic.reserve`.
        """
        return BlockingReserving(self, shape, dtype, check_timeout(timeout))

    def _publish(self, records: _core.Records, timeout: float | None) -> None:
        self._told(records, self._wait_for(records, records.wait, timeout), timeout)

    def _add(self, value: Any, timeout: float | None) -> None:
        self.publish(value, timeout)

    def _reserve(self, size: int, body: bytes | None, timeout: float | None) -> _core.Records | None:
        records = self._native.reserve(size, body)
        if records is not None and not records.reserve_now():
            self._told(records, self._wait_for(records, records.wait_reserved, timeout), timeout)
        return records

    def _commit(self, reservation: _core.Records, timeout: float | None) -> None:
        if not reservation.publish_now():
            self._publish(reservation, timeout)

    def _wait_for(
        self, records: _core.Records, wait: Callable[[float | None], bool | None], timeout: float | None
    ) -> bool | None:
        """Waits in this thread: False if the timeout is over, None if waits were stopped."""
        if timeout is not None and timeout <= LONG_WAIT:
            return wait(timeout)
        waited = wait(LONG_WAIT)
        if waited is not False:
            return waited
        self._look_at_wait(records)
        return wait(None if timeout is None else timeout - LONG_WAIT)

    def _told(self, records: _core.Records, waited: bool | None, timeout: float | None) -> None:
        """Raises what a wait ends with that was in vain."""
        if waited is None:
            raise stopped_wait(self._name)
        if not waited:
            self._is_full(records, f"for {timeout:g} s")

    def __enter__(self) -> Self:
        if not self._native.is_attached():
            self._native.attaching().wait(ATTACHING)
        return self


@public_name("topic")
def blocking_topic(
    name: str,
    *,
    high: int = 1024,
    low: int | None = None,
    max_memory: int | str = "64MiB",
    raw: bool = False,
    codec: CodecName = "msgspec",
) -> BlockingTopic:
    """Opens a topic as :func:`shmrpc.topic` does, to publish from threads."""
    limits = limits_of(name, high, low, max_memory)
    return BlockingTopic._publishing(opened_topic(name, raw), limits, codec)
