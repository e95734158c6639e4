"""Transactions of a store: several operations that take effect together or not at all."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from types import TracebackType
from typing import Any, Final, NoReturn, Protocol, Self

from shmrpc import _core
from shmrpc.basics.timeouts import end_of_wait, seconds_left
from shmrpc.errors import LocalProtocolError, StoreBusy, WaitTimeout
from shmrpc.objects.wait_queue import WaitQueue, wait_stopped_error

#: The number of the wait set for the end of a transaction.
_TRANSACTION_END = 0
#: Seconds between two attempts to begin while another process is within a single operation.
_RETRY_INTERVAL: Final = 0.01


class TransactionOwner(Protocol):
    """A handle or the context of a store, as its transactions need it."""

    _object: _core.SharedObject

    @property
    def _store_ref(self) -> _core.StoreRef: ...
    def _wait_queue(self, wait_set: int, kind: type[WaitQueue]) -> WaitQueue: ...
    def _raise_wait_failed(self, waited: bool | None, timeout: float | None, wait_set: int) -> NoReturn: ...


class Transaction(_core.Transaction):
    """A transaction that ``with`` begins and ends in threads, and ``async with`` in loops.

    The end of the block commits the changes; if the block raises, they are undone. An object is for one block at a
    time: otherwise the beginning raises LocalProtocolError. In an event loop, ``with`` raises LocalProtocolError
    where it would have to wait for another transaction.
    """

    __slots__ = ("_store", "_timeout")

    _store: TransactionOwner
    _timeout: float | None

    @classmethod
    def of(cls, store: TransactionOwner, timeout: float | None, joins: bool = False) -> Self:
        """Make a transaction, which has not begun. ``timeout``: the longest wait in seconds; None: no limit.

        ``joins``: become a part of a transaction of this task or thread, if there is one; an error then undoes only the
        changes of this part, and a failed wait raises StoreBusy in place of WaitTimeout.
        """
        made = cls.__new__(cls, store._store_ref, store._object, joins)
        made._store = store
        made._timeout = timeout
        return made

    def _refuse_to_block(self) -> NoReturn:
        """Raise the LocalProtocolError for ``with`` in the thread of an event loop."""
        name = self._store._object.name
        raise LocalProtocolError(
            f"store {name!r}: another task, thread or process is within a transaction, and 'with' would block the event"
            " loop of this thread; use 'async with'"
        )

    def _raise_wait_failed(self, waited: bool | None, timeout: float | None, is_single: bool) -> NoReturn:
        """Raise the error for a wait that failed: WaitStopped if ``waited`` is None, else WaitTimeout.

        Raises StoreBusy instead of WaitTimeout for a single operation (``is_single``).
        """
        try:
            self._store._raise_wait_failed(waited, timeout, _TRANSACTION_END)
        except WaitTimeout as error:
            if is_single:
                raise StoreBusy(str(error)) from None
            raise

    def __aenter__(self) -> Coroutine[Any, Any, None]:
        self._own()
        return self._enter()

    async def _enter(self) -> None:
        """Wait until the transaction has begun; end it if the wait fails or is cancelled.

        Raises the errors of ``_wait_to_begin()``.
        """
        try:
            await self._wait_to_begin()
        except BaseException:
            self._end(False)
            raise

    async def _wait_to_begin(self) -> None:
        """Wait for the end of other transactions, and begin.

        Raises WaitTimeout, WaitStopped, and LocalProtocolError, for example if the handle is closed.
        """
        end = end_of_wait(self._timeout)
        while not self._begin():
            left = seconds_left(end)
            if not self._is_late:
                queue = self._store._wait_queue(_TRANSACTION_END, WaitQueue)
                is_over = not await queue.wait(self._begin_or_leave, self._undo, left)
                if self._has_begun:
                    return
            else:
                if self._store._object.is_stopped:
                    raise wait_stopped_error(self._store._object)
                is_over = left == 0
                await asyncio.sleep(_RETRY_INTERVAL if left is None else min(left, _RETRY_INTERVAL))
            if is_over:
                self._raise_wait_failed(False, self._timeout, False)

    def _begin_or_leave(self) -> bool:
        """Begin the transaction, and return True; also return True if the task must poll instead of waiting.

        The task polls while another process is within a single operation, whose end wakes no waiter.
        """
        return self._begin() or self._is_late

    def _undo(self) -> None:
        """End a transaction that has begun for a cancelled task."""
        self._end(False)

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._end(error is None)
