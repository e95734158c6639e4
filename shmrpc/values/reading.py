"""Extensions in a body: each is handed to what makes a value of its payload."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Hashable, Mapping
from typing import Any, Final

import msgspec
from msgspec.msgpack import Ext

from shmrpc.basics.missing import why_missing
from shmrpc.basics.signals import is_of_a_handler
from shmrpc.values.blocks import Data, Unmapped
from shmrpc.values.writing import MAX_DEPTH

#: What decoding raises for bytes that are no MessagePack, or hold a value that does not fit.
UNREADABLE: Final = (msgspec.DecodeError, UnicodeDecodeError, RecursionError, Unmapped)

#: Makes the value of a decoded payload.
Reader = Callable[[Any, "Reading"], Any]
#: Decodes MessagePack: ``unpack(data, ext_hook=...)``.
Unpack = Callable[..., Any]


class BuffersMissing(msgspec.DecodeError):
    """The value refers to buffers, and only a body was read: a codec's `decode` and `decoder` read all of it."""


class Reading:
    """Reads the extensions that stand at one depth: of a body with buffers, or of every body that has none."""

    __slots__ = ("_buffers", "_depth", "_inner_hook", "_made", "_readers", "_unpack", "pickled")

    def __init__(
        self,
        readers: Mapping[int, tuple[str, Reader]],
        unpack: Unpack,
        pickled: bool,
        buffers: tuple[Any, ...] | None = None,
        made: dict[Hashable, Any] | None = None,
        depth: int = 0,
    ) -> None:
        """``readers``: by code, an extension's name and what reads it; ``pickled``: whether pickles are read."""
        self.pickled = pickled
        self._readers = readers
        self._unpack = unpack
        #: Those beside the body; None if there are none.
        self._buffers = buffers
        #: What has been made of them: a buffer that is named twice is copied once.
        self._made = made
        #: The number of extensions around these.
        self._depth = depth
        #: Reads the extensions within these; made when there are some.
        self._inner_hook: Callable[[int, Any], Any] | None = None

    def with_buffers(self, buffers: tuple[Any, ...]) -> Reading:
        """Reads the extensions of one body."""
        return Reading(self._readers, self._unpack, self.pickled, buffers, {})

    def hook(self, code: int, data: Any) -> Any:
        """The value of an extension; one of UNREADABLE if it has none."""
        reader = self._readers.get(code)
        if reader is None:
            return Ext(code, bytes(data))
        name, read = reader
        inner_hook = self._inner_hook or self._deeper()
        try:
            return read(self._unpack(data, ext_hook=inner_hook), self)
        except UNREADABLE:
            raise
        except Exception as error:
            if is_of_a_handler(error):
                raise
            what = str(error) or type(error).__name__
            raise msgspec.DecodeError(f"a value cannot be read as {name}: {what}") from error

    def _deeper(self) -> Callable[[int, Any], Any]:
        if self._depth == MAX_DEPTH:
            raise msgspec.DecodeError(f"more than {MAX_DEPTH} extensions in each other")
        inner = Reading(self._readers, self._unpack, self.pickled, self._buffers, self._made, self._depth + 1)
        self._inner_hook = inner.hook
        return self._inner_hook

    def data(self, place: Any) -> Data:
        """The bytes that a payload holds or refers to."""
        if type(place) is bytes:
            return place
        if type(place) is not int:
            raise TypeError(f"expected bin or the place of a buffer, got {type(place).__name__}")
        if self._buffers is None:
            raise BuffersMissing("the value refers to a buffer, and none has come with it")
        if not 0 <= place < len(self._buffers):
            raise ValueError(f"it refers to buffer {place} of {len(self._buffers)}")
        return self._buffers[place]  # type: ignore[no-any-return]

    def once(self, what: Hashable, place: Any, make: Callable[[Data], Any]) -> Any:
        """What ``make`` makes of the data; the same thing for the same buffer."""
        data, made = self.data(place), self._made
        if type(place) is bytes or made is None:
            return make(data)
        key = (what, place)
        if key not in made:
            made[key] = make(data)
        return made[key]


#: Modules that have been imported, to the end.
_modules: Final[dict[str, Any]] = {}


def library(module: str, what: str) -> Any:
    """The module that a value needs, which is ``what``; DecodeError if it cannot be had."""
    known = _modules.get(module)
    if known is not None and sys.modules.get(module) is known:
        return known
    try:
        found = _modules[module] = importlib.import_module(module)
    except ImportError as error:
        raise msgspec.DecodeError(f"the value is {what}, and {why_missing(module, error)}") from None
    return found
