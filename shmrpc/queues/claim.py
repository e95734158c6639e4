"""Claims: items of a queue that one process deals with."""

from __future__ import annotations

from collections.abc import Callable
from types import TracebackType
from typing import Any, Self

from shmrpc import _core
from shmrpc.basics.checks import public_class
from shmrpc.errors import LocalProtocolError, StaleClaim
from shmrpc.objects.not_copyable import Uncopied
from shmrpc.queues.outstanding_claims import Prefetched


@public_class("shmrpc.Claim", "queue.claim()")
class Claim(Uncopied):
    """An item that this process deals with, and nobody else meanwhile.

    ``ack()`` ends that: the item is gone. ``give_back()`` makes it the first item of the queue again, and so does the
    death of this process, or the end of the last reference to the claim. Both may be called in any thread. As a context
    manager it acknowledges at the end of the block, or gives the item back if that raises.
    """

    #: Called once the claim has ended. None at first: a signal handler may raise before it is set.
    _ended: Callable[[], None] | None = None

    _name: str
    _claim: _core.Claim

    @classmethod
    def of(cls, name: str, claim: _core.Claim, given: Prefetched | None = None) -> Self:
        """Make the claim of an item that this process holds; if that is interrupted, give the item back."""
        try:
            made: Self = object.__new__(cls)
            made._name = name
            made._claim = claim
            made._ended = None if given is None else given.add()
            return made
        except BaseException:
            claim.give_back()
            raise

    @property
    def value(self) -> Any:
        """The item. Arrays in it are read-only views of the queue's memory, which is theirs as long as they are there.

        Raises LocalProtocolError once the claim has ended.
        """
        if not self._claim.is_held:
            raise LocalProtocolError(f"queue {self._name!r}: the claim has ended; take its value before")
        return self._claim.value

    @property
    def redelivered(self) -> bool:
        """Whether the item was delivered before, and came back."""
        return self._claim.deliveries > 1

    @property
    def deliveries(self) -> int:
        """How often the item was delivered, this time among them."""
        return self._claim.deliveries

    @property
    def number(self) -> int:
        """The item's place in the order in which all items were put, from 0 on."""
        return self._claim.number

    def ack(self) -> None:
        """Ends the claim: the item was dealt with, and is never delivered again.

        Raises StaleClaim if the claim had ended before.
        """
        self._check(self._claim.acknowledge())

    def give_back(self) -> None:
        """Ends the claim: the item is the first one of the queue again. Raises StaleClaim if it had ended before."""
        self._check(self._claim.give_back())

    def _check(self, ended: bool) -> None:
        if not ended:
            raise StaleClaim(
                f"queue {self._name!r}: the claim of item {self.number} had ended before: its lease_timeout was over,"
                " or it was acknowledged or given back already"
            )
        self._end()

    def _end(self) -> None:
        ended = self._ended
        if ended is not None:
            ended()  # If a signal handler raises meanwhile, this is called again.
            self._ended = None

    def _what_instead(self) -> tuple[str, str]:
        return (
            f"the claim of item {self.number} of queue {self._name!r}",
            f"another process opens the queue by its name, shmrpc.sync.queue({self._name!r}), and claims what it deals"
            " with; or hand on the value",
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        if not self._claim.is_held:
            return
        if kind is None:
            self.ack()
        else:
            self._claim.give_back()
            self._end()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None
    ) -> None:
        self.__exit__(kind, error, tb)

    def __del__(self) -> None:
        self._end()

    def __repr__(self) -> str:
        held = "" if self._claim.is_held else ", ended"
        return f"<shmrpc claim of item {self.number} of queue {self._name!r}{held}>"
