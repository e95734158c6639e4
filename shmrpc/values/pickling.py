"""Pickles of what MessagePack does not carry: only for the codec ``"pickle"``."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from msgspec.msgpack import Ext

from shmrpc.basics.signals import is_of_a_handler
from shmrpc.values.blocks import LARGE, LARGE_ARRAY, Data, bytes_of
from shmrpc.values.extension import Extension
from shmrpc.values.reading import Reading
from shmrpc.values.writing import Writing

if TYPE_CHECKING:
    import pickle

PICKLE: Final = 35

_PROTOCOL: Final = 5
#: What pickles, if it is not the package of that name.
_dumps: Callable[..., bytes] | None = None


def go_by_value() -> None:
    """From now on the classes of this program's ``__main__`` are in the pickles of what is of them.

    For a program that other processes cannot import, such as a notebook.
    """
    global _dumps
    import cloudpickle  # type: ignore[import-untyped]  # Few programs need it.

    _dumps = cloudpickle.dumps


def dumps(value: Any, take: Callable[[pickle.PickleBuffer], object] | None = None) -> bytes:
    """A pickle; ``take`` is asked about its buffers. Raises what pickling raises."""
    import pickle  # Few programs need it.

    return (_dumps or pickle.dumps)(value, protocol=_PROTOCOL, buffer_callback=take)


def _loads(data: Data, buffers: list[Data]) -> Any:
    import pickle

    return pickle.loads(bytes_of(data), buffers=buffers)


def write_pickle(value: Any, writing: Writing) -> Ext:
    """Write a pickle in the value's place, unless the writing wants all that the value is a part of in one pickle."""
    writing.before_pickle()
    return pickle_whole(value, writing)


def pickle_whole(value: Any, writing: Writing) -> Ext:
    """Write a pickle; its large buffers travel beside the body."""
    beside: list[Any] = []

    def take(buffer: pickle.PickleBuffer) -> bool:
        """False if the buffer travels beside the body. A small one, or one with gaps, stays in the pickle."""
        try:
            memory = buffer.raw()
        except BufferError:
            return True
        if memory.nbytes < LARGE_ARRAY:
            return True
        beside.append(memory)
        return False

    try:
        data = dumps(value, take)
    except RecursionError:
        raise
    except Exception as error:
        if is_of_a_handler(error):
            raise
        kind = f"{type(value).__module__}.{type(value).__qualname__}"
        raise TypeError(f"a value of type {kind} cannot be pickled: {type(error).__name__}: {error}") from error
    places = [writing.place(memory, memory) for memory in beside]
    where = data if len(data) < LARGE else writing.place(data, data)
    return Ext(PICKLE, writing.pack([where, places]))


class Later:
    """A value that is still in its pickle."""

    __slots__ = ("_buffers", "_data")

    def __init__(self, data: Data, buffers: list[Data]) -> None:
        self._data, self._buffers = data, buffers

    def read(self) -> Any:
        """The value. Raises what reading it raises."""
        return _loads(self._data, self._buffers)


def read_later(payload: Any, reading: Reading) -> Later:
    """A pickle that is read when its value is needed. Only for the codec of pools."""
    place, places = payload
    return Later(reading.data(place), [reading.data(each) for each in places])


def _read_pickle(payload: Any, reading: Reading) -> Any:
    if not reading.pickled:
        raise ValueError(
            "it was pickled; set codec='pickle' on both sides, if you trust the other one: "
            "whoever sends a pickle can run any code at its receiver"
        )
    place, places = payload
    return _loads(reading.data(place), [reading.data(each) for each in places])


EXTENSIONS: Final = (
    Extension(PICKLE, "pickle", "`[data, array of data]`: a pickle of protocol 5, and its buffers", _read_pickle),
)
