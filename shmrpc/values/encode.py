"""Encoding of values as bodies: MessagePack's own types and extensions, with large buffers beside them."""

from __future__ import annotations

import enum
import functools
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Final

import msgspec
from msgspec.msgpack import Ext

from shmrpc import _core
from shmrpc.values import fields, registry, standard
from shmrpc.values.encode_context import (
    EncodeContext,
    ExtKey,
    InlineEncodeContext,
    Writer,
    write_dict,
    write_list,
    write_same,
)
from shmrpc.values.encode_errors import derived_error, unregistered_error, unsupported_error
from shmrpc.values.extension import Extension, imported
from shmrpc.values.pickling import write_pickle

#: Number of types whose writers are cached: more than a program has, unless it creates classes while it runs.
_MAX_TYPES: Final = 4096


class NotPlain(OverflowError):
    """Error of a value that the codec cannot carry, in a field whose declared type promised a plain value.

    It is an OverflowError, as for an integer that is too large: after either error, all fields are converted.
    """


def enc_hook(value: Any) -> Any:
    """Return the extension in an ExtKey, a class that msgspec does not know. Raises NotPlain for any other value."""
    if type(value) is ExtKey:
        return value.ext
    raise NotPlain(str(unsupported_error(value)))


class ValueEncoder:
    """Encoder of values for one codec."""

    def __init__(
        self,
        pack: Callable[[Any], bytes],
        extensions: Iterable[Extension],
        *,
        pickled: bool,
        structural: bool = True,
    ) -> None:
        """Create an encoder.

        ``pack`` encodes plain values. With ``pickled``, values that cannot travel otherwise are pickled. With
        ``structural``, instances of classes that are not registered travel as a map of their fields, a tuple or the
        value of an Enum; a receiver that declares the class rebuilds them.
        """
        self._pack = pack
        self._pickled = pickled
        self._structural = structural
        declares = structural and not pickled
        self._extensions = tuple(each for each in extensions if declares or not each.declared)
        written = [pair for each in self._extensions for pair in each.writers.items()]
        self._exact = _EXACT | {kind: write for kind, write in written if isinstance(kind, type)}
        #: Writers of the types seen so far.
        self._writers = dict(self._exact)
        #: Number of times that the cache was cleared.
        self._changes = 0

    def encode(self, value: Any) -> bytes | _core.Parcel:
        """Encode a value as a body. Raises one of UNSENDABLE."""
        return self._encode_body(value, EncodeContext.plain)

    def encode_all(self, values: Sequence[Any]) -> bytes | _core.Parcel:
        """Encode an array of values as a body. Raises one of UNSENDABLE."""
        return self._encode_body(values, _plain_each)

    def encode_inline(self, value: Any) -> bytes:
        """Encode a value as bytes that include its large buffers. Raises one of UNSENDABLE."""
        return self._pack_value(value, EncodeContext.plain, InlineEncodeContext)[0]

    def _encode_body(self, value: Any, plain: Callable[[EncodeContext, Any], Any]) -> bytes | _core.Parcel:
        """Encode the plain value that ``plain(context, value)`` returns as a body."""
        body, buffers = self._pack_value(value, plain, EncodeContext)
        return _core.Parcel(body, buffers) if buffers else body

    def _pack_value(
        self, value: Any, plain: Callable[[EncodeContext, Any], Any], make: type[EncodeContext]
    ) -> tuple[bytes, list[Any]]:
        """Return the bytes of the plain value that ``plain(context, value)`` returns, and the buffers beside them.

        ``make`` creates the context. If fields turn out to hold values that are not plain, starts again, thoroughly.
        Raises one of UNSENDABLE.
        """
        try:
            context = make(self._writers, self.classify, self._pack, self._pickled, False)
            body = self._pack(plain(context, value))
        except OverflowError:
            context = make(self._writers, self.classify, self._pack, self._pickled, True)
            try:
                body = self._pack(plain(context, value))
            except NotPlain as error:
                raise TypeError(str(error)) from None
        return body, context.buffers

    def is_plain(self, kind: type) -> bool | tuple[tuple[str, ...], tuple[str, ...]] | None:
        """Return True if the codec carries all instances of a class unchanged, False if this encoder must write them.

        Returns two tuples of field names if the codec carries an instance under a condition: the instance has the first
        fields itself, and plain values in the second. Returns None if the native encoder may write the common cases.
        """
        if kind in (msgspec.Raw, Ext):
            return True
        if registry.entry_of(kind) is not None:
            return False
        if kind is memoryview or kind is imported("numpy.ndarray"):
            return None
        if not self._structural:
            return False
        names = fields.names_of(kind)
        if names is not None:
            if fields.is_partly_written(kind):
                return False
            checked = fields.class_defaults(kind, names), fields.inexact_names(kind, names)
            return not self._pickles(kind) and (checked if any(checked) else True)
        return issubclass(kind, enum.Enum) and not self._pickled and fields.is_closed(kind)

    def forget(self) -> None:
        """Clear the cached writers, because a class was registered."""
        self._changes += 1
        self._writers.clear()
        self._writers.update(self._exact)

    def classify(self, value: Any) -> Writer:
        """Return the writer for the type of a value, and cache it. Clears a full cache first.

        Raises nothing: the writer for a type that cannot be sent raises TypeError.
        """
        kind, changes = type(value), self._changes
        if len(self._writers) >= _MAX_TYPES:
            self.forget()
        writer = self._writer_for(value, kind)
        if changes == self._changes:  # Otherwise the type may have been registered meanwhile.
            self._writers[kind] = writer
        return writer

    def _writer_for(self, value: Any, kind: type) -> Writer:
        """Return the writer for a value of a type; one that raises TypeError if such values cannot be sent."""
        entry = registry.entry_of(kind)
        if entry is not None:
            return entry.write
        if kind in self._exact:  # Another thread has just called `forget`.
            return self._exact[kind]
        base, write, covers = next((each for each in self._bases() if issubclass(kind, each[0])), _NO_BASE)
        if base is kind or covers(kind):
            return write
        names = fields.names_of(kind)
        if self._pickles(kind) and (base is not None or names is not None):
            return write_pickle
        if is_structural(kind, base, names):
            if not self._structural:
                return _refuse_unregistered
            return fields.make_writer(kind, names) if base is None and names is not None else write
        if base is not None:
            return functools.partial(_refuse_derived, base)
        return self._adopt(value) or (write_pickle if self._pickled else _refuse)

    def _adopt(self, value: Any) -> Writer | None:
        """Return the writer for a value that an extension carries for its methods, not for its class; or None."""
        return next(filter(None, (each.adopt(value) for each in self._extensions)), None)

    def _bases(self) -> Iterator[tuple[type, Writer, Callable[[type], bool]]]:
        """Yield each class that has a writer, the writer, and a test for the derived classes that the writer covers."""
        yield enum.Enum, _write_enum, _never
        for extension in self._extensions:
            for kind, write in extension.writers.items():
                found = kind if isinstance(kind, type) else imported(kind)
                if found is not None:
                    yield found, write, extension.covers
        for base in (int, float, str, list, dict):
            yield base, self._exact[base], _never

    def _pickles(self, kind: type) -> bool:
        """Return True if instances of a class with fields are pickled: of all classes except shmrpc's own."""
        return self._pickled and not kind.__module__.startswith("shmrpc.")


def _plain_each(context: EncodeContext, values: Sequence[Any]) -> list[Any]:
    """Return a new list of the plain values of ``values``."""
    return [context.plain(value) for value in values]


def _write_enum(value: enum.Enum, context: EncodeContext) -> Any:
    """Return the plain value of an Enum's value, in place of the member."""
    return context.plain(value._value_)


def _never(kind: type) -> bool:
    """Return False: a writer covers no derived classes."""
    return False


def is_structural(kind: type, base: type | None, names: tuple[str, ...] | None) -> bool:
    """Return True if instances travel as their structure: a map of fields, the items of a NamedTuple, an Enum's value.

    ``base`` is its base class that travels, if any, ``names`` are its fields.
    """
    if base is None:
        return names is not None
    return base is enum.Enum or (base is tuple and hasattr(kind, "_fields"))


def _refuse(value: Any, context: EncodeContext) -> Any:
    """Raise the TypeError for a value of an unsupported type."""
    raise unsupported_error(value)


def _refuse_derived(base: type, value: Any, context: EncodeContext) -> Any:
    """Raise the TypeError for an instance of a class derived from ``base``, which travels."""
    raise derived_error(value, base)


def _refuse_unregistered(value: Any, context: EncodeContext) -> Any:
    """Raise the TypeError for an instance that only a declared or registered class could rebuild."""
    raise unregistered_error(value)


#: Writers of exactly these types, MessagePack's own and the codec's.
_EXACT: Final[dict[type, Writer]] = {
    type(None): write_same,
    bool: write_same,
    float: write_same,
    str: write_same,
    int: standard.write_integer,
    list: write_list,
    dict: write_dict,
    Ext: write_same,
    msgspec.Raw: write_same,
    msgspec.UnsetType: write_same,
    ExtKey: write_same,
}
registry.add_native(_EXACT)
#: Entry for a class without a base class that can be written.
_NO_BASE: Final[tuple[None, Writer, Callable[[type], bool]]] = (None, _refuse, _never)
