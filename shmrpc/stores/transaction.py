"""Transactions of a store: many operations of which all are done, or none."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Coroutine
from types import TracebackType
from typing import Any, Final, NoReturn, Protocol, Self

from shmrpc import _core
from shmrpc.errors import LocalProtocolError, StoreBusy, WaitTimeout
from shmrpc.objects.wait_queue import WaitQueue, wait_stopped_error

#: The wait set of those that wait for a transaction to end.
_LEASE = 0
#: Seconds until it is looked again whether a single operation of another process has ended.
_AGAIN: Final = 0.01


class Begins(Protocol):
    """A use of the name of a store, as its transactions need it."""

    _name: _core.SharedObject

    @property
    def _carrier(self) -> _core.StoreRef: ...
    def _wait_queue(self, place: int, kind: type[WaitQueue]) -> WaitQueue: ...
    def _raise_wait_failed(self, waited: bool | None, timeout: float | None, place: int) -> NoReturn: ...


class Transaction(_core.Transaction):
    """What ``transaction()`` of a store returns: ``with`` in threads, ``async with`` in loops."""

    __slots__ = ("_begins", "_timeout")

    _begins: Begins
    _timeout: float | None

    @classmethod
    def of(cls, begins: Begins, timeout: float | None, joins: bool = False) -> Self:
        """``joins``: within a transaction of this task or thread it is a part of that."""
        made = cls.__new__(cls, begins._carrier, begins._name, joins)
        made._begins = begins
        made._timeout = timeout
        return made

    def _refuse_to_block(self) -> NoReturn:
        name = self._begins._name.name
        raise LocalProtocolError(
            f"store {name!r}: another task, thread or process is within a transaction, and 'with' would block the event"
            " loop of this thread; use 'async with'"
        )

    def _raise_wait_failed(self, waited: bool | None, timeout: float | None, is_single: bool) -> NoReturn:
        """Raises what a wait ends with that was in vain. ``is_single``: to its caller it is one operation."""
        try:
            self._begins._raise_wait_failed(waited, timeout, _LEASE)
        except WaitTimeout as error:
            if is_single:
                raise StoreBusy(str(error)) from None
            raise

    def __aenter__(self) -> Coroutine[Any, Any, None]:
        self._own()
        return self._enter()

    async def _enter(self) -> None:
        try:
            await self._wait_to_begin()
        except BaseException:
            self._end(False)
            raise

    async def _wait_to_begin(self) -> None:
        end = None if self._timeout is None else time.monotonic() + self._timeout
        while not self._begin():
            left = None if end is None else max(0.0, end - time.monotonic())
            if not self._is_late:
                line = self._begins._wait_queue(_LEASE, WaitQueue)
                is_over = not await line.wait(self._begin_or_leave, self._undo, left)
                if self._has_begun:
                    return
            else:
                if self._begins._name.is_stopped:
                    raise wait_stopped_error(self._begins._name)
                is_over = left == 0
                await asyncio.sleep(_AGAIN if left is None else min(left, _AGAIN))
            if is_over:
                self._raise_wait_failed(False, self._timeout, False)

    def _begin_or_leave(self) -> bool:
        """Begin the transaction, or leave the line to try again: the end of a single operation wakes no waiter."""
        return self._begin() or self._is_late

    def _undo(self) -> None:
        self._end(False)

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._end(error is None)
