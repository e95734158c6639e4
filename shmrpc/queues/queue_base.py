"""The part of a queue that is the same in loops and in threads: the operations that do not wait."""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, Final, NoReturn, Self

from shmrpc import _core
from shmrpc.basics.checks import check_bytes, check_count, check_flag, check_many, check_real, public_class
from shmrpc.basics.renamed import RenamedMethod
from shmrpc.errors import QueueEmpty, QueueFull, WaitTimeout
from shmrpc.objects.arguments import MAX_ITEMS, check_item_count
from shmrpc.objects.handle import Handle, NotConstructible, closes_on_error, open_object, warn_of_discarded_items
from shmrpc.objects.not_copyable import NotCopyable
from shmrpc.objects.wait_queue import wait_stopped_error
from shmrpc.queues.claim import Claim
from shmrpc.queues.item_errors import item_decode_error, item_encode_error
from shmrpc.queues.queue_stats import HeldItem, QueueStats, WaitingItem, describe_claim_holders
from shmrpc.wire.codec import Codec, CodecName, exact_codec

_log = logging.getLogger("shmrpc")

#: The wait sets of a queue: for an item, for room, and until all items are done.
ITEMS: Final = 0
ROOM: Final = 1
DONE: Final = 2
#: The core returns this if there is no item.
NO_ITEM: Final = object()
#: The longest lease, in seconds. No program lives to see its end.
_LONGEST_LEASE: Final = 1e9


def open_queue(name: str, maxsize: int, max_memory: int | str, max_deliveries: int, raw: bool) -> _core.SharedObject:
    """Open a queue, and make it if no process has it open. The caller closes the object.

    Raises TypeError and ValueError for invalid options, and the errors of :func:`open_object`.
    """
    maxsize = check_count(f"queue {name!r}: maxsize", maxsize, 0, MAX_ITEMS)
    memory = check_bytes(f"queue {name!r}: max_memory", max_memory)
    max_deliveries = check_count(f"queue {name!r}: max_deliveries", max_deliveries, 0, MAX_ITEMS)
    check_flag(f"queue {name!r}: raw", raw)
    return open_object(name, "queue", memory, (maxsize, max_deliveries), raw)


def check_lease_timeout(timeout: float | None) -> float:
    """Return a lease timeout in seconds, from 1e-9 to 1e9, for the core; 0 for None. Clamps other positive numbers.

    Raises TypeError if the timeout is no number, and ValueError if it is not above 0.
    """
    if timeout is None:
        return 0.0
    check_real("lease_timeout", timeout, "a number of seconds (None: no limit)")
    if not timeout > 0:
        raise ValueError(f"lease_timeout: expected seconds above 0, got {timeout}")
    return float(max(min(timeout, _LONGEST_LEASE), 1e-9))


@public_class("shmrpc.DeadLetters", "queue.dead_letters", NotConstructible)
class DeadLetters(NotCopyable):
    """The dead letters of a queue: items that were delivered ``max_deliveries`` times and never acknowledged.

    No method waits. All raise LocalProtocolError if the handle of the queue is closed, and QueueBusy if a stopped
    process blocks the queue; those that return items raise DecodeError for one that cannot be read, which is then lost.
    """

    def __init__(self, queue: QueueBase) -> None:
        self._queue = queue

    def __repr__(self) -> str:
        return f"<shmrpc dead letters of {self._queue.name!r}>"

    def _copy_remedy(self) -> tuple[str, str]:
        what, instead = self._queue._copy_remedy()
        return f"dead_letters of {what}", instead

    def qsize(self) -> int:
        """Return the number of dead letters."""
        return self._queue.stats().dead

    def get_nowait(self) -> Any:
        """Remove the first dead letter and return it. Raises QueueEmpty."""
        return self.get_many_nowait(1)[0]

    def get_many_nowait(self, max_items: int = 256) -> list[Any]:
        """Remove up to ``max_items`` dead letters and return them. Raises QueueEmpty if there is none."""
        got = self._queue._native.get_many_now(check_item_count(max_items), True)
        if not got:
            raise QueueEmpty(f"queue {self._queue.name!r} has no dead letters")
        return got

    def claim_nowait(self) -> Claim:
        """Claim the first dead letter. Only an acknowledgement removes it from the dead letters: nack() returns it.

        The claim has no lease. Raises QueueEmpty, and SharedMemoryError if the queue has too many claims.
        """
        claim = self._queue._native.claim_now(0.0, True)
        if claim is None:
            raise QueueEmpty(f"queue {self._queue.name!r} has no dead letters")
        return Claim.of(self._queue.name, claim)


class QueueBase(NotConstructible, Handle):
    """The part of a queue that is the same in loops and in threads.

    Methods raise LocalProtocolError if the handle is closed, and QueueBusy if a stopped process blocks the queue.
    """

    _constructor_name = "queue"
    _native: _core.Queue
    _codec: Codec
    _lost: int
    #: Functions that wake the iterators of claims that wait for the end of a claim.
    _claim_wakers: set[Callable[[], object]]

    @classmethod
    @closes_on_error
    def _wrap(cls, shared_object: _core.SharedObject, codec: CodecName = "msgspec") -> Self:
        """Make a handle of a queue that this process has opened, and close the object after an error.

        Logs a warning if items are lost. Raises ValueError for an unknown codec.
        """
        handle = super()._wrap(shared_object)
        values = exact_codec(codec)
        handle._codec = values
        handle._native = _core.Queue(
            shared_object,
            values.encoder,
            values.encode,
            values.decode,
            values.decode_own,
            functools.partial(item_encode_error, shared_object.name),
            functools.partial(item_decode_error, shared_object.name),
        )
        handle._claim_wakers = set()
        handle._lost = handle._native.take_lost()
        if handle._lost:
            _log.warning(
                "queue %r: %d items are lost: all processes that had it open were killed",
                shared_object.name,
                handle._lost,
            )
        return handle

    def _check_can_reserve(self) -> None:
        """Raise QueueShutDown if the queue is shut down, and LocalProtocolError if the handle is closed."""
        self._native.check_may_put()

    def _encode_error(self, error: Exception) -> Exception:
        """Return the exception to raise for an item whose encoding has raised ``error``."""
        return item_encode_error(self.name, error)

    @property
    def maxsize(self) -> int:
        """The limit of waiting items; 0 for none."""
        return self._object.bounds[0]

    @property
    def max_memory(self) -> int:
        """The limit of the bytes of its items."""
        return self._object.amount

    @property
    def raw(self) -> bool:
        """True if its items are bytes, as opened with ``raw=True``."""
        return self._object.is_raw

    @property
    def lost(self) -> int:
        """The number of items that were lost before this process opened the queue.

        Items are lost if all processes that have the queue open are killed. Only the first process that opens the queue
        after that sees the number; the next one sees 0.
        """
        return self._lost

    @property
    def is_shutdown(self) -> bool:
        """True if the queue is shut down, so that no item can be put; waiting items can still be got."""
        return self._native.is_shut()

    @property
    def dead_letters(self) -> DeadLetters:
        """The items that were delivered ``max_deliveries`` times and never acknowledged."""
        return DeadLetters(self)

    def qsize(self) -> int:
        """Return the number of items that wait now; claimed ones do not count."""
        return self._native.qsize()

    def empty(self) -> bool:
        """Return True if no item waits now."""
        return self.qsize() == 0

    def full(self) -> bool:
        """Return True if ``maxsize`` items wait now; False if there is no such limit, also if the memory is full."""
        return 0 < self.maxsize <= self.qsize()

    def put_nowait(self, item: Any) -> None:
        """Put an item. Raises QueueFull if there is no room, ValueError if there can never be room, and QueueShutDown.

        Raises EncodeError if the item cannot be encoded. After an error nothing was put.
        """
        if self._native.put_now(item) is not None:
            raise QueueFull(self._describe_full("now"))

    def put_many_nowait(self, items: Iterable[Any]) -> None:
        """Put items that stay together: all, or none.

        Raises as :meth:`put_nowait` does, ValueError also for more than ``maxsize`` items, and TypeError for a str or
        bytes in place of an iterable.
        """
        check_many("put_many_nowait()", items)
        if self._native.put_many_now(items) is not None:
            raise QueueFull(self._describe_full("now"))

    def get_nowait(self) -> Any:
        """Remove the first item and return it. Raises QueueEmpty, or QueueShutDown if the queue is shut down and empty.

        Raises DecodeError for an item that this process cannot read. That item is lost; claim() would keep it.
        """
        item = self._native.get_now(NO_ITEM)
        if item is NO_ITEM:
            raise QueueEmpty(f"queue {self.name!r} is empty")
        return item

    def get_many_nowait(self, max_items: int = 256) -> list[Any]:
        """Remove up to ``max_items`` items that follow each other, and return them, at least one.

        Returns fewer if they have many bytes, or if one that cannot be read follows. Raises as :meth:`get_nowait` does.
        """
        items = self._native.get_many_now(check_item_count(max_items), False)
        if not items:
            raise QueueEmpty(f"queue {self.name!r} is empty")
        return items

    def claim_nowait(self, *, lease_timeout: float | None = None) -> Claim:
        """Claim the first item. ``lease_timeout``: seconds after which the claim ends by itself; None: no limit.

        Raises QueueEmpty, QueueShutDown if the queue is shut down and empty, and SharedMemoryError if the queue has too
        many claims.
        """
        claim = self._native.claim_now(check_lease_timeout(lease_timeout), False)
        if claim is None:
            raise QueueEmpty(f"queue {self.name!r} is empty")
        return Claim.of(self.name, claim)

    def peek(self, max_items: int = 1) -> list[WaitingItem]:
        """Return copies of the first items, at most ``max_items``, and leave the items in the queue.

        Returns fewer if they have many bytes, about 256 KiB in all, and none if the queue is empty, also once it is
        shut down. An item that cannot be read has its error in ``error``.
        """
        return [
            WaitingItem(number, deliveries, size, not (value or error), value[0] if value else None, error)
            for number, deliveries, size, value, error in self._native.peek(check_item_count(max_items))
        ]

    def task_done(self, count: int = 1) -> None:
        """Mark ``count`` items that this process has got as done, for :meth:`join`. Claimed items need no such call.

        The death of a process marks its items as done. Raises ValueError, and marks none, if this process has fewer
        unfinished items.
        """
        count = check_count(f"queue {self.name!r}: task_done(): count", count, 0)
        if not self._native.task_done(min(count, MAX_ITEMS)):
            raise ValueError(
                f"queue {self.name!r}: task_done() was called too many times: this process has fewer than {count}"
                " unfinished items from get()"
            )

    def shutdown(self, immediate: bool = False) -> None:
        """Shut the queue down for all processes: putting raises QueueShutDown, and so does getting once it is empty.

        ``immediate``: drop the items that wait, and those whose claims end without an acknowledgement. Claimed items
        can still be acknowledged. Idempotent; cannot be undone.
        """
        self._native.shut_down(immediate)

    def close(self) -> None:
        """Close the handle. Idempotent. Waits and iterators of claims end with LocalProtocolError.

        With its last handle, this process leaves the queue, and the items that it has claimed return. When the last
        process closes the queue, the queue is deleted, and the log ``shmrpc`` warns of items in it.
        """
        super().close()
        self._wake_iterators()
        warn_of_discarded_items()

    def stop(self) -> None:
        """End all waits of this handle, present and future ones, with WaitStopped, until :meth:`resume`.

        Iterators of claims end so, too. Any thread may call this. Raises LocalProtocolError if the handle is closed.
        """
        super().stop()
        self._wake_iterators()

    if not TYPE_CHECKING:  # A type checker knows that these are no attributes.
        stop_waits = RenamedMethod("stop()")
        resume_waits = RenamedMethod("resume()")

    def _wake_iterators(self) -> None:
        """Have the iterators of claims check whether they may still wait. Any thread may call this."""
        for wake in list(self._claim_wakers):
            wake()

    def _check_can_wait(self) -> None:
        """Raise WaitStopped after :meth:`stop`, and LocalProtocolError if the handle is closed."""
        if self._object.is_stopped:
            raise wait_stopped_error(self._object)
        self._native.qsize()

    def stats(self) -> QueueStats:
        """Return counts of items and waiters, and the claims of all processes that have not ended."""
        counts = self._native.stats()
        getters, putters, _ = counts.pop("waiters")
        held = [HeldItem(*each) for each in counts.pop("held")]
        return QueueStats(
            **counts, held=held, getters=getters, putters=putters, max_memory=self.max_memory, maxsize=self.maxsize
        )

    def _raise_timeout(self, timeout: float | None, wait_set: int) -> NoReturn:
        """Raise QueueFull, QueueEmpty or, for join(), WaitTimeout; the text has counts and the holders of claims.

        ``timeout`` is in seconds, and not None. Raises the errors of :meth:`stats` instead if that fails.
        """
        stats = self.stats()
        if wait_set == ROOM:
            raise QueueFull(self._describe_full(f"for {timeout:g} s"))
        if wait_set == ITEMS:
            raise QueueEmpty(f"queue {self.name!r}: no item came within {timeout:g} s{describe_claim_holders(stats)}")
        undone = "1 item was" if stats.unfinished == 1 else f"{stats.unfinished} items were"
        # get() has removed the unfinished items that neither wait nor are claimed.
        removed = stats.unfinished - stats.depth - len(stats.held)
        forgotten = f"; task_done() was not called for {removed} that get() has removed" if removed > 0 else ""
        raise WaitTimeout(
            f"queue {self.name!r}: {undone} not done within {timeout:g} s{describe_claim_holders(stats)}{forgotten}"
        )

    def _describe_full(self, since: str) -> str:
        """Return the text of QueueFull; ``since`` is "now" or the time of the wait."""
        stats = self.stats()
        of = f" of {self.maxsize}" if self.maxsize else ""
        waiting = "item waits" if stats.depth == 1 and not of else "items wait"
        return (
            f"queue {self.name!r} had no room {since}: {stats.depth}{of} {waiting}, with {stats.used} of"
            f" {self.max_memory} bytes{describe_claim_holders(stats)}"
        )
