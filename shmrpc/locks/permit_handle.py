"""Handles of objects with permits: semaphores and locks, which are acquired and released."""

from __future__ import annotations

import functools
from collections.abc import Coroutine
from typing import Any, Literal, NoReturn, Self

from shmrpc._core import Permits, SharedObject
from shmrpc.basics.drivers import OpenOnAwait, ThreadsOnly
from shmrpc.errors import LocalProtocolError
from shmrpc.objects.arguments import check_timeout
from shmrpc.objects.handle import Handle


class PermitHandle(Permits, Handle):
    """A handle of an object whose permits are acquired and released."""

    def locked(self) -> bool:
        """Return True if no permit is free, also for the holder of a reentrant lock, who could acquire it again.

        Raises LocalProtocolError if the handle is closed.
        """
        return self._locked()

    @classmethod
    def _wrap(cls, shared_object: SharedObject, reentrant: bool = False) -> Self:
        """Make a handle of an object that this process has opened; ``reentrant`` as for :class:`Lock`."""
        handle = Permits.__new__(cls, shared_object, reentrant)
        handle._bind(shared_object)
        return handle

    def _refuse_to_block(self) -> NoReturn:
        """Raise the LocalProtocolError for ``with`` in the thread of an event loop."""
        raise LocalProtocolError(
            f"{self._object.kind} {self.name!r}: 'with' would block the event loop of this thread; use 'async with'"
        )


class BlockingPermitHandle(ThreadsOnly, PermitHandle):
    """A handle whose permits threads acquire and release."""

    acquire = Permits._acquire


class AsyncPermitHandle(OpenOnAwait, PermitHandle):
    """A handle whose permits tasks acquire and release, and ``with`` in threads without an event loop."""

    __aenter__ = Permits._aenter
    __aexit__ = Permits._aexit

    def acquire(self, timeout: float | None = None) -> Coroutine[Any, Any, Literal[True]]:
        """Wait for a permit, acquire it and return True. A cancelled call acquires none.

        ``timeout`` is in seconds; None waits without a limit. The holder of a lock is the task that calls this method,
        whichever task awaits it. So ``wait_for``, ``gather``, ``shield`` and ``create_task`` may run the coroutine.

        Raises WaitTimeout, which names the holders, WaitStopped after :meth:`stop`, SharedMemoryError if too many loops
        and threads wait, and LocalProtocolError if the handle is closed, or if the task holds the lock and it is not
        reentrant. The caller calls :meth:`release` in the same task.
        """
        acquiring = self._acquire_for(self._owner(), check_timeout(timeout))
        # Python's warning of a coroutine that was never awaited shows this name.
        acquiring.__qualname__ = f"{type(self).__name__}.acquire"  # type: ignore[attr-defined]
        return acquiring

    async def _acquire_for(self, owner: int, timeout: float | None) -> Literal[True]:
        """Wait for a permit, acquire it on behalf of a task or thread, and return True.

        ``owner``: the number of that task or thread, from ``_owner()``; 0 for a semaphore. ``timeout`` is in seconds.
        Raises WaitTimeout, WaitStopped, SharedMemoryError if too many loops and threads wait, and LocalProtocolError.
        """
        if self._try(owner, True) or self._regain():
            return True
        is_other_task = owner != self._owner()  # The owner itself must not wait: it would wait for itself.
        if not self._try(owner, is_other_task):
            attempt = functools.partial(self._try, owner, is_other_task)
            insist = functools.partial(self._insist, owner, is_other_task)
            release = functools.partial(self._give_back, owner)
            await self._wait_in_loop(attempt, release, timeout, insist=insist)
        return True

    async def _enter(self, owner: int) -> None:
        """Wait without a limit for a permit and acquire it, for an ``async with`` that has found none free.

        The core calls this method by its name.
        """
        await self._acquire_for(owner, None)
