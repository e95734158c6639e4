"""Reservations: memory of a queue or a topic that the program fills in place."""

from __future__ import annotations

import operator
from types import TracebackType
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar

from shmrpc import _core
from shmrpc.basics.drivers import NotForWith
from shmrpc.wire.codec import Codec

if TYPE_CHECKING:
    import numpy.typing

_R = TypeVar("_R", _core.Reservation, _core.PendingRecords)


class _Handle(Protocol):
    """A queue or a topic, as a reservation needs it: open, with the codec of its values."""

    _object: _core.SharedObject
    _codec: Codec

    def _check_can_reserve(self) -> None:
        """Raise an error if no memory can ever be reserved, for example because the handle is closed."""

    def _encode_error(self, error: Exception) -> Exception:
        """Return the exception to raise for ``error``, which encoding has raised: an EncodeError, or ``error``."""
        raise NotImplementedError


class _AsyncHandle(_Handle, Protocol[_R]):
    async def _yield_if_due(self) -> None:
        """Yield to the event loop if the handle has kept it for long."""

    async def _reserve(self, size: int, body: bytes | None, timeout: float | None) -> _R | None:
        """Wait for memory, and return it; None if the value is so small that it is copied instead.

        Raises the errors of a failed wait.
        """

    async def _commit(self, reservation: _R, timeout: float | None) -> None:
        """Put or publish what was reserved, after waiting for room. Raises the errors of a failed wait."""

    async def _send_copy(self, value: Any, timeout: float | None) -> None:
        """Put or publish a copy of a value, after waiting for room. Raises the errors of a failed wait."""


class _BlockingHandle(_Handle, Protocol[_R]):
    def _reserve(self, size: int, body: bytes | None, timeout: float | None) -> _R | None:
        """Wait for memory, and return it; None if the value is so small that it is copied instead.

        Raises the errors of a failed wait.
        """

    def _commit(self, reservation: _R, timeout: float | None) -> None:
        """Put or publish what was reserved, after waiting for room. Raises the errors of a failed wait."""

    def _send_copy(self, value: Any, timeout: float | None) -> None:
        """Put or publish a copy of a value, after waiting for room. Raises the errors of a failed wait."""


_H = TypeVar("_H", bound=_Handle)


class _ReservationBase(Generic[_H, _R]):
    """Memory for one item or message, from the beginning to the end of a block.

    An object is for one block. A block that raises puts or publishes nothing, and neither does one whose end fails:
    the memory is freed. ``timeout`` is the longest wait in seconds, None for no limit: once for the memory, and once
    more for room at the end.
    """

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
        #: An array in memory of this process, which is copied at the end of the block; None if there is a reservation.
        self._array: Any = None

    def _prepare(self) -> tuple[int, bytes | None] | None:
        """Return the number of bytes to reserve, and the encoded value without the array's bytes (None for raw bytes).

        If the value is too small to be reserved, sets ``_array`` to an array that is copied later, and returns None.
        Raises TypeError or ValueError for a shape that raw bytes cannot have, EncodeError for a dtype that cannot be
        sent, what NumPy raises for an invalid shape or dtype, ImportError without NumPy unless the bytes are raw, and
        the errors of ``_check_can_reserve()``.
        """
        handle = self._handle
        handle._check_can_reserve()
        if handle._object.is_raw:
            if isinstance(self._shape, tuple):
                raise TypeError(
                    f"{handle._object.kind} {handle._object.name!r} has raw bytes: expected a number of bytes, got"
                    f" {self._shape}"
                )
            size = operator.index(self._shape)
            if not 0 <= size < 1 << 64:  # The core checks the limits of the object, but takes no other numbers.
                raise ValueError(
                    f"{handle._object.kind} {handle._object.name!r}: expected a number of bytes, 0 or more, that the"
                    f" {handle._object.kind} can hold, got {size}"
                )
            return size, None
        import numpy as np  # Programs without arrays do not need it.

        model = np.empty(self._shape, self._dtype)
        try:
            body = handle._codec.encode(model)
        except Exception as error:
            encode_error = handle._encode_error(error)
            if encode_error is error:
                raise
            raise encode_error from error
        if not isinstance(body, _core.Parcel):
            self._array = model
            return None
        return model.nbytes, body.body

    def _view(self, reservation: _R | None) -> Any:
        """Keep the reservation, and return the array or memoryview that the block fills.

        Without a reservation, return memory of this process, which is copied at the end of the block.
        """
        self._reservation = reservation
        if self._handle._object.is_raw:
            if reservation is None:
                self._array = bytearray(operator.index(self._shape))  # type: ignore[arg-type]
            return memoryview(self._array if reservation is None else reservation)
        import numpy as np

        if reservation is None:
            self._array = np.empty(self._shape, self._dtype)
            return self._array
        return np.ndarray(self._shape, self._dtype, memoryview(reservation))

    def _give_up(self) -> None:
        """Free the memory, unless it was put or published. Idempotent."""
        if self._reservation is not None:
            self._reservation.give_up()


class AsyncReservation(NotForWith, _ReservationBase[_AsyncHandle[_R], _R]):
    """A reservation of a handle for event loops: ``async with`` waits for memory, and at the end puts or publishes."""

    def _kind_and_factory(self) -> tuple[str, str]:
        """Return a description of the reservation, and the name of the function that opens its object."""
        name = self._handle._object
        return f"a reservation of {name.kind} {name.name!r}", name.kind

    async def __aenter__(self) -> Any:
        await self._handle._yield_if_due()
        needed = self._prepare()
        if needed is None:
            return self._array
        try:
            return self._view(await self._handle._reserve(*needed, self._timeout))
        except BaseException:  # A signal handler may raise here: then the block is not entered.
            self._give_up()
            raise

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None
    ) -> None:
        try:
            if kind is not None:
                return
            if self._reservation is None:
                await self._handle._send_copy(self._array, self._timeout)
            else:
                await self._handle._commit(self._reservation, self._timeout)
        finally:
            self._give_up()


class BlockingReservation(_ReservationBase[_BlockingHandle[_R], _R]):
    """A reservation of a handle for threads: ``with`` waits for memory, and at the end puts or publishes."""

    def __enter__(self) -> Any:
        needed = self._prepare()
        if needed is None:
            return self._array
        try:
            return self._view(self._handle._reserve(*needed, self._timeout))
        except BaseException:  # A signal handler may raise here: then the block is not entered.
            self._give_up()
            raise

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        try:
            if kind is not None:
                return
            if self._reservation is None:
                self._handle._send_copy(self._array, self._timeout)
            else:
                self._handle._commit(self._reservation, self._timeout)
        finally:
            self._give_up()
