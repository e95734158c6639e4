"""Pickles of what MessagePack does not carry: only for the codec ``"pickle"``."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from msgspec.msgpack import Ext

from shmrpc.basics.signals import is_from_signal_handler
from shmrpc.values.blocks import LARGE, LARGE_ARRAY, Data, bytes_of, is_block
from shmrpc.values.extension import Extension
from shmrpc.values.reading import Reading
from shmrpc.values.writing import Writing

if TYPE_CHECKING:
    import pickle

PICKLE: Final = 35

_PROTOCOL: Final = 5
#: The module of a program, as pickles have it.
_MAIN: Final = b"__main__"
#: True if classes of `__main__` travel with their instances, because others cannot import that module.
_is_by_value = False
#: True if cloudpickle takes the values that pickle refuses.
_has_more = False


def go_by_value() -> None:
    """From now on the classes of this program's ``__main__`` are in the pickles of what is of them.

    For a program that other processes cannot import, such as a notebook.
    """
    global _is_by_value, _has_more
    _is_by_value = _has_more = True


def expect_classes_by_value() -> None:
    """From now on what is of classes that have come here by value goes back with these."""
    global _has_more
    _has_more = True


def dumps(value: Any) -> bytes:
    """A pickle with all that belongs to it. Raises what pickling raises."""
    return dumps_beside(value, None)[0]


def dumps_beside(value: Any, least: int | None) -> tuple[bytes, list[memoryview]]:
    """A pickle, and the buffers of at least so many bytes that lie beside it; None: there are none.

    A buffer with gaps stays in the pickle. Raises what pickling raises.
    """
    import pickle  # Few programs need it.

    try:
        data, beside = _dump_with(pickle.dumps, value, least)
        if not (_is_by_value and _MAIN in data):
            return data, beside
    except (MemoryError, RecursionError):
        raise
    except Exception as error:
        if not _has_more or is_from_signal_handler(error):
            raise
    import cloudpickle  # type: ignore[import-untyped]  # Fewer still need this.

    return _dump_with(cloudpickle.dumps, value, least)


def _dump_with(dump: Callable[..., bytes], value: Any, least: int | None) -> tuple[bytes, list[memoryview]]:
    beside: list[memoryview] = []

    def stays(buffer: pickle.PickleBuffer) -> bool:
        try:
            memory = buffer.raw()
        except BufferError:
            return True
        if memory.nbytes < least:  # type: ignore[operator]
            return True
        beside.append(memory)
        return False

    return dump(value, protocol=_PROTOCOL, buffer_callback=None if least is None else stays), beside


def _loads(data: Data, buffers: list[Any]) -> Any:
    import pickle

    return pickle.loads(bytes_of(data), buffers=buffers)


def write_pickle(value: Any, writing: Writing) -> Ext:
    """Write a pickle in the value's place, unless the writing wants all that the value is a part of in one pickle."""
    writing.before_pickle()
    return pickle_whole(value, writing)


def pickle_whole(value: Any, writing: Writing) -> Ext:
    """Write a pickle; its large buffers travel beside the body."""
    try:
        data, beside = dumps_beside(value, LARGE_ARRAY)
    except RecursionError:
        raise
    except Exception as error:
        if is_from_signal_handler(error):
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
        """The value, whose large arrays may be written: its reader has them alone. Raises what reading it raises."""
        return _loads(self._data, [each.private() if is_block(each) else each for each in self._buffers])


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
