"""Reading a body's extensions: each goes to the function that makes a value of its payload."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Hashable, Mapping
from typing import Any, Final

import msgspec
from msgspec.msgpack import Ext

from shmrpc.basics.import_hints import describe_import_failure
from shmrpc.basics.signals import is_from_signal_handler
from shmrpc.values.blocks import Data, Unmapped
from shmrpc.values.writing import MAX_DEPTH

#: What decoding raises for bytes that are not MessagePack, or hold a value that does not fit.
UNREADABLE: Final = (msgspec.DecodeError, UnicodeDecodeError, RecursionError, Unmapped)

#: Makes the value of a decoded payload.
Reader = Callable[[Any, "Reading"], Any]
#: Decodes MessagePack: ``unpack(data, ext_hook=...)``.
Unpack = Callable[..., Any]


class Reading:
    """Reads the extensions at one depth: of one body with buffers, or of any body without."""

    __slots__ = ("_buffers", "_depth", "_inner_hook", "_made", "_readers", "_unpack", "owns", "pickled")

    def __init__(
        self,
        readers: Mapping[int, tuple[str, Reader]],
        unpack: Unpack,
        pickled: bool,
        buffers: tuple[Any, ...] | None = None,
        made: dict[Hashable, Any] | None = None,
        depth: int = 0,
        owns: bool = False,
    ) -> None:
        """``readers``: for each code, the extension's name and what reads it; ``pickled``: whether pickles are read.

        ``owns``: whether arrays are the receiver's own, and can be written.
        """
        self.pickled = pickled
        self.owns = owns
        self._readers = readers
        self._unpack = unpack
        #: The buffers beside the body; None for a body without.
        self._buffers = buffers
        #: What has been made of these: a buffer that is named twice is copied once.
        self._made = made
        #: The number of extensions around these.
        self._depth = depth
        #: Reads the extensions within these; None until there are some.
        self._inner_hook: Callable[[int, Any], Any] | None = None

    def with_buffers(self, buffers: tuple[Any, ...]) -> Reading:
        """The same for one body with buffers."""
        return Reading(self._readers, self._unpack, self.pickled, buffers, {}, owns=self.owns)

    def hook(self, code: int, data: Any) -> Any:
        """The value of an extension; raises one of UNREADABLE if there is none."""
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
            if is_from_signal_handler(error):
                raise
            what = str(error) or type(error).__name__
            raise msgspec.DecodeError(f"a value cannot be read as {name}: {what}") from error

    def _deeper(self) -> Callable[[int, Any], Any]:
        # The innermost may be one that holds no others, such as a large int, which the writer does not count.
        if self._depth > MAX_DEPTH:
            raise msgspec.DecodeError(f"more than {MAX_DEPTH} extensions in each other")
        depth, owns = self._depth + 1, self.owns
        inner = Reading(self._readers, self._unpack, self.pickled, self._buffers, self._made, depth, owns)
        self._inner_hook = inner.hook
        return self._inner_hook

    def data(self, place: Any) -> Data:
        """The bytes that a payload holds or refers to."""
        if type(place) is bytes:
            return place
        if type(place) is not int:
            raise TypeError(f"expected bin or the place of a buffer, got {type(place).__name__}")
        if self._buffers is None:
            raise msgspec.DecodeError("the value refers to a buffer, and none has come with it")
        if not 0 <= place < len(self._buffers):
            raise ValueError(f"it refers to buffer {place} of {len(self._buffers)}")
        return self._buffers[place]  # type: ignore[no-any-return]

    def once(self, what: Hashable, place: Any, make: Callable[[Data], Any]) -> Any:
        """What ``make`` makes of the data; the same object each time for the same buffer."""
        data, made = self.data(place), self._made
        if type(place) is bytes or made is None:
            return make(data)
        key = (what, place)
        if key not in made:
            made[key] = make(data)
        return made[key]


#: Modules whose import has ended.
_modules: Final[dict[str, Any]] = {}


def library(module: str, what: str) -> Any:
    """The module that a value needs; DecodeError if it cannot be imported. ``what``: what the value is."""
    known = _modules.get(module)
    if known is not None and sys.modules.get(module) is known:
        return known
    try:
        found = _modules[module] = importlib.import_module(module)
    except ImportError as error:
        raise msgspec.DecodeError(f"the value is {what}, and {describe_import_failure(module, error)}") from None
    return found
