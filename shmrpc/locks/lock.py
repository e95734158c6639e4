"""Locks: one task or thread of all processes is the holder."""

from __future__ import annotations

from typing import Self

from shmrpc.basics.checks import check_flag, public_class, public_name
from shmrpc.locks.permit_handle import AsyncPermitHandle, BlockingPermitHandle, PermitHandle
from shmrpc.objects.handle import open_object


class LockBase(PermitHandle):
    """The part of a lock that is the same in loops and in threads."""

    @public_name("Lock")
    def __new__(cls, name: str, *, reentrant: bool = False) -> Self:
        """Open the lock, and make it if no process has it open. Raises TypeError unless ``reentrant`` is a bool."""
        check_flag("reentrant", reentrant)
        return cls._wrap(open_object(name, "lock", 1), reentrant)

    def _timeout_cause(self) -> str:
        return "the lock was not free"


@public_class("shmrpc.Lock")
class Lock(LockBase, AsyncPermitHandle):
    """A lock, which all processes that open its name share, and one task or thread holds.

    ``async with shmrpc.Lock("config"): ...`` in an event loop, ``with`` in a thread without one. The holder is the task
    or thread that calls ``acquire()``. If the process of the holder dies, or closes its last handle of the lock, the
    lock is free again; a task or thread that ends without ``release()`` keeps it. With ``reentrant=True`` the holder
    may acquire the lock again, and releases it as many times; otherwise a second ``acquire()`` raises
    LocalProtocolError, because the holder would wait for itself. ``release()`` raises LocalProtocolError in any task or
    thread but the holder. ``with`` does so too where it would have to wait in the thread of an event loop.

    Raises as :class:`Semaphore` does.
    """


@public_class("shmrpc.sync.Lock")
class BlockingLock(LockBase, BlockingPermitHandle):
    """A :class:`shmrpc.Lock` whose methods block the thread that calls them."""
