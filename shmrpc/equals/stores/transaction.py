"""Transactions of a store: many operations of which all are done, or none."""

from __future__ import annotations

from collections.abc import Coroutine
from types import TracebackType
from typing import Any, NoReturn, Protocol, Self

from shmrpc import _core
from shmrpc.equals.line import Line
from shmrpc.errors import LocalProtocolError

#: The wait set of those that wait for a transaction to end.
_LEASE = 0


class Begins(Protocol):
    """A use of the name of a store, as its transactions need it."""

    _name: _core.Name

    @property
    def _carrier(self) -> _core.Carrier: ...
    def _line(self, place: int, kind: type[Line]) -> Line: ...
    def _gave_up(self, waited: bool | None, timeout: float | None, place: int) -> NoReturn: ...


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
            f"store {name!r}: another process is within a transaction, and 'with' would block the event loop of "
            "this thread; use 'async with'"
        )

    def _gave_up(self, waited: bool | None) -> NoReturn:
        self._begins._gave_up(waited, self._timeout, _LEASE)

    def __aenter__(self) -> Coroutine[Any, Any, None]:
        self._own()
        return self._enter()

    async def _enter(self) -> None:
        if self._begin():
            return
        line = self._begins._line(_LEASE, Line)
        if not await line.wait(self._begin, self._undo, self._timeout):
            self._gave_up(False)

    def _undo(self) -> None:
        self._end(False)

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._end(error is None)
