"""What queues are in loops and in threads alike: all that does not wait."""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable, Iterable
from typing import Any, Final, NoReturn, Self

from shmrpc import _core
from shmrpc.basics.checks import check_bytes, check_count, check_flag, check_many, check_real, public_class
from shmrpc.errors import QueueEmpty, QueueFull, WaitTimeout
from shmrpc.objects.arguments import MAX_ITEMS, check_item_count
from shmrpc.objects.handle import Handle, Made, closes_on_error, opened, warn_of_dropped
from shmrpc.objects.not_copyable import Uncopied
from shmrpc.objects.wait_queue import stopped_wait
from shmrpc.queues.claim import Claim
from shmrpc.queues.item_errors import undecodable, unencodable
from shmrpc.queues.queue_stats import HeldItem, QueueStats, WaitingItem, holders
from shmrpc.wire.codec import Codec, CodecName, exact_codec

_log = logging.getLogger("shmrpc")

#: The wait sets of a queue: those that wait for an item, for room, and until all is done.
ITEMS: Final = 0
ROOM: Final = 1
DONE: Final = 2
#: Instead of an item, if there is none.
NOTHING: Final = object()
#: Seconds of a lease that never ends.
_LONGEST_LEASE: Final = 1e9


def opened_queue(name: str, maxsize: int, max_memory: int | str, max_deliveries: int, raw: bool) -> _core.Name:
    """Opens a queue, and makes it if nobody else has. Raises TypeError and ValueError for what no queue can be."""
    maxsize = check_count(f"queue {name!r}: maxsize", maxsize, 0, MAX_ITEMS)
    memory = check_bytes(f"queue {name!r}: max_memory", max_memory)
    max_deliveries = check_count(f"queue {name!r}: max_deliveries", max_deliveries, 0, MAX_ITEMS)
    check_flag(f"queue {name!r}: raw", raw)
    return opened(name, "queue", memory, (maxsize, max_deliveries), raw)


def lease_of(timeout: float | None) -> float:
    """A lease_timeout as the core has it: 0 for none. Raises TypeError or ValueError if it is no time."""
    if timeout is None:
        return 0.0
    check_real("lease_timeout", timeout, "a number of seconds (None: no limit)")
    if not timeout > 0:
        raise ValueError(f"lease_timeout: expected seconds above 0, got {timeout}")
    return float(max(min(timeout, _LONGEST_LEASE), 1e-9))


@public_class("shmrpc.DeadLetters", "queue.dead_letters", Made)
class DeadLetters(Uncopied):
    """The items of a queue that were delivered ``max_deliveries`` times and never acknowledged."""

    def __init__(self, queue: QueueBase) -> None:
        self._queue = queue

    def __repr__(self) -> str:
        return f"<shmrpc dead letters of {self._queue.name!r}>"

    def _what_instead(self) -> tuple[str, str]:
        what, instead = self._queue._what_instead()
        return f"dead_letters of {what}", instead

    def qsize(self) -> int:
        """How many there are."""
        return self._queue.stats().dead

    def get_nowait(self) -> Any:
        """Removes the first one and returns it. Raises QueueEmpty."""
        return self.get_many_nowait(1)[0]

    def get_many_nowait(self, most: int = 256) -> list[Any]:
        """Removes up to ``most`` of them and returns them. Raises QueueEmpty if there is none."""
        got = self._queue._native.get_many_now(check_item_count(most), True)
        if not got:
            raise QueueEmpty(f"queue {self._queue.name!r} has no dead letters")
        return got

    def claim_nowait(self) -> Claim:
        """Claims the first one: it stays a dead letter if it is not acknowledged. Raises QueueEmpty."""
        claim = self._queue._native.claim_now(0.0, True)
        if claim is None:
            raise QueueEmpty(f"queue {self._queue.name!r} has no dead letters")
        return Claim.of(self._queue.name, claim)


class QueueBase(Made, Handle):
    """What a queue is in loops and in threads alike."""

    _made_by = "queue"
    _native: _core.Queue
    _codec: Codec
    _lost: int
    #: What wakes the iterators of claims that wait until one has ended.
    _wakes: set[Callable[[], object]]

    @classmethod
    @closes_on_error
    def _of(cls, name: _core.Name, codec: CodecName = "msgspec") -> Self:
        """Makes a handle of a queue that this process has opened."""
        handle = super()._of(name)
        values = exact_codec(codec)
        handle._codec = values
        handle._native = _core.Queue(
            name,
            values.encoder,
            values.encode,
            values.decode,
            values.decode_own,
            functools.partial(unencodable, name.name),
            functools.partial(undecodable, name.name),
        )
        handle._wakes = set()
        handle._lost = handle._native.take_lost()
        if handle._lost:
            _log.warning(
                "queue %r: %d items are lost: all processes that had it open were killed", name.name, handle._lost
            )
        return handle

    def _check_may_reserve(self) -> None:
        self._native.check_may_put()

    def _unencodable(self, error: Exception) -> Exception:
        return unencodable(self.name, error)

    @property
    def maxsize(self) -> int:
        """How many items may wait; 0: any number."""
        return self._name.bounds[0]

    @property
    def max_memory(self) -> int:
        """How many bytes of memory its items may have."""
        return self._name.amount

    @property
    def raw(self) -> bool:
        """Whether its items are bytes."""
        return self._name.is_raw

    @property
    def lost(self) -> int:
        """How many items were lost before this process opened the queue, since all that had it open were killed.

        That is counted once: the next one that opens it is told 0.
        """
        return self._lost

    @property
    def is_shutdown(self) -> bool:
        """True if the queue is shut down: nothing more is put."""
        return self._native.is_shut()

    @property
    def dead_letters(self) -> DeadLetters:
        """The items that were delivered ``max_deliveries`` times in vain."""
        return DeadLetters(self)

    def qsize(self) -> int:
        """How many items wait now: claimed ones do not."""
        return self._native.qsize()

    def empty(self) -> bool:
        """Whether no item waits now."""
        return self.qsize() == 0

    def full(self) -> bool:
        """Whether ``maxsize`` items wait now."""
        return 0 < self.maxsize <= self.qsize()

    def put_nowait(self, item: Any) -> None:
        """Puts an item. Raises QueueFull if there is no room, QueueShutDown, and ValueError if there can never be."""
        if self._native.put_now(item) is not None:
            raise QueueFull(self._why_full("now"))

    def put_many_nowait(self, items: Iterable[Any]) -> None:
        """Puts items that stay together: all, or none. Raises as :meth:`put_nowait` does."""
        check_many("put_many_nowait()", items)
        if self._native.put_many_now(items) is not None:
            raise QueueFull(self._why_full("now"))

    def get_nowait(self) -> Any:
        """Removes the first item and returns it. Raises QueueEmpty, and QueueShutDown if nothing will come.

        Raises DecodeError for an item that this process cannot read, which is gone then: a claimed one is not.
        """
        item = self._native.get_now(NOTHING)
        if item is NOTHING:
            raise QueueEmpty(f"queue {self.name!r} is empty")
        return item

    def get_many_nowait(self, most: int = 256) -> list[Any]:
        """Removes up to ``most`` items that follow each other and returns them. Raises as :meth:`get_nowait` does."""
        items = self._native.get_many_now(check_item_count(most), False)
        if not items:
            raise QueueEmpty(f"queue {self.name!r} is empty")
        return items

    def claim_nowait(self, *, lease_timeout: float | None = None) -> Claim:
        """Claims the first item. Raises as :meth:`get_nowait` does."""
        claim = self._native.claim_now(lease_of(lease_timeout), False)
        if claim is None:
            raise QueueEmpty(f"queue {self.name!r} is empty")
        return Claim.of(self.name, claim)

    def peek(self, most: int = 1) -> list[WaitingItem]:
        """Looks at up to ``most`` items that are the next to be got, and leaves them where they are.

        Fewer, if they are many bytes: about 256 KiB are looked at.
        """
        return [
            WaitingItem(number, deliveries, size, not (value or error), value[0] if value else None, error)
            for number, deliveries, size, value, error in self._native.peek(check_item_count(most))
        ]

    def task_done(self, count: int = 1) -> None:
        """Says of items that this process has got that they were dealt with, for :meth:`join`. A claim says so itself.

        What a process has got counts as dealt with when it dies. Raises ValueError if it has not got that many.
        """
        count = check_count(f"queue {self.name!r}: task_done(): count", count, 0)
        if not self._native.task_done(min(count, MAX_ITEMS)):
            raise ValueError(
                f"queue {self.name!r}: task_done() was called for {count} items, which is more than this process has"
                " got, and has not said so of"
            )

    def shutdown(self, immediate: bool = False) -> None:
        """Lets nothing more be put, by anybody: QueueShutDown is raised instead, and to getters once it is empty.

        With ``immediate`` the items that wait are dropped. What is claimed may still be acknowledged.
        """
        self._native.shut_down(immediate)

    def close(self) -> None:
        """Closes it, as other names are; an iterator of claims ends with LocalProtocolError.

        With the last process that has it open the queue is gone: the log ``shmrpc`` warns of items that waited in it.
        """
        super().close()
        self._wake_iterators()
        warn_of_dropped()

    def stop(self) -> None:
        """As :meth:`stop_waits`."""
        super().stop()
        self._wake_iterators()

    def _wake_iterators(self) -> None:
        for wake in list(self._wakes):
            wake()

    def _check_waits(self) -> None:
        """Raises WaitStopped after :meth:`stop_waits`, and LocalProtocolError if it is closed."""
        if self._name.is_stopped:
            raise stopped_wait(self._name)
        self._native.qsize()

    def stop_waits(self) -> None:
        """Ends all waits of this handle, and those that begin from now on, with WaitStopped."""
        self.stop()

    def resume_waits(self) -> None:
        """Lets this handle wait again after :meth:`stop_waits`."""
        self.resume()

    def stats(self) -> QueueStats:
        """What can be seen of it: how much waits, who holds what, who waits."""
        found = self._native.stats()
        getters, putters, _ = found.pop("waiters")
        held = [HeldItem(*each) for each in found.pop("held")]
        return QueueStats(
            **found, held=held, getters=getters, putters=putters, max_memory=self.max_memory, maxsize=self.maxsize
        )

    def _timed_out(self, timeout: float | None, place: int) -> NoReturn:
        stats = self.stats()
        if place == ROOM:
            raise QueueFull(self._why_full(f"for {timeout:g} s"))
        if place == ITEMS:
            raise QueueEmpty(f"queue {self.name!r}: no item came within {timeout:g} s{holders(stats)}")
        undone = "1 item was" if stats.unfinished == 1 else f"{stats.unfinished} items were"
        # Items that neither wait nor are claimed were removed by get().
        gotten = stats.unfinished - stats.depth - len(stats.held)
        forgotten = f"; task_done() was not called for {gotten} that get() has removed" if gotten > 0 else ""
        raise WaitTimeout(f"queue {self.name!r}: {undone} not done within {timeout:g} s{holders(stats)}{forgotten}")

    def _why_full(self, since: str) -> str:
        stats = self.stats()
        of = f" of {self.maxsize}" if self.maxsize else ""
        waiting = "item waits" if stats.depth == 1 and not of else "items wait"
        return (
            f"queue {self.name!r} had no room {since}: {stats.depth}{of} {waiting}, with {stats.used} of"
            f" {self.max_memory} bytes{holders(stats)}"
        )
