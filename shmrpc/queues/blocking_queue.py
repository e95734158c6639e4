"""Queues in threads."""

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
from shmrpc.errors import QueueBusy, QueueEmpty, QueueShutDown
from shmrpc.objects.arguments import check_item_count, check_timeout
from shmrpc.objects.handle import Closing
from shmrpc.objects.reservation import BlockingReserving
from shmrpc.objects.turn_queue import PAUSE
from shmrpc.objects.wait_queue import stopped_wait
from shmrpc.queues.claim import Claim
from shmrpc.queues.outstanding_claims import LONG_WAIT, Prefetched
from shmrpc.queues.queue_base import DONE, ITEMS, ROOM, QueueBase, lease_of, opened_queue
from shmrpc.wire.codec import CodecName

if TYPE_CHECKING:
    import numpy.typing


_T = TypeVar("_T")


@public_class("shmrpc.sync.Queue")
class BlockingQueue(IterableOnly, Closing, QueueBase):
    """A :class:`shmrpc.Queue` whose methods block the thread that calls them, as those of ``queue.Queue`` do.

    Any number of threads may use it. ``for`` gets items until the queue is shut down and empty.
    """

    def put(self, item: Any, block: bool | float | None = True, timeout: float | None = None) -> None:
        """Puts an item, and waits for room. Raises ValueError at once if there can never be any.

        With ``block=False`` it does not wait, as :meth:`put_nowait`. A number in the place of ``block`` is the timeout.
        """
        if block is not True:
            if block is False or (timeout is not None and not block):
                return self.put_nowait(item)
            timeout = block if timeout is None else timeout
        if timeout is not None:
            timeout = check_timeout(timeout)
        try:
            waiting = self._native.put_now(item)
        except QueueBusy:
            waiting = self._put_again(self._native.put_now, item, timeout)
        if waiting is not None:
            self._put(waiting, timeout)
        return None

    def put_many(self, items: Iterable[Any], timeout: float | None = None) -> None:
        """Puts items that stay together, and waits for room for all of them."""
        check_many("put_many()", items)
        if timeout is not None:
            timeout = check_timeout(timeout)
        if not isinstance(items, list):
            items = list(items)  # It may be needed twice.
        try:
            waiting = self._native.put_many_now(items)
        except QueueBusy:
            waiting = self._put_again(self._native.put_many_now, items, timeout)
        if waiting is not None:
            self._put(waiting, timeout)

    def get(self, block: bool | float | None = True, timeout: float | None = None) -> Any:
        """Waits for an item, removes it and returns it.

        With ``block=False`` it does not wait, as :meth:`get_nowait`. A number in the place of ``block`` is the timeout.
        """
        if block is not True:
            if block is False or (timeout is not None and not block):
                return self.get_nowait()
            timeout = block if timeout is None else timeout
        if timeout is not None:
            timeout = check_timeout(timeout)
        got: list[Any] = []
        try:
            is_taken = self._native.take_into(got, 1)
        except QueueBusy:
            is_taken = False
        except BaseException:
            if got:  # As in _got().
                self._native.put_back(got)
            raise
        return (got if is_taken else self._got(1, timeout))[0]

    def get_many(self, most: int = 256, timeout: float | None = None) -> list[Any]:
        """Waits for an item; removes it and those that follow, up to ``most`` in all, and returns them.

        Fewer if they are many bytes, about 256 KiB at once; a large one comes alone.
        """
        return self._got(check_item_count(most), check_timeout(timeout))

    def _got(self, most: int, timeout: float | None) -> list[Any]:
        """Take items. If a signal handler raises before they have left this function, put them back.

        The core appends them to a list that is here already: between that and the end there is nothing that could
        lose them.
        """
        got: list[Any] = []
        try:
            try:
                if self._native.take_into(got, most):
                    return got
            except QueueBusy:
                pass
            self._fill(got, most, timeout)
        except BaseException:
            if got:
                self._native.put_back(got)
            raise
        return got

    def _fill(self, got: list[Any], most: int, timeout: float | None) -> None:
        """Wait until items are in ``got``."""

        def wait(left: float | None) -> bool | list[Any] | None:
            waited = self._native.wait_into(got, most, left)
            return got if waited else waited

        waited = self._again(wait, timeout)
        if waited is None:
            raise stopped_wait(self._name)
        if waited is False:
            self._timed_out(timeout, ITEMS)

    def get_nowait(self) -> Any:
        """Removes the first item and returns it. Raises QueueEmpty, and QueueShutDown if nothing will come.

        Raises DecodeError for an item that this process cannot read, which is gone then: a claimed one is not.
        """
        return self.get_many_nowait(1)[0]

    def get_many_nowait(self, most: int = 256) -> list[Any]:
        """Removes up to ``most`` items that follow each other and returns them. Raises as :meth:`get_nowait` does."""
        got: list[Any] = []
        most = check_item_count(most)
        try:
            if not self._native.take_into(got, most):
                raise QueueEmpty(f"queue {self.name!r} is empty")
        except BaseException:
            if got:
                self._native.put_back(got)
            raise
        return got

    def claim(self, timeout: float | None = None, *, lease_timeout: float | None = None) -> Claim:
        """Waits for an item to deal with: ``with q.claim() as c``, or ``c = q.claim()``, then ``c.ack()``.

        With ``lease_timeout``, in seconds, the claim ends by itself after that, and the item is delivered to another.
        """
        return self._claim(check_timeout(timeout), lease_of(lease_timeout), None)

    def claims(self, prefetch: int = 1, *, lease_timeout: float | None = None) -> Iterator[Claim]:
        """Claims one item after the other, until the queue is shut down and empty; at most ``prefetch`` at a time.

        Each claim is to be ended, in any thread, or by its lease: only then the next one comes. What somebody has
        claimed may come back: until that is decided, the queue is not empty here.
        """
        return self._claims(check_item_count(prefetch), lease_of(lease_timeout))

    def _claims(self, prefetch: int, lease: float) -> Iterator[Claim]:
        changes: queue.SimpleQueue[None] = queue.SimpleQueue()
        wake = functools.partial(changes.put, None)
        given = Prefetched(prefetch, lease, wake)
        self._wakes.add(wake)
        try:
            while True:
                while given.is_full():
                    self._check_waits()
                    over = given.next_over()
                    if over is None or over > LONG_WAIT:
                        with contextlib.suppress(queue.Empty):
                            changes.get(timeout=LONG_WAIT)
                            continue
                        given.warn(self.name)
                    with contextlib.suppress(queue.Empty):
                        changes.get(timeout=given.next_over())
                try:
                    claim = self._claim(None, lease, given)
                except QueueShutDown:
                    return
                given.keep(claim)
                yield claim
                del claim
        finally:
            self._wakes.discard(wake)

    def reserve(
        self, shape: int | tuple[int, ...], dtype: numpy.typing.DTypeLike = "u1", timeout: float | None = None
    ) -> BlockingReserving[_core.Reservation]:
        """Makes an array in the queue's memory that is an item at the end of the block: ``with q.reserve(...) as a``.

        What it holds at first may be anything. If the block raises, there is no item. Of a queue of raw bytes it is a
        memoryview of ``shape`` bytes.
        """
        return BlockingReserving(self, shape, dtype, check_timeout(timeout))

    def join(self, timeout: float | None = None) -> None:
        """Waits until all items that were put are dealt with. Raises WaitTimeout."""
        timeout = check_timeout(timeout)
        self._block(functools.partial(self._again, self._native.wait_done), timeout, DONE)

    def _again(self, wait: Callable[[float | None], _T], timeout: float | None) -> _T:
        """Waits, and goes on if a stopped process keeps us from it, until the timeout is over."""
        end = None if timeout is None else time.monotonic() + timeout
        while True:
            try:
                found = wait(None if end is None else max(0.0, end - time.monotonic()))
                if found != []:  # Somebody else has taken what there was.
                    return found
            except QueueBusy:
                if end is not None and time.monotonic() >= end:
                    raise
                time.sleep(PAUSE)

    def _put_again(
        self, put: Callable[[Any], _core.Items | None], what: Any, timeout: float | None
    ) -> _core.Items | None:
        # By itself, since a variable that a lambda refers to makes the quick way slower.
        return self._again(lambda _: put(what), timeout)

    def _put(self, waiting: _core.Items | _core.Reservation, timeout: float | None) -> None:
        self._block(functools.partial(self._again, waiting.wait), timeout, ROOM)

    def _add(self, value: Any, timeout: float | None) -> None:
        self.put(value, timeout=timeout)

    def _reserve(self, size: int, body: bytes | None, timeout: float | None) -> _core.Reservation:
        reservation = self._again(functools.partial(self._native.wait_reserve, size, body), timeout)
        if reservation is None:
            raise stopped_wait(self._name)
        if reservation is False:
            self._timed_out(timeout, ROOM)
        return reservation

    def _commit(self, reservation: _core.Reservation, timeout: float | None) -> None:
        self._put(reservation, timeout)

    def _claim(self, timeout: float | None, lease: float, given: Prefetched | None) -> Claim:
        claim = None
        with contextlib.suppress(QueueBusy):
            claim = self._native.claim_now(lease, False)
        if claim is None:
            waited = self._again(functools.partial(self._native.wait_claim, lease), timeout)
            if waited is None:
                raise stopped_wait(self._name)
            if waited is False:
                self._timed_out(timeout, ITEMS)
            claim = waited
        return Claim.of(self.name, claim, given)

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
    """Opens a queue as :func:`shmrpc.queue` does, whose methods block the thread that calls them."""
    return BlockingQueue._of(opened_queue(name, maxsize, max_memory, max_deliveries, raw), codec)
