"""Semaphores: permits that are free again when their holder dies."""

from __future__ import annotations

from typing import TYPE_CHECKING, Self

from shmrpc.basics.checks import check_count, public_class, public_name
from shmrpc.basics.renamed import RenamedMethod
from shmrpc.locks.permit_handle import AsyncPermitHandle, BlockingPermitHandle, PermitHandle
from shmrpc.objects.handle import open_object


class SemaphoreBase(PermitHandle):
    """The part of a semaphore that is the same in loops and in threads."""

    @public_name("Semaphore")
    def __new__(cls, name: str, permits: int = 1) -> Self:
        """Open the semaphore, and make it, with all permits free, if no process has it open.

        Raises TypeError or ValueError for a number of permits that is not from 1 to 65536.
        """
        permits = check_count(f"semaphore {name!r}: permits", permits, 1, 65536)
        return cls._wrap(open_object(name, "semaphore", permits))

    @property
    def permits(self) -> int:
        """The number of permits, free and acquired."""
        return self._object.amount

    if not TYPE_CHECKING:  # A type checker knows that these are no attributes.
        signal = RenamedMethod("signal() of a shmrpc.Signal")
        wait = RenamedMethod("wait() of a shmrpc.Signal")
        drain = RenamedMethod("drain() of a shmrpc.Signal")

    def _timeout_cause(self) -> str:
        return "no permit was free" if self.permits > 1 else "its permit was not free"


@public_class("shmrpc.Semaphore")
class Semaphore(SemaphoreBase, AsyncPermitHandle):
    """A semaphore, which all processes that open its name share.

    ``permits``: the number of permits, from 1 to 65536. The first process to open the name makes the semaphore; later
    ones pass the same number. A permit belongs to the process that has acquired it, also if the handle is
    garbage-collected; if the process dies, or closes its last handle of the semaphore, the permit is free again.

    ``async with gate: ...`` holds a permit, and so does ``with gate: ...`` in a thread without an event loop; the
    methods of :class:`shmrpc.sync.Semaphore` block a thread. Waiters acquire permits in the order of their arrival; a
    caller that finds a permit free acquires it at once.

    Raises NameConflict if the name is open as something else or with another number, SharedMemoryError if there is no
    room, LocalProtocolError if the directory of shared objects is not safe, WaitTimeout if a stopped process is opening
    or closing the object, RemoteProtocolError if another version of shmrpc has made it, and TypeError or ValueError for
    an invalid name or number.
    """


@public_class("shmrpc.sync.Semaphore")
class BlockingSemaphore(SemaphoreBase, BlockingPermitHandle):
    """A :class:`shmrpc.Semaphore` whose methods block the thread that calls them."""
