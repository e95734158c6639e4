"""Queues for threads."""

from __future__ import annotations

import contextlib
import functools
import queue
import time
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any, Self, TypeVar

from shmrpc import _core
from shmrpc.basics.checks import check_many, public_class, public_name
from shmrpc.basics.drivers import IterableOnly
from shmrpc.basics.timeouts import end_of_wait, seconds_left
from shmrpc.errors import QueueBusy, QueueEmpty, QueueShutDown
from shmrpc.objects.arguments import check_item_count, check_timeout
from shmrpc.objects.handle import ContextHandle
from shmrpc.objects.reservation import BlockingReservation
from shmrpc.objects.turn_queue import BUSY_RETRY_INTERVAL
from shmrpc.objects.wait_queue import wait_stopped_error
from shmrpc.queues.claim import Claim
from shmrpc.queues.outstanding_claims import WARN_AFTER, OutstandingClaims
from shmrpc.queues.queue_base import DONE, ITEMS, ROOM, QueueBase, check_lease_timeout, open_queue
from shmrpc.wire.codec import CodecName

if TYPE_CHECKING:
    import numpy.typing


_T = TypeVar("_T")


@public_class("shmrpc.sync.Queue")
class BlockingQueue(IterableOnly, ContextHandle, QueueBase):
    """A :class:`shmrpc.Queue` whose methods block the thread that calls them, as those of ``queue.Queue`` do.

    Any number of threads may use it. ``for`` gets items until the queue is shut down and empty. ``with`` closes the
    handle. Waits raise the errors of :class:`shmrpc.Queue`. If a signal handler raises during a wait, no item is lost.
    """

    def put(self, item: Any, block: bool | float | None = True, timeout: float | None = None) -> None:
        """Put an item; wait while there is no room. Raises ValueError at once for an item that is too large.

        With ``block=False`` this is :meth:`put_nowait`. A number in the place of ``block`` is the timeout in seconds; a
        timeout of None is no limit. Raises QueueFull after the timeout, QueueShutDown and EncodeError.
        """
        if block is not True:
            if block is False or (timeout is not None and not block):
                return self.put_nowait(item)
            timeout = block if timeout is None else timeout
        if timeout is not None:
            timeout = check_timeout(timeout)
        try:
            pending = self._native.put_now(item)
        except QueueBusy:
            pending = self._retry_put(self._native.put_now, item, timeout)
        if pending is not None:
            self._put_when_room(pending, timeout)
        return None

    def put_many(self, items: Iterable[Any], timeout: float | None = None) -> None:
        """Put items that stay together, all or none; wait until there is room for all of them.

        Raises ValueError at once for items for which there can never be room, and TypeError for a str or bytes.
        """
        check_many("put_many()", items)
        if timeout is not None:
            timeout = check_timeout(timeout)
        if not isinstance(items, list):
            items = list(items)  # A second attempt needs them again.
        try:
            pending = self._native.put_many_now(items)
        except QueueBusy:
            pending = self._retry_put(self._native.put_many_now, items, timeout)
        if pending is not None:
            self._put_when_room(pending, timeout)

    def get(self, block: bool | float | None = True, timeout: float | None = None) -> Any:
        """Wait for an item, remove it and return it.

        With ``block=False`` this is :meth:`get_nowait`. A number in the place of ``block`` is the timeout in seconds; a
        timeout of None is no limit. Raises QueueEmpty after the timeout, QueueShutDown once the queue is shut down and
        empty, and DecodeError for an item that cannot be read, which is then lost.
        """
        if block is not True:
            if block is False or (timeout is not None and not block):
                return self.get_nowait()
            timeout = block if timeout is None else timeout
        if timeout is not None:
            timeout = check_timeout(timeout)
        got: list[Any] = []
        try:
            has_got = self._native.take_into(got, 1)
        except QueueBusy:
            has_got = False
        except BaseException:
            if got:  # The same as in _get_items().
                self._native.put_back(got)
            raise
        return (got if has_got else self._get_items(1, timeout))[0]

    def get_many(self, max_items: int = 256, timeout: float | None = None) -> list[Any]:
        """Wait for an item; remove it and those that follow, up to ``max_items`` in all, and return them.

        Does not wait for more than one. Returns fewer if they have many bytes: about 256 KiB at once. A large item
        comes alone.
        """
        return self._get_items(check_item_count(max_items), check_timeout(timeout))

    def _get_items(self, max_items: int, timeout: float | None) -> list[Any]:
        """Wait for items, remove and return them. If a signal handler raises meanwhile, put them back.

        The core appends the items to a list of this function, so that none is lost between the core and the ``return``.
        Raises QueueEmpty, QueueShutDown, QueueBusy, WaitStopped and DecodeError.
        """
        got: list[Any] = []
        try:
            try:
                if self._native.take_into(got, max_items):
                    return got
            except QueueBusy:
                pass
            self._wait_for_items(got, max_items, timeout)
        except BaseException:
            if got:
                self._native.put_back(got)
            raise
        return got

    def _wait_for_items(self, got: list[Any], max_items: int, timeout: float | None) -> None:
        """Block the thread until the core has appended items to ``got``.

        Raises QueueEmpty, QueueShutDown, QueueBusy, WaitStopped and DecodeError.
        """

        def wait(left: float | None) -> bool | list[Any] | None:
            waited = self._native.wait_into(got, max_items, left)
            return got if waited else waited

        waited = self._retry_while_busy(wait, timeout)
        if waited is None:
            raise wait_stopped_error(self._object)
        if waited is False:
            self._raise_timeout(timeout, ITEMS)

    def get_nowait(self) -> Any:
        """Remove the first item and return it. Raises QueueEmpty, or QueueShutDown if the queue is shut down and empty.

        Raises DecodeError for an item that this process cannot read. That item is lost; claim() would keep it.
        """
        return self.get_many_nowait(1)[0]

    def get_many_nowait(self, max_items: int = 256) -> list[Any]:
        """Remove up to ``max_items`` items that follow each other, and return them, at least one.

        Returns fewer if they have many bytes, or if one that cannot be read follows. Raises as :meth:`get_nowait` does.
        """
        got: list[Any] = []
        max_items = check_item_count(max_items)
        try:
            if not self._native.take_into(got, max_items):
                raise QueueEmpty(f"queue {self.name!r} is empty")
        except BaseException:
            if got:
                self._native.put_back(got)
            raise
        return got

    def claim(self, timeout: float | None = None, *, lease_timeout: float | None = None) -> Claim:
        """Wait for an item and claim it: ``with q.claim() as c``, or ``c = q.claim()``, then ``c.ack()``.

        ``lease_timeout``: seconds after which the claim ends by itself, and the item is delivered again; None: never.
        Raises SharedMemoryError if the queue has too many claims.
        """
        return self._claim(check_timeout(timeout), check_lease_timeout(lease_timeout), None)

    def claims(self, prefetch: int = 1, *, lease_timeout: float | None = None) -> Iterator[Claim]:
        """Claim one item after the other, until the queue is shut down and empty; at most ``prefetch`` at a time.

        End each claim by ack() or nack(), in any thread, or let its lease expire: the next claim comes only then. A
        claimed item may return, so the queue is not empty for this iterator until all claims have ended. A step blocks
        the thread, and raises WaitStopped, LocalProtocolError and SharedMemoryError as :meth:`claim` does.
        """
        return self._claims(check_item_count(prefetch), check_lease_timeout(lease_timeout))

    def _claims(self, prefetch: int, lease: float) -> Iterator[Claim]:
        """Yield claims until the queue is shut down and empty; wait while ``prefetch`` claims are outstanding.

        Logs a warning if the program seems to have forgotten to end the last claim.
        """
        changes: queue.SimpleQueue[None] = queue.SimpleQueue()
        wake = functools.partial(changes.put, None)
        outstanding = OutstandingClaims(prefetch, lease, wake)
        self._claim_wakers.add(wake)
        try:
            while True:
                while outstanding.is_full():
                    self._check_can_wait()
                    expiry = outstanding.next_expiry()
                    if expiry is None or expiry > WARN_AFTER:
                        with contextlib.suppress(queue.Empty):
                            changes.get(timeout=WARN_AFTER)
                            continue
                        outstanding.warn_of_forgotten_claim(self.name)
                    with contextlib.suppress(queue.Empty):
                        changes.get(timeout=outstanding.next_expiry())
                try:
                    claim = self._claim(None, lease, outstanding)
                except QueueShutDown:
                    return
                outstanding.remember_last(claim)
                yield claim
                del claim
        finally:
            self._claim_wakers.discard(wake)

    def reserve(
        self, shape: int | tuple[int, ...], dtype: numpy.typing.DTypeLike = "u1", timeout: float | None = None
    ) -> BlockingReservation[_core.Reservation]:
        """Make an array in the queue's memory, and put it at the end of the block: ``with q.reserve(...) as a``.

        The initial contents are undefined. If the block raises, nothing is put. In a queue of raw bytes the block gets
        a memoryview of ``shape`` bytes. Waits up to ``timeout`` seconds for memory, and again for room at the end of
        the block; both raise QueueFull. Raises ValueError for an array that is too large, EncodeError for a dtype that
        cannot be sent, and ImportError without NumPy, which raw bytes do not need.
        """
        return BlockingReservation(self, shape, dtype, check_timeout(timeout))

    def join(self, timeout: float | None = None) -> None:
        """Wait until all items that were put are done: acknowledged, marked by :meth:`task_done`, dropped or dead.

        Raises WaitTimeout and WaitStopped.
        """
        timeout = check_timeout(timeout)
        self._wait_in_thread(functools.partial(self._retry_while_busy, self._native.wait_done), timeout, DONE)

    def _retry_while_busy(self, wait: Callable[[float | None], _T], timeout: float | None) -> _T:
        """Return the result of ``wait(seconds_left)``. Call it again if a stopped process blocks the queue.

        ``seconds_left`` is None without a timeout. Also call it again after an empty list. Raises QueueBusy at the end
        of the timeout, WaitStopped, and what ``wait`` raises.
        """
        end = end_of_wait(timeout)
        while True:
            try:
                result = wait(seconds_left(end))
                if result != []:  # An empty list: another thread or process was quicker.
                    return result
            except QueueBusy:
                if self._object.is_stopped:
                    raise wait_stopped_error(self._object) from None
                if seconds_left(end) == 0:
                    raise
                time.sleep(BUSY_RETRY_INTERVAL)

    def _retry_put(
        self, put: Callable[[Any], _core.PendingItems | None], argument: Any, timeout: float | None
    ) -> _core.PendingItems | None:
        """Call ``put(argument)`` until no stopped process blocks the queue; return the result.

        Raises QueueBusy at the end of the timeout, WaitStopped, and what ``put`` raises.
        """
        # A function of its own, because a variable that a lambda refers to makes the fast path slower.
        return self._retry_while_busy(lambda _: put(argument), timeout)

    def _put_when_room(self, pending: _core.PendingItems | _core.Reservation, timeout: float | None) -> None:
        """Block until there is room, and put items or a reservation.

        Raises QueueFull, QueueShutDown, QueueBusy and WaitStopped.
        """
        self._wait_in_thread(functools.partial(self._retry_while_busy, pending.wait), timeout, ROOM)

    def _send_copy(self, value: Any, timeout: float | None) -> None:
        """Put a value that was too small to be reserved, as :meth:`put` does."""
        self.put(value, timeout=timeout)

    def _reserve(self, size: int, body: bytes | None, timeout: float | None) -> _core.Reservation:
        """Block until there is memory, and return it.

        Raises QueueFull, QueueShutDown, WaitStopped, QueueBusy if a stopped process blocks it, and ValueError for too
        many bytes.
        """
        reservation = self._retry_while_busy(functools.partial(self._native.wait_reserve, size, body), timeout)
        if reservation is None:
            raise wait_stopped_error(self._object)
        if reservation is False:
            self._raise_timeout(timeout, ROOM)
        return reservation

    def _commit(self, reservation: _core.Reservation, timeout: float | None) -> None:
        """Put what was reserved, after waiting for room. Raises QueueFull, QueueShutDown and WaitStopped."""
        self._put_when_room(reservation, timeout)

    def _claim(self, timeout: float | None, lease: float, outstanding: OutstandingClaims | None) -> Claim:
        """Wait for an item, and claim it. Raises QueueEmpty, QueueShutDown, WaitStopped and SharedMemoryError.

        ``lease``: seconds; 0 for none. ``outstanding``: the claims of the iterator, to which this one is added, if any.
        """
        claim = None
        with contextlib.suppress(QueueBusy):
            claim = self._native.claim_now(lease, False)
        if claim is None:
            waited = self._retry_while_busy(functools.partial(self._native.wait_claim, lease), timeout)
            if waited is None:
                raise wait_stopped_error(self._object)
            if waited is False:
                self._raise_timeout(timeout, ITEMS)
            claim = waited
        return Claim.of(self.name, claim, outstanding)

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Any:
        try:
            return self.get()
        except QueueShutDown:
            raise StopIteration from None


@public_name("queue")
def blocking_queue(
    name: str,
    maxsize: int = 0,
    *,
    max_memory: int | str = "1GiB",
    max_deliveries: int = 0,
    raw: bool = False,
    codec: CodecName = "msgspec",
) -> BlockingQueue:
    """Open a queue as :func:`shmrpc.queue` does, with methods that block the thread that calls them.

    Raises the same errors.
    """
    return BlockingQueue._wrap(open_queue(name, maxsize, max_memory, max_deliveries, raw), codec)
