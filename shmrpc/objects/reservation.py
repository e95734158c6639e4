"""Items of a queue and messages of a topic that are filled where they lie."""

from __future__ import annotations

import operator
from types import TracebackType
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar

from shmrpc import _core
from shmrpc.basics.drivers import NotForWith
from shmrpc.wire.codec import Codec

if TYPE_CHECKING:
    import numpy.typing

_R = TypeVar("_R", _core.Reservation, _core.Records)


class _Handle(Protocol):
    """Of a queue or a topic."""

    _name: _core.Name
    _codec: Codec

    def _check_may_reserve(self) -> None: ...
    def _unencodable(self, error: Exception) -> Exception: ...


class _Awaited(_Handle, Protocol[_R]):
    async def _pause_in_time(self) -> None: ...
    async def _reserve(self, size: int, body: bytes | None, timeout: float | None) -> _R | None:
        """Waits for memory; None if it is so little that it is copied instead."""

    async def _commit(self, reservation: _R, timeout: float | None) -> None: ...
    async def _add(self, value: Any, timeout: float | None) -> None: ...


class _Blocking(_Handle, Protocol[_R]):
    def _reserve(self, size: int, body: bytes | None, timeout: float | None) -> _R | None:
        """As above."""

    def _commit(self, reservation: _R, timeout: float | None) -> None: ...
    def _add(self, value: Any, timeout: float | None) -> None: ...


_H = TypeVar("_H", bound=_Handle)


class _Reserving(Generic[_H, _R]):
    """Memory for one item or message, from the beginning to the end of a block."""

    def __init__(
        self,
        handle: _H,
        shape: int | tuple[int, ...],
        dtype: numpy.typing.DTypeLike,
        timeout: float | None,
    ) -> None:
        self._handle = handle
        self._shape = shape
        self._dtype = dtype
        self._timeout = timeout
        self._reservation: _R | None = None
        #: In our own memory; None: it is filled in place.
        self._array: Any = None

    def _prepare(self) -> tuple[int, bytes | None] | None:
        """The bytes that are needed, and the body of the value; None for raw bytes. None for both if it is copied."""
        handle = self._handle
        handle._check_may_reserve()
        if handle._name.is_raw:
            if isinstance(self._shape, tuple):
                raise TypeError(
                    f"{handle._name.kind} {handle._name.name!r} has raw bytes: expected a number of bytes, got"
                    f" {self._shape}"
                )
            return operator.index(self._shape), None
        import numpy as np  # Only who asks for arrays needs it.

        model = np.empty(self._shape, self._dtype)
        try:
            body = handle._codec.encode(model)
        except Exception as error:
            told = handle._unencodable(error)
            if told is error:
                raise
            raise told from error
        if not isinstance(body, _core.Parcel):  # It travels in the body of a value: it is copied there.
            self._array = model
            return None
        return model.nbytes, body.body

    def _view(self, reservation: _R | None) -> Any:
        """What the block fills."""
        self._reservation = reservation
        if self._handle._name.is_raw:
            if reservation is None:
                self._array = bytearray(operator.index(self._shape))  # type: ignore[arg-type]
            return memoryview(self._array if reservation is None else reservation)
        import numpy as np

        if reservation is None:
            self._array = np.empty(self._shape, self._dtype)
            return self._array
        return np.ndarray(self._shape, self._dtype, memoryview(reservation))

    def _give_up(self) -> None:
        if self._reservation is not None:
            self._reservation.give_up()


class AwaitedReserving(NotForWith, _Reserving[_Awaited[_R], _R]):
    """What ``reserve`` of a handle returns whose methods are awaited."""

    def _kind_and_factory(self) -> tuple[str, str]:
        name = self._handle._name
        return f"a reservation of {name.kind} {name.name!r}", name.kind

    async def __aenter__(self) -> Any:
        await self._handle._pause_in_time()
        needed = self._prepare()
        if needed is None:
            return self._array
        try:
            return self._view(await self._handle._reserve(*needed, self._timeout))
        except BaseException:  # Of a signal handler, say: the block is not entered.
            self._give_up()
            raise

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None
    ) -> None:
        try:
            if kind is not None:
                return
            if self._reservation is None:
                await self._handle._add(self._array, self._timeout)
            else:
                await self._handle._commit(self._reservation, self._timeout)
        finally:
            self._give_up()


class BlockingReserving(_Reserving[_Blocking[_R], _R]):
    """What ``reserve`` of a handle returns whose methods block."""

    def __enter__(self) -> Any:
        needed = self._prepare()
        if needed is None:
            return self._array
        try:
            return self._view(self._handle._reserve(*needed, self._timeout))
        except BaseException:  # Of a signal handler, say: the block is not entered.
            self._give_up()
            raise

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        try:
            if kind is not None:
                return
            if self._reservation is None:
                self._handle._add(self._array, self._timeout)
            else:
                self._handle._commit(self._reservation, self._timeout)
        finally:
            self._give_up()
