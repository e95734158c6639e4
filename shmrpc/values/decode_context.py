"""State of decoding the extensions of a body."""

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
from shmrpc.values.encode_context import MAX_DEPTH

#: Errors that decoding raises for invalid MessagePack, or for a value that does not fit.
UNREADABLE: Final = (msgspec.DecodeError, UnicodeDecodeError, RecursionError, Unmapped)

#: Returns the value for a decoded payload.
Reader = Callable[[Any, "DecodeContext"], Any]
#: Decodes MessagePack: ``unpack(data, ext_hook=...)``.
Unpack = Callable[..., Any]


class DecodeContext:
    """State of decoding extensions at one depth, of one body with buffers, or of any number of bodies without."""

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
        """Create a context.

        ``readers`` maps codes to the name and the reader of an extension. With ``pickled``, pickles are loaded. With
        ``owns``, arrays are writable copies.
        """
        self.pickled = pickled
        self.owns = owns
        self._readers = readers
        self._unpack = unpack
        #: Buffers beside the body; None for a body without.
        self._buffers = buffers
        #: Values made of buffers: a buffer that is referred to twice is copied once.
        self._made = made
        #: Number of extensions around these.
        self._depth = depth
        #: Hook for extensions within these; None until the first.
        self._inner_hook: Callable[[int, Any], Any] | None = None

    def with_buffers(self, buffers: tuple[Any, ...]) -> DecodeContext:
        """Return a context for one body with buffers."""
        return DecodeContext(self._readers, self._unpack, self.pickled, buffers, {}, owns=self.owns)

    def hook(self, code: int, data: Any) -> Any:
        """Decode an extension; return an Ext for an unknown code.

        Raises one of UNREADABLE if the extension is invalid.
        """
        reader = self._readers.get(code)
        if reader is None:
            return Ext(code, bytes(data))
        name, read = reader
        inner_hook = self._inner_hook or self._nested_hook()
        try:
            return read(self._unpack(data, ext_hook=inner_hook), self)
        except UNREADABLE:
            raise
        except Exception as error:
            if is_from_signal_handler(error):
                raise
            what = str(error) or type(error).__name__
            raise msgspec.DecodeError(f"a value cannot be read as {name}: {what}") from error

    def _nested_hook(self) -> Callable[[int, Any], Any]:
        """Return the hook for extensions within these. Raises DecodeError beyond the largest depth."""
        # The encoder does not count an innermost extension that contains no others, such as a large int.
        if self._depth > MAX_DEPTH:
            raise msgspec.DecodeError(f"more than {MAX_DEPTH} extensions in each other")
        depth, owns = self._depth + 1, self.owns
        inner = DecodeContext(self._readers, self._unpack, self.pickled, self._buffers, self._made, depth, owns)
        self._inner_hook = inner.hook
        return self._inner_hook

    def data(self, reference: Any) -> Data:
        """Return data of a payload: bytes themselves, or the buffer of an index.

        Raises TypeError for anything else, ValueError for an index out of range, and DecodeError for a body without
        buffers.
        """
        if type(reference) is bytes:
            return reference
        if type(reference) is not int:
            raise TypeError(f"expected bin or the index of a buffer, got {type(reference).__name__}")
        if self._buffers is None:
            raise msgspec.DecodeError("the value refers to a buffer, and none has come with it")
        if not 0 <= reference < len(self._buffers):
            raise ValueError(f"it refers to buffer {reference} of {len(self._buffers)}")
        return self._buffers[reference]  # type: ignore[no-any-return]

    def once(self, kind: Hashable, reference: Any, make: Callable[[Data], Any]) -> Any:
        """Return ``make(data)`` for data of a payload; the same object each time for the same kind and buffer."""
        data, made = self.data(reference), self._made
        if type(reference) is bytes or made is None:
            return make(data)
        key = (kind, reference)
        if key not in made:
            made[key] = make(data)
        return made[key]


#: Modules that were imported.
_modules: Final[dict[str, Any]] = {}


def library(module: str, what: str) -> Any:
    """Import and return the module that a value needs. Raises DecodeError, which calls the value ``what``."""
    known = _modules.get(module)
    if known is not None and sys.modules.get(module) is known:
        return known
    try:
        found = _modules[module] = importlib.import_module(module)
    except ImportError as error:
        raise msgspec.DecodeError(f"the value is {what}, and {describe_import_failure(module, error)}") from None
    return found
