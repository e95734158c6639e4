"""Items of a queue that are filled where they lie."""

from __future__ import annotations

import functools
import math
import operator
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final

from shmrpc import _core
from shmrpc.equals.line import stopped_wait

if TYPE_CHECKING:
    import numpy.typing

    from shmrpc.equals.blocking_queue import BlockingQueue
    from shmrpc.equals.queue import Queue
    from shmrpc.equals.queue_base import QueueBase

#: Arrays of fewer bytes travel in the body of a value: they are copied there.
_SMALL: Final = 4096
#: The wait set of those that wait for room.
_ROOM: Final = 1


class _Reserving:
    """Memory of a queue for one item, from the beginning to the end of a block."""

    def __init__(
        self,
        queue: QueueBase,
        shape: int | tuple[int, ...],
        dtype: numpy.typing.DTypeLike,
        timeout: float | None,
    ) -> None:
        self._base = queue
        self._shape = shape
        self._dtype = dtype
        self._timeout = timeout
        self._reservation: _core.Reservation | None = None
        self._array: Any = None

    def _prepare(self) -> tuple[int, bytes | None]:
        """The bytes that are needed, and the body of the value; None for raw bytes."""
        if self._base._name.is_raw:
            return operator.index(self._shape), None  # type: ignore[arg-type]
        import numpy as np  # Only who asks for arrays needs it.

        model = np.empty(self._shape, self._dtype)
        if model.nbytes < _SMALL:
            self._array = model
            return 0, b""
        body = self._base._codec.encode(model)
        assert isinstance(body, _core.Parcel)
        return model.nbytes, body.body

    def _view(self, reservation: _core.Reservation) -> Any:
        self._reservation = reservation
        if self._base._name.is_raw:
            return memoryview(reservation)
        import numpy as np

        shape = self._shape if isinstance(self._shape, tuple) else (self._shape,)
        assert math.prod(shape) >= 0
        return np.ndarray(shape, self._dtype, memoryview(reservation))

    def _give_up(self) -> None:
        if self._reservation is not None:
            self._reservation.give_up()


class AwaitedReserving(_Reserving):
    """What :meth:`shmrpc.Queue.reserve` returns."""

    def __init__(
        self, queue: Queue, shape: int | tuple[int, ...], dtype: numpy.typing.DTypeLike, timeout: float | None
    ) -> None:
        super().__init__(queue, shape, dtype, timeout)
        self._queue = queue

    async def __aenter__(self) -> Any:
        size, body = self._prepare()
        if self._array is not None:
            return self._array
        core = self._queue._native
        reservation = core.reserve_now(size, body)
        if reservation is None:
            reserve = functools.partial(core.reserve_now, size, body)
            reservation = await self._queue._turn(_ROOM, lambda: True, reserve, self._timeout)
        if reservation is None:
            self._queue._timed_out(self._timeout, _ROOM)
        return self._view(reservation)

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None
    ) -> None:
        if kind is not None:
            self._give_up()
        elif self._reservation is None:
            await self._queue.put(self._array, self._timeout)
        else:
            try:
                if not self._reservation.put_now():
                    await self._queue._put(self._reservation, self._timeout)
            finally:
                self._give_up()


class BlockingReserving(_Reserving):
    """What :meth:`shmrpc.sync.Queue.reserve` returns."""

    def __init__(
        self, queue: BlockingQueue, shape: int | tuple[int, ...], dtype: numpy.typing.DTypeLike, timeout: float | None
    ) -> None:
        super().__init__(queue, shape, dtype, timeout)
        self._queue = queue

    def __enter__(self) -> Any:
        size, body = self._prepare()
        if self._array is not None:
            return self._array
        reservation = self._queue._native.wait_reserve(size, body, self._timeout)
        if reservation is None:
            raise stopped_wait(self._queue._name)
        if reservation is False:
            self._queue._timed_out(self._timeout, _ROOM)
        return self._view(reservation)

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        if kind is not None:
            self._give_up()
        elif self._reservation is None:
            self._queue.put(self._array, self._timeout)
        else:
            try:
                self._queue._put(self._reservation, self._timeout)
            finally:
                self._give_up()
