"""Pickles of values that MessagePack does not carry, for the codec ``"pickle"`` only."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from msgspec.msgpack import Ext

from shmrpc.basics.signals import is_from_signal_handler
from shmrpc.values.blocks import LARGE, LARGE_ARRAY, Data, bytes_of, is_block
from shmrpc.values.decode_context import DecodeContext
from shmrpc.values.encode_context import EncodeContext
from shmrpc.values.extension import Extension

if TYPE_CHECKING:
    import pickle

PICKLE: Final = 35

_PROTOCOL: Final = 5
#: Name of a program's module in pickles.
_MAIN: Final = b"__main__"
#: True if classes of `__main__` travel with their instances, because others cannot import that module.
_is_by_value = False
#: True if cloudpickle takes the values that pickle refuses.
_has_more = False


def pickle_main_by_value() -> None:
    """Pickle the definitions of classes of ``__main__`` with their instances from now on.

    This is for a program that other processes cannot import, such as a notebook. It applies to all threads, cannot be
    undone, and needs cloudpickle, which is imported only when a value needs it.
    """
    global _is_by_value, _has_more
    _is_by_value = _has_more = True


def allow_cloudpickle() -> None:
    """Use cloudpickle from now on for values that pickle rejects, as instances of classes that arrived by value.

    Applies to all threads, and cannot be undone.
    """
    global _has_more
    _has_more = True


def dumps(value: Any) -> bytes:
    """Return a pickle that contains all its buffers. Raises as :func:`dumps_beside` does."""
    return dumps_beside(value, None)[0]


def dumps_beside(value: Any, least: int | None) -> tuple[bytes, list[memoryview]]:
    """Return a pickle, and its buffers of at least ``least`` bytes, which travel beside it; with None there are none.

    A buffer that is not contiguous stays in the pickle. The buffers are not copied. Raises the errors of pickling, and
    ImportError if a value needs cloudpickle and it is not installed.
    """
    import pickle  # Imported on use: few programs need it.

    try:
        data, beside = _dump_with(pickle.dumps, value, least)
        if not (_is_by_value and _MAIN in data):
            return data, beside
    except (MemoryError, RecursionError):
        raise
    except Exception as error:
        if not _has_more or is_from_signal_handler(error):
            raise
    import cloudpickle  # type: ignore[import-untyped]  # Fewer programs need this.

    return _dump_with(cloudpickle.dumps, value, least)


def _dump_with(dump: Callable[..., bytes], value: Any, least: int | None) -> tuple[bytes, list[memoryview]]:
    """Return a pickle that ``dump`` writes, and its buffers of at least ``least`` bytes."""
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
    """Load a pickle with its buffers."""
    import pickle

    return pickle.loads(bytes_of(data), buffers=buffers)


def write_pickle(value: Any, context: EncodeContext) -> Ext:
    """Encode a value as a pickle. Raises RecursionError, and TypeError if pickling fails otherwise.

    A context that allows no pickle of a part raises, and pickles all of the value that contains it.
    """
    context.before_pickle()
    return pickle_whole(value, context)


def pickle_whole(value: Any, context: EncodeContext) -> Ext:
    """Encode a value as a pickle, whose large buffers travel beside the body.

    Raises RecursionError, and TypeError if pickling fails otherwise.
    """
    try:
        data, beside = dumps_beside(value, LARGE_ARRAY)
    except RecursionError:
        raise
    except Exception as error:
        if is_from_signal_handler(error):
            raise
        kind = f"{type(value).__module__}.{type(value).__qualname__}"
        raise TypeError(f"a value of type {kind} cannot be pickled: {type(error).__name__}: {error}") from error
    places = [context.place(memory, memory) for memory in beside]
    where = data if len(data) < LARGE else context.place(data, data)
    return Ext(PICKLE, context.pack([where, places]))


class LazyPickle:
    """Value that is still pickled."""

    __slots__ = ("_buffers", "_data")

    def __init__(self, data: Data, buffers: list[Data]) -> None:
        self._data, self._buffers = data, buffers

    def read(self) -> Any:
        """Load and return the value, a new one each time. Its large arrays are private and writable.

        Raises the errors of loading. The caller must trust the sender: a pickle can run any code.
        """
        return _loads(self._data, [each.private() if is_block(each) else each for each in self._buffers])


def read_lazily(payload: Any, context: DecodeContext) -> LazyPickle:
    """Return the pickle in a payload, not loaded; for the codec of pools only."""
    place, places = payload
    return LazyPickle(context.data(place), [context.data(each) for each in places])


def _read_pickle(payload: Any, context: DecodeContext) -> Any:
    """Load the pickle in a payload, whose large arrays are read-only.

    Raises ValueError if the context does not allow pickles, and the errors of loading.
    """
    if not context.pickled:
        raise ValueError(
            "it was pickled; set codec='pickle' on both sides if you trust the sender: a pickle can run any code here"
        )
    place, places = payload
    return _loads(context.data(place), [context.data(each) for each in places])


EXTENSIONS: Final = (
    Extension(PICKLE, "pickle", "`[data, array of data]`: a pickle of protocol 5, and its buffers", _read_pickle),
)
