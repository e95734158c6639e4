"""From extensions to values: what a decoder is told to do with each."""

from __future__ import annotations

import importlib
import sys
import threading
from collections.abc import Callable, Hashable
from typing import Any, Final

import msgspec
from msgspec.msgpack import Ext

from shmrpc import _core
from shmrpc.basics.missing import why_missing
from shmrpc.basics.signals import is_of_a_handler
from shmrpc.values import arrays, buffers, extensions, pickling, registry, standard, tables, tensors
from shmrpc.values.buffers import Data

#: What decoding raises for bytes that are no MessagePack, or hold a value that does not fit.
UNREADABLE: Final = (msgspec.DecodeError, UnicodeDecodeError, RecursionError, _core.Unmapped)


class BuffersMissing(msgspec.DecodeError):
    """The value refers to buffers, and only a body was read: a codec's `decode` and `decoder` read all of it."""


_Reader = Callable[[Any, "Lifting"], Any]
#: By code: its name for people, and what makes the value of its payload.
_READERS: Final[dict[int, tuple[str, _Reader]]] = {
    extensions.BYTES: ("bytes", buffers.read_bytes),
    extensions.BYTEARRAY: ("bytearray", buffers.read_bytearray),
    extensions.MEMORYVIEW: ("memoryview", buffers.read_memoryview),
    extensions.ARRAY: ("array.array", buffers.read_python_array),
    extensions.NDARRAY: ("NumPy array", arrays.read_array),
    extensions.SCALAR: ("NumPy scalar", arrays.read_scalar),
    extensions.TENSOR: ("PyTorch tensor", tensors.read_tensor),
    extensions.ARROW_BUFFER: ("Arrow buffer", tables.read_buffer),
    extensions.RECORD_BATCH: ("Arrow record batch", tables.read_batch),
    extensions.TABLE: ("Arrow table", tables.read_table),
    extensions.INTEGER: ("int", standard.read_integer),
    extensions.COMPLEX: ("complex", standard.read_complex),
    extensions.SET: ("set", standard.read_set),
    extensions.FROZENSET: ("frozenset", standard.read_frozenset),
    extensions.TUPLE: ("tuple", standard.read_tuple),
    extensions.RANGE: ("range", standard.read_range),
    extensions.SLICE: ("slice", standard.read_slice),
    extensions.DATE: ("date", standard.read_date),
    extensions.TIME: ("time", standard.read_time),
    extensions.DATETIME: ("datetime", standard.read_datetime),
    extensions.TIMEDELTA: ("timedelta", standard.read_timedelta),
    extensions.ZONE: ("time zone", standard.read_zone),
    extensions.DECIMAL: ("Decimal", standard.read_decimal),
    extensions.FRACTION: ("Fraction", standard.read_fraction),
    extensions.UUID: ("UUID", standard.read_uuid),
    extensions.PATH: ("path", standard.read_path),
    extensions.ENUM: ("registered Enum", registry.read_enum),
    extensions.OBJECT: ("registered class", registry.read_object),
    extensions.CUSTOM: ("registered type", registry.read_custom),
    extensions.PICKLE: ("pickle", pickling.read_pickle),
}


#: Modules that have been imported, to the end.
_modules: Final[dict[str, Any]] = {}


class _Reading(threading.local):
    """The parcel that this thread reads."""

    #: Its buffers; None if there is no parcel.
    buffers: tuple[Any, ...] | None = None
    #: What has been made of them: a buffer that is named twice is copied once.
    made: dict[Hashable, Any] | None = None
    #: How many extensions have been met, ever.
    met = 0
    #: How many of them stand around what is being read.
    depth = 0


_reading: Final = _Reading()


class Lifting:
    """Reads extensions for one codec."""

    def __init__(self, make: Callable[[Callable[[int, Any], Any]], Callable[[Any], Any]], *, pickled: bool) -> None:
        """``make``: makes a decoder that has this hook; ``pickled``: whether pickles are read."""
        self.pickled = pickled
        self._decode = make(self.hook)

    def hook(self, code: int, data: Any) -> Any:
        """The value of an extension; one of UNREADABLE if it has none."""
        name, read = _READERS.get(code, ("", None))
        reading = _reading
        reading.met += 1
        if read is None:
            return Ext(code, bytes(data))
        if reading.depth == extensions.MAX_DEPTH:
            raise msgspec.DecodeError(f"more than {extensions.MAX_DEPTH} extensions in each other")
        reading.depth += 1
        try:
            return read(self._decode(data), self)
        except UNREADABLE:
            raise
        except Exception as error:
            if is_of_a_handler(error):
                raise
            what = str(error) or type(error).__name__
            raise msgspec.DecodeError(f"a value cannot be read as {name}: {what}") from error
        finally:
            reading.depth -= 1

    @staticmethod
    def within(parcel: _core.Parcel, read: Callable[[bytes], Any]) -> Any:
        """``read`` of the parcel's body, while its buffers can be found.

        The parcel keeps them: whoever needs it no more lets them go, or memory is lent for as long as a frame is.
        """
        before = _reading.buffers, _reading.made
        _reading.buffers, _reading.made = parcel.buffers, {}
        try:
            return read(parcel.body)
        finally:
            _reading.buffers, _reading.made = before

    @staticmethod
    def apart(function: Callable[[Any], Any], value: Any) -> Any:
        """Calls a user's function, which may decode something else meanwhile."""
        before = _reading.buffers, _reading.made
        _reading.buffers = _reading.made = None
        try:
            return function(value)
        finally:
            _reading.buffers, _reading.made = before

    @staticmethod
    def met() -> int:
        """How many extensions this thread has met, ever: whether there are any in a body is seen from it."""
        return _reading.met

    @staticmethod
    def data(place: Any) -> Data:
        """The bytes that a payload holds or refers to."""
        if type(place) is bytes:
            return place
        if type(place) is not int:
            raise TypeError(f"expected bin or the place of a buffer, got {type(place).__name__}")
        if _reading.buffers is None:
            raise BuffersMissing("the value refers to a buffer, and none has come with it")
        if not 0 <= place < len(_reading.buffers):
            raise ValueError(f"it refers to buffer {place} of {len(_reading.buffers)}")
        return _reading.buffers[place]  # type: ignore[no-any-return]

    def once(self, what: Hashable, place: Any, make: Callable[[Data], Any]) -> Any:
        """What ``make`` makes of the data; the same thing for the same buffer."""
        data = self.data(place)
        made = _reading.made
        if type(place) is bytes or made is None:
            return make(data)
        key = (what, place)
        if key not in made:
            made[key] = make(data)
        return made[key]

    @staticmethod
    def needs(module: str, what: str) -> Any:
        """The module; DecodeError if it cannot be had."""
        known = _modules.get(module)
        if known is not None and sys.modules.get(module) is known:
            return known
        try:
            found = _modules[module] = importlib.import_module(module)
        except ImportError as error:
            raise msgspec.DecodeError(f"the value is {what}, and {why_missing(module, error)}") from None
        return found
