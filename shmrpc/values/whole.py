"""Values that are kept whole: what stands twice in one arrives as one object. For what a pool sends and gets."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final

from shmrpc import _core
from shmrpc.values import registry, standard
from shmrpc.values.encode import ValueEncoder
from shmrpc.values.extension import Extension
from shmrpc.values.pickling import pickle_whole, write_pickle
from shmrpc.values.unsendable import is_unsendable
from shmrpc.values.writing import Writer, Writing, write_same

#: Of these nobody can tell a copy.
_IMMUTABLE: Final = (type(None), bool, int, float, str, bytes, tuple, frozenset)
#: What needs no pickle where all else is pickled.
_ATOMS: Final = (type(None), bool, int, float, bytes)


class _NotWhole(Exception):
    """A value has to be pickled, and with it all of which it is a part."""


class _WholeWriting(Writing):
    """Writes values as they are; those that would lose what they share, or are in need of a pickle, as one pickle."""

    __slots__ = ("_met",)
    _met: dict[int, Any]

    def whole(self, value: Any) -> Any:
        """What the codec carries in a value's place."""
        self._met = {}
        placed = len(self.buffers)
        try:
            return self.plain(value)
        except _NotWhole:
            del self.buffers[placed:]
            del self._held[placed:]
            self._places = {key: place for key, place in self._places.items() if place < placed}
            self._depth = 0
        return pickle_whole(value, self)

    def before_pickle(self) -> None:
        """Has the whole value pickled: a pickle in it would arrive unread, and lose what it shares with the rest."""
        raise _NotWhole

    def meet(self, value: Any) -> None:
        """Notes what can be changed; what is met again has to be pickled."""
        if id(value) in self._met:
            raise _NotWhole
        self._met[id(value)] = value


class _PickledWriting(_WholeWriting):
    """Pickles each value."""

    __slots__ = ()

    def whole(self, value: Any) -> Any:
        """What the codec carries in a value's place."""
        return self.plain(value) if type(value) in _ATOMS else pickle_whole(value, self)

    def meet(self, value: Any) -> None:
        """Has nothing to note."""


class WholeEncoder(ValueEncoder):
    """Writes values for the codec of pools.

    An argument that is a tuple is an array whose items are one value; one that is a list holds a value in each item.
    """

    def __init__(self, pack: Callable[[Any], bytes], extensions: Iterable[Extension]) -> None:
        super().__init__(pack, extensions, pickled=True)
        self._exact = {kind: _noted(kind, write) for kind, write in self._exact.items()}
        self.forget()

    def encode(self, value: Any) -> bytes | _core.Parcel:
        """The body for a value."""
        return self._body(value, _whole)

    def encode_all(self, values: Sequence[Any]) -> bytes | _core.Parcel:
        """The body for an array of arguments."""
        return self._body(values, _arguments)

    def _packed(self, value: Any, plain: Callable[[Any, Any], Any], make: type[Writing]) -> tuple[bytes, list[Any]]:
        try:
            return super()._packed(value, plain, _WholeWriting)
        except Exception as error:
            if not is_unsendable(error):
                raise
        return super()._packed(value, plain, _PickledWriting)  # A pickle has room for a text with lone surrogates.

    def _writer_for(self, value: Any, kind: type) -> Writer:
        entry = registry.entry_of(kind)
        if entry is not None and not isinstance(entry, registry.Custom):
            return write_pickle  # Which brings its class along; where that is not registered yet, a dict would arrive.
        write = super()._writer_for(value, kind)
        return write if write is write_pickle else _noted(kind, write)


def _whole(writing: Any, value: Any) -> Any:
    return writing.whole(value)


def _arguments(writing: Any, values: Sequence[Any]) -> list[Any]:
    return [_argument(writing, value) for value in values]


def _argument(writing: Any, value: Any) -> Any:
    if type(value) is list:
        return [writing.whole(item) for item in value]
    return writing.whole([*value] if type(value) is tuple else value)


class _Noted:
    """Writes what can be changed, unless it was met before."""

    __slots__ = ("write",)

    def __init__(self, write: Writer) -> None:
        self.write = write

    def __call__(self, value: Any, writing: Any) -> Any:
        writing.meet(value)
        return self.write(value, writing)


def _noted(kind: type, write: Writer) -> Writer:
    if write is write_same or write is standard.write_integer or issubclass(kind, _IMMUTABLE):
        return write
    return write if isinstance(write, _Noted) else _Noted(write)
