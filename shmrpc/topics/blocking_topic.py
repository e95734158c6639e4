"""Publishing for threads."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, Self

from shmrpc import _core
from shmrpc.basics.checks import check_many, public_class, public_name
from shmrpc.basics.drivers import ThreadsOnly
from shmrpc.basics.renamed import renamed_options
from shmrpc.objects.arguments import check_timeout
from shmrpc.objects.handle import ContextHandle
from shmrpc.objects.reservation import BlockingReservation
from shmrpc.objects.wait_queue import wait_stopped_error
from shmrpc.topics.topic_base import ATTACH_TIMEOUT, WARN_AFTER, TopicBase, check_limits, open_topic
from shmrpc.wire.codec import CodecName

if TYPE_CHECKING:
    import numpy.typing


@public_class("shmrpc.sync.Topic")
class BlockingTopic(ThreadsOnly, ContextHandle, TopicBase):
    """A :class:`shmrpc.Topic` whose methods block the thread that calls them. Any number of threads may use it.

    The beginning of ``with`` waits up to a second until all subscribers have attached; its end closes the handle.
    """

    def publish(self, value: Any, timeout: float | None = None) -> None:
        """Publish a value; wait while there is no room. Raises the errors of :class:`shmrpc.Topic`."""
        if timeout is not None:
            timeout = check_timeout(timeout)
        records = self._native.publish_now(value)
        if records is not None:
            self._publish(records, timeout)

    def publish_many(self, values: Iterable[Any], timeout: float | None = None) -> None:
        """Publish values, one after the other; wait until there is room for all of them.

        Raises as :meth:`shmrpc.Topic.publish_many` does.
        """
        check_many("publish_many()", values)
        if timeout is not None:
            timeout = check_timeout(timeout)
        records = self._native.publish_many_now(values)
        if records is not None:
            self._publish(records, timeout)

    def reserve(
        self, shape: int | tuple[int, ...], dtype: numpy.typing.DTypeLike = "u1", timeout: float | None = None
    ) -> BlockingReservation[_core.PendingRecords]:
        """Make an array in shared memory, and publish it at the end of the block: ``with t.reserve(...) as a``.

        See :meth:`shmrpc.Topic.reserve`.
        """
        return BlockingReservation(self, shape, dtype, check_timeout(timeout))

    def _publish(self, records: _core.PendingRecords, timeout: float | None) -> None:
        """Block until there is room, and publish records. Raises TopicFull, after giving them up, and WaitStopped."""
        self._wait_for_room(records, records.wait, timeout)

    def _send_copy(self, value: Any, timeout: float | None) -> None:
        """Publish a value that was too small to be reserved, as :meth:`publish` does."""
        self.publish(value, timeout)

    def _reserve(self, size: int, body: bytes | None, timeout: float | None) -> _core.PendingRecords | None:
        """Block until there is memory, and return it; None if the core copies the value instead.

        Raises TopicFull and WaitStopped.
        """
        records = self._native.reserve(size, body)
        if records is not None and not records.reserve_now():
            self._wait_for_room(records, records.wait_reserved, timeout)
        return records

    def _commit(self, reservation: _core.PendingRecords, timeout: float | None) -> None:
        """Publish what was reserved, after waiting for room. Raises TopicFull and WaitStopped."""
        if not reservation.publish_now():
            self._publish(reservation, timeout)

    def _wait_for_room(
        self, records: _core.PendingRecords, wait: Callable[[float | None], bool | None], timeout: float | None
    ) -> None:
        """Block the thread in ``wait(seconds)`` of the core, which publishes or reserves ``records`` itself.

        Logs a warning if the thread waits for a subscription of its own. Raises TopicFull, after giving the records up,
        and WaitStopped.
        """
        if timeout is not None and timeout <= WARN_AFTER:
            waited = wait(timeout)
        else:
            waited = wait(WARN_AFTER)
            if waited is False:
                self._warn_of_self_wait(records)
                waited = wait(None if timeout is None else timeout - WARN_AFTER)
        if waited is None:
            raise wait_stopped_error(self._object)
        if not waited:
            self._raise_full(records, f"for {timeout:g} s")

    def __enter__(self) -> Self:
        if not self._native.is_attached():
            self._native.attaching().wait(ATTACH_TIMEOUT)
        return self


@renamed_options(high="high_watermark=", low="low_watermark=")
@public_name("topic")
def blocking_topic(
    name: str,
    *,
    high_watermark: int = 1024,
    low_watermark: int | None = None,
    max_memory: int | str = "64MiB",
    raw: bool = False,
    codec: CodecName = "msgspec",
) -> BlockingTopic:
    """Open a topic as :func:`shmrpc.topic` does, to publish from threads. Raises the same errors."""
    limits = check_limits(name, high_watermark, low_watermark, max_memory)
    return BlockingTopic._wrap_publisher(open_topic(name, raw), limits, codec)
