"""Claims: items of a queue that this process holds and has not acknowledged."""

from __future__ import annotations

from collections.abc import Callable
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from shmrpc import _core
from shmrpc.basics.checks import public_class
from shmrpc.basics.renamed import HideRenamed, RenamedMethod
from shmrpc.errors import LocalProtocolError, StaleClaim
from shmrpc.objects.not_copyable import NotCopyable
from shmrpc.queues.outstanding_claims import OutstandingClaims


@public_class("shmrpc.Claim", "queue.claim()")
class Claim(HideRenamed, NotCopyable):
    """An item that this process holds: no other process gets the item until the claim ends.

    ``ack()`` ends the claim and removes the item. ``nack()`` makes the item the first one of the queue again, and
    so does the death of this process, or the end of the last reference to the claim. Any thread may call both. A
    ``with`` block acknowledges the claim at its end, or calls ``nack()`` if it raises; it does nothing if ``ack()`` or
    ``nack()`` has ended the claim. After the lease, both still succeed until a process notices that it is over; then
    they raise StaleClaim, and so does the end of a block that has not raised. Both raise LocalProtocolError if the
    handle of the queue is closed, and QueueBusy if a stopped process blocks the queue for a second: the claim then
    stays.
    """

    #: Called once the claim has ended. None at first, because a signal handler may raise before ``of()`` sets it.
    _on_end: Callable[[], None] | None = None

    _queue_name: str
    _claim: _core.Claim

    @classmethod
    def of(cls, queue_name: str, claim: _core.Claim, outstanding: OutstandingClaims | None = None) -> Self:
        """Make a Claim of the core's claim, and add it to the outstanding claims of an iterator, if any.

        If a signal handler raises meanwhile, the item returns to the queue.
        """
        try:
            made: Self = object.__new__(cls)
            made._queue_name = queue_name
            made._claim = claim
            made._on_end = None if outstanding is None else outstanding.add()
            return made
        except BaseException:
            claim.nack()
            raise

    @property
    def value(self) -> Any:
        """The item. Arrays in it are read-only views of the queue's memory, and stay valid after the claim has ended.

        The first use reads the item. Raises LocalProtocolError after :meth:`ack` or :meth:`nack`, but not at the end of
        the lease, and DecodeError for an item that cannot be read, which stays claimed.
        """
        if not self._claim.is_held:
            raise LocalProtocolError(f"queue {self._queue_name!r}: the claim has ended; take its value before")
        return self._claim.value

    @property
    def redelivered(self) -> bool:
        """True if the item was delivered before this claim, and returned to the queue."""
        return self._claim.deliveries > 1

    @property
    def deliveries(self) -> int:
        """The number of deliveries of the item, including this one."""
        return self._claim.deliveries

    @property
    def number(self) -> int:
        """The item's position in the order in which all items were put, from 0 on."""
        return self._claim.number

    def ack(self) -> None:
        """Acknowledge the item: end the claim, and remove the item from the queue.

        Raises StaleClaim if the claim had ended before.
        """
        self._finish(self._claim.acknowledge())

    if not TYPE_CHECKING:  # A type checker knows that these are no attributes.
        give_back = RenamedMethod("nack()")

    def nack(self) -> None:
        """End the claim, and make the item the first one of the queue, or a dead letter after ``max_deliveries``.

        Raises StaleClaim if the claim had ended before.
        """
        self._finish(self._claim.nack())

    def _finish(self, was_held: bool) -> None:
        """Notify the iterator of claims. Raises StaleClaim if the claim had ended before: ``was_held`` is False."""
        if not was_held:
            raise StaleClaim(
                f"queue {self._queue_name!r}: the claim of item {self.number} had ended before: its lease_timeout was"
                " over, or it was acknowledged or put back already"
            )
        self._notify_end()

    def _notify_end(self) -> None:
        """Notify the iterator of claims that this one has ended. Idempotent."""
        notify = self._on_end
        if notify is not None:
            notify()  # If a signal handler raises here, the next call notifies again.
            self._on_end = None

    def _copy_remedy(self) -> tuple[str, str]:
        return (
            f"the claim of item {self.number} of queue {self._queue_name!r}",
            f"open the queue in the other process, by shmrpc.sync.queue({self._queue_name!r}), and claim items there;"
            " or pass the value",
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        if not self._claim.is_held:
            return
        if kind is None:
            self.ack()
        else:
            self._claim.nack()
            self._notify_end()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None
    ) -> None:
        self.__exit__(kind, error, tb)

    def __del__(self) -> None:
        self._notify_end()

    def __repr__(self) -> str:
        ended = "" if self._claim.is_held else ", ended"
        return f"<shmrpc claim of item {self.number} of queue {self._queue_name!r}{ended}>"
