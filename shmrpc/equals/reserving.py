"""Items of a queue that are filled where they lie."""

from __future__ import annotations

import operator
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from shmrpc import _core
from shmrpc.equals.item_errors import unencodable

if TYPE_CHECKING:
    import numpy.typing

    from shmrpc.equals.queue_base import QueueBase

_Q = TypeVar("_Q", bound="QueueBase")


class Reserving(Generic[_Q]):
    """Memory of a queue for one item, from the beginning to the end of a block."""

    def __init__(
        self,
        queue: _Q,
        shape: int | tuple[int, ...],
        dtype: numpy.typing.DTypeLike,
        timeout: float | None,
    ) -> None:
        self._queue = queue
        self._shape = shape
        self._dtype = dtype
        self._timeout = timeout
        self._reservation: _core.Reservation | None = None
        self._array: Any = None

    def _prepare(self) -> tuple[int, bytes | None]:
        """The bytes that are needed, and the body of the value; None for raw bytes. Raises QueueShutDown."""
        self._queue._native.check_may_put()
        if self._queue._name.is_raw:
            if isinstance(self._shape, tuple):
                raise TypeError(
                    f"queue {self._queue.name!r} has raw bytes: expected a number of bytes, got {self._shape}"
                )
            return operator.index(self._shape), None
        import numpy as np  # Only who asks for arrays needs it.

        model = np.empty(self._shape, self._dtype)
        try:
            body = self._queue._codec.encode(model)
        except Exception as error:
            raise unencodable(self._queue.name, error) from error
        if not isinstance(body, _core.Parcel):  # It travels in the body of a value: it is copied there.
            self._array = model
            return 0, b""
        return model.nbytes, body.body

    def _view(self, reservation: _core.Reservation) -> Any:
        self._reservation = reservation
        if self._queue._name.is_raw:
            return memoryview(reservation)
        import numpy as np

        return np.ndarray(self._shape, self._dtype, memoryview(reservation))

    def _give_up(self) -> None:
        if self._reservation is not None:
            self._reservation.give_up()
