"""Locks: one holder in all processes, which is a task or a thread."""

from __future__ import annotations

from typing import Self

from shmrpc.basics.checks import check_flag, public_class, public_name
from shmrpc.objects.handle import AwaitedHeld, BlockingHeld, Held, opened


class LockBase(Held):
    """What a lock is in loops and in threads alike."""

    @public_name("Lock")
    def __new__(cls, name: str, *, reentrant: bool = False) -> Self:
        """Open the lock, and make it if nobody else has."""
        check_flag("reentrant", reentrant)
        return cls._of(opened(name, "lock", 1), reentrant)

    def _in_vain(self) -> str:
        return "the lock was not free"


@public_class("shmrpc.Lock")
class Lock(LockBase, AwaitedHeld):
    """A lock of all processes that open its name, held by one task or thread of one of them.

    ``async with shmrpc.Lock("config"): ...`` in an event loop, ``with`` in a thread without one. Its holder is the task
    or thread that calls ``acquire()``. If the process of the holder dies, or closes its last handle of the lock, the
    lock is free again. With ``reentrant`` its holder may acquire it again, and releases it as
    often; else that is a LocalProtocolError, since it would wait for itself.

    Raises as :class:`Semaphore` does.
    """


@public_class("shmrpc.sync.Lock")
class BlockingLock(LockBase, BlockingHeld):
    """A :class:`shmrpc.Lock` whose methods block the thread that calls them."""
