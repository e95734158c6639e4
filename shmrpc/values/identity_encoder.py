"""Encoder of pools, which keeps identity: an object that occurs twice in a value arrives as one object."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final

from shmrpc import _core
from shmrpc.values import registry, standard
from shmrpc.values.encode import ValueEncoder
from shmrpc.values.encode_context import EncodeContext, Writer, write_same
from shmrpc.values.encode_errors import is_unsendable
from shmrpc.values.extension import Extension
from shmrpc.values.pickling import pickle_whole, write_pickle

#: Types whose copies are indistinguishable from the original.
_IMMUTABLE: Final = (type(None), bool, int, float, str, bytes, tuple, frozenset)
#: Types that need no pickle when everything else is pickled.
_ATOMS: Final = (type(None), bool, int, float, bytes)


class _NeedsPickle(Exception):
    """Signal that all of a value must be one pickle."""


class _IdentityContext(EncodeContext):
    """State of encoding values in MessagePack; a value that needs a pickle, or holds an object twice, is one pickle."""

    __slots__ = ("_recorded",)
    _recorded: dict[int, Any]

    def encode_whole(self, value: Any) -> Any:
        """Return the plain value for one value, or a pickle of all of it if a part needs one or occurs twice."""
        self._recorded = {}
        placed = len(self.buffers)
        try:
            return self.plain(value)
        except _NeedsPickle:
            del self.buffers[placed:]
            del self._held[placed:]
            self._places = {key: place for key, place in self._places.items() if place < placed}
            self._depth = 0
        return pickle_whole(value, self)

    def before_pickle(self) -> None:
        """Have all of the value pickled, because a pickle of a part would not share objects with the rest."""
        raise _NeedsPickle

    def record(self, value: Any) -> None:
        """Record a mutable object. If it was recorded before, have all of the value pickled."""
        if id(value) in self._recorded:
            raise _NeedsPickle
        self._recorded[id(value)] = value


class _PickleContext(_IdentityContext):
    """State of encoding each value as a pickle."""

    __slots__ = ()

    def encode_whole(self, value: Any) -> Any:
        """Return a pickle of one value; a number, bytes or None unchanged."""
        return self.plain(value) if type(value) in _ATOMS else pickle_whole(value, self)

    def record(self, value: Any) -> None:
        """Do nothing, because a pickle keeps identity by itself."""


class IdentityEncoder(ValueEncoder):
    """Encoder of the values that pools send and receive.

    A tuple among the arguments is one value; a list among them holds a value in each item. Within each value, objects
    that are referred to twice stay the same object: such a value is pickled as a whole.
    """

    def __init__(self, pack: Callable[[Any], bytes], extensions: Iterable[Extension]) -> None:
        super().__init__(pack, extensions, pickled=True)
        self._exact = {kind: _recording(kind, write) for kind, write in self._exact.items()}
        self.forget()

    def encode(self, value: Any) -> bytes | _core.Parcel:
        """Encode one value as a body. Raises one of UNSENDABLE."""
        return self._encode_body(value, _encode_whole)

    def encode_all(self, values: Sequence[Any]) -> bytes | _core.Parcel:
        """Encode an array of arguments as a body. Raises one of UNSENDABLE."""
        return self._encode_body(values, _encode_arguments)

    def _pack_value(
        self, value: Any, plain: Callable[[Any, Any], Any], make: type[EncodeContext]
    ) -> tuple[bytes, list[Any]]:
        """Pack the values; if one of them cannot be packed, pickle each of them. ``make`` is not used."""
        try:
            return super()._pack_value(value, plain, _IdentityContext)
        except Exception as error:
            if not is_unsendable(error):
                raise
        return super()._pack_value(value, plain, _PickleContext)  # A pickle can hold a str with lone surrogates.

    def _writer_for(self, value: Any, kind: type) -> Writer:
        """Return the writer for a type, which records a mutable object first.

        A class that is registered without converters is pickled, and a pickle is not recorded.
        """
        entry = registry.entry_of(kind)
        if entry is not None and not isinstance(entry, registry.Custom):
            return write_pickle  # A pickle names the class; a worker that has not registered it would get a dict.
        write = super()._writer_for(value, kind)
        return write if write is write_pickle else _recording(kind, write)


def _encode_whole(context: Any, value: Any) -> Any:
    """Return the plain value for one value, or a pickle, as ``encode_whole`` of the context does."""
    return context.encode_whole(value)


def _encode_arguments(context: Any, values: Sequence[Any]) -> list[Any]:
    """Return a new list of the plain values of the arguments of a task."""
    return [_encode_argument(context, value) for value in values]


def _encode_argument(context: Any, value: Any) -> Any:
    """Encode each item of a list as a value of its own; any other argument as one value.

    A tuple is encoded as the list of its items, and arrives as a list.
    """
    if type(value) is list:
        return [context.encode_whole(item) for item in value]
    return context.encode_whole([*value] if type(value) is tuple else value)


class _Recording:
    """Writer of mutable objects that records each of them first."""

    __slots__ = ("write",)

    def __init__(self, write: Writer) -> None:
        self.write = write

    def __call__(self, value: Any, context: Any) -> Any:
        context.record(value)
        return self.write(value, context)


def _recording(kind: type, write: Writer) -> Writer:
    """Return a writer that records objects of a mutable type first; the same writer for an immutable type."""
    if write is write_same or write is standard.write_integer or issubclass(kind, _IMMUTABLE):
        return write
    return write if isinstance(write, _Recording) else _Recording(write)
