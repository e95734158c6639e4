"""Codecs between values and bodies: MessagePack by two implementations that produce and accept the same bytes.

``"msgspec"`` is the fast codec. ``"msgpack"`` uses the reference package of the format, to verify the fast codec and to
read traffic. Each side chooses one of the two by itself. ``"pickle"`` is the fast codec, too, and pickles the values
that MessagePack cannot carry; both sides must choose it.

Other types travel as extensions, see :mod:`shmrpc.values.all_extensions`. A dataclass, a Struct and an Enum that are
not registered travel as msgspec encodes them: as a map, and as the value of the member.
"""

from __future__ import annotations

import functools
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any, Final, Literal, TypeAlias

import msgspec

from shmrpc import _core
from shmrpc.values import registry
from shmrpc.values.all_extensions import ALL_EXTENSIONS
from shmrpc.values.blocks import LARGE, LARGE_ARRAY
from shmrpc.values.convert import DeclaredTypes, dec_hook
from shmrpc.values.decode_context import UNREADABLE, DecodeContext, Unpack
from shmrpc.values.encode import ValueEncoder, enc_hook
from shmrpc.values.error_text import translate_error
from shmrpc.values.expected import expected
from shmrpc.values.foreign_arrays import ForeignDecodeContext, NeedsDeclaredType, UndeclaredArray, require_converted
from shmrpc.values.identity_encoder import IdentityEncoder
from shmrpc.values.pickling import PICKLE, read_lazily
from shmrpc.wire import reference_package

__all__ = [
    "BODIES",
    "UNREADABLE",
    "Body",
    "Codec",
    "CodecName",
    "UndeclaredArray",
    "body_size",
    "body_weight",
    "check_type",
    "decode_inline",
    "drop_buffers",
    "encode_inline",
    "exact_codec",
    "get_codec",
    "identity_codec",
    "require_converted",
    "with_own_buffers",
]

CodecName = Literal["msgspec", "msgpack", "pickle"]

#: Body of a frame: MessagePack, with the large buffers that it refers to, if any.
Body: TypeAlias = bytes | _core.Parcel
#: Types of a body.
BODIES: Final = (bytes, _core.Parcel)


def body_weight(body: Body) -> int:
    """Return the size in bytes for which credit and queues charge a body; large buffers count little."""
    return len(body) if isinstance(body, bytes) else body.weight


def body_size(body: Body) -> int:
    """Return the size of a body in bytes without its large buffers, which ``max_frame`` limits."""
    return len(body if isinstance(body, bytes) else body.body)


def with_own_buffers(body: Body) -> Body:
    """Return a body whose large buffers are copies, for a transport without shared memory; bytes unchanged."""
    return body if isinstance(body, bytes) else _core.Parcel(body.body, map(bytes, body.buffers))


def drop_buffers(body: Body) -> None:
    """Release a decoded body's references to its large buffers; the decoded values keep their own.

    Does nothing for bytes.
    """
    if type(body) is _core.Parcel:
        body.drop_buffers()


class Codec(ABC):
    """Encoder and decoder of bodies. Derived classes supply the MessagePack implementation."""

    #: Encodes a value. Raises TypeError, ValueError, OverflowError or RecursionError if it cannot be carried.
    encode: Callable[[Any], Body]
    #: Encodes an array of values, such as the arguments of a call. The tuple or list itself is no value.
    encode_all: Callable[[Sequence[Any]], Body]
    #: Validates a decoded value for a type. Raises msgspec.ValidationError if it does not fit.
    convert: Callable[[Any, Any], Any]

    def __init__(
        self,
        pack: Callable[[Any], bytes],
        unpack: Unpack,
        *,
        pickled: bool,
        reference: bool = False,
        whole: bool = False,
        structural: bool = True,
    ) -> None:
        """Create a codec from the functions of a MessagePack implementation.

        With ``pickled``, values that MessagePack cannot carry are pickled. ``reference`` keeps the native codec out of
        use. For ``whole`` see :func:`identity_codec`, for ``structural`` :func:`exact_codec`.
        """
        if whole:
            values: ValueEncoder = IdentityEncoder(pack, ALL_EXTENSIONS)
        else:
            values = ValueEncoder(pack, ALL_EXTENSIONS, pickled=pickled, structural=structural)
        encoder = _core.Encoder(
            encode_plain=pack,
            encode_value=values.encode,
            encode_values=values.encode_all,
            is_plain=values.is_plain,
            large=LARGE,
            large_array=LARGE_ARRAY,
            reference=reference,
            whole=whole,
        )
        #: Native encoder of the types that MessagePack has itself.
        self.encoder = encoder
        self._is_reference = reference
        self._any = self.expected(Any)
        self._types = DeclaredTypes(pickled=pickled)
        self._unpack = unpack
        readers = {each.code: (each.name, each.read) for each in ALL_EXTENSIONS}
        if whole:
            readers[PICKLE] = ("pickle", read_lazily)
        self._readers = readers
        self._reading = DecodeContext(readers, unpack, pickled)
        self._own_reading = DecodeContext(readers, unpack, pickled, owns=True)
        self._decode: Callable[[Any], Any] = functools.partial(unpack, ext_hook=self._reading.hook)
        self.encode, self.encode_all, self.convert = encoder.encode, encoder.encode_all, self._types.convert
        for forget in (values.forget, encoder.forget, self._types.forget):
            registry.on_change(forget)

    def expected(self, kind: Any) -> _core.ExpectedType | None:
        """Return the native decoder for a type, or None if there is none, so that :meth:`decoder` must decode it."""
        return None if self._is_reference else expected(kind)

    @abstractmethod
    def quick_decoder(self, kind: Any) -> Callable[[Body], Any]:
        """Return a fast decoder of bodies without buffers, which raises one of UNREADABLE for some valid ones, too.

        Raises TypeError for a type to which no value can be decoded.
        """

    @abstractmethod
    def decoder(self, kind: Any) -> Callable[[Body], Any]:
        """Return a decoder of bodies for a declared type. Raises TypeError as :meth:`quick_decoder` does.

        The decoder raises one of UNREADABLE for an invalid value, and releases the buffers of a body it has decoded.
        """

    def decode(self, body: Body) -> Any:
        """Decode a body, and release its large buffers.

        Raises one of UNREADABLE, and leaves the buffers to the body, if it is invalid: NeedsDeclaredType if it contains
        an array of another library.
        """
        return self._decode_parcel(body, self._any, _identity) if type(body) is _core.Parcel else self._decode(body)

    def decode_own(self, body: Body) -> Any:
        """Decode a body with writable arrays, which are copies, and release its buffers. Raises one of UNREADABLE."""
        if type(body) is not _core.Parcel:
            return self._unpack(body, ext_hook=self._own_reading.hook)
        value = self._unpack(body.body, ext_hook=self._own_reading.with_buffers(body.buffers).hook)
        body.drop_buffers()
        return value

    def decode_for_conversion(self, body: Body) -> tuple[Any, bool]:
        """Decode a value that the caller will convert to a declared type.

        Returns the value, and True if the caller must pass the converted value to :func:`require_converted`. Raises one
        of UNREADABLE.
        """
        try:
            return self.decode(body), False
        except NeedsDeclaredType:
            pass
        value = self._decode_with_placeholders(body)
        drop_buffers(body)
        return value, True

    def _decode_with_placeholders(self, body: Body) -> Any:
        """Decode a body, with a ForeignArray in place of each array of another library. Keeps its buffers."""
        data, buffers = (body.body, body.buffers) if type(body) is _core.Parcel else (body, None)
        made: dict[Any, Any] | None = None if buffers is None else {}
        context = ForeignDecodeContext(self._readers, self._unpack, self._reading.pickled, buffers, made)
        return self._unpack(data, ext_hook=context.hook)

    def _decode_foreign(self, body: Body, convert: Callable[[Any], Any]) -> Any:
        """Decode a body with arrays of other libraries, convert the value by ``convert``, and release its buffers.

        Raises UndeclaredArray, one of UNREADABLE, if ``convert`` leaves such an array.
        """
        value = require_converted(convert(self._decode_with_placeholders(body)))
        drop_buffers(body)
        return value

    def _decode_with_extensions(self, body: bytes) -> tuple[Any, bool]:
        """Decode a body. Returns the value, and True if it contains extensions; _UNREAD if it needs a declared type."""
        codes = []

        def hook(code: int, data: Any) -> Any:
            codes.append(code)
            return self._reading.hook(code, data)

        try:
            return self._unpack(body, ext_hook=hook), bool(codes)
        except NeedsDeclaredType:
            return _UNREAD, True

    def _decode_parcel(
        self, parcel: _core.Parcel, known: _core.ExpectedType | None, convert: Callable[[Any], Any]
    ) -> Any:
        """Decode a parcel; then, but not after an error, release its buffers, which live on as long as the value does.

        The native decoder ``known`` decodes the parcel if it can. Otherwise ``convert`` converts the decoded value.
        """
        try:
            value = _UNREAD if known is None else known.read(parcel)
        except ValueError:
            value = _UNREAD
        if value is _UNREAD:  # Outside the clause, so that an error of it has no context.
            value = convert(self._unpack(parcel.body, ext_hook=self._reading.with_buffers(parcel.buffers).hook))
        parcel.drop_buffers()
        return value


#: Placeholder for a value that was not decoded.
_UNREAD: Final = object()


def _identity(value: Any) -> Any:
    """Return the value unchanged."""
    return value


class _Msgspec(Codec):
    def __init__(self, *, pickled: bool = False, whole: bool = False, structural: bool = True) -> None:
        pack = msgspec.msgpack.Encoder(enc_hook=enc_hook).encode
        super().__init__(pack, msgspec.msgpack.decode, pickled=pickled, whole=whole, structural=structural)
        self._decode = msgspec.msgpack.Decoder(ext_hook=self._reading.hook).decode  # Equivalent, and faster.

    def quick_decoder(self, kind: Any) -> Callable[[Body], Any]:
        if kind is Any:
            return self._decode
        wanted = self._types.for_decoding(kind)
        return msgspec.msgpack.Decoder(wanted, ext_hook=self._reading.hook, dec_hook=dec_hook).decode

    def decoder(self, kind: Any) -> Callable[[Body], Any]:
        """Return a decoder for a declared type: quick_decoder() first, then a conversion of a value with extensions."""
        if kind is Any:
            return self.decode
        quick_decoder, noted, convert = (
            self.quick_decoder(kind),
            self._decode_with_extensions,
            self._types.converter(kind),
        )
        known = self.expected(kind)

        def decode(body: Body) -> Any:
            if type(body) is _core.Parcel:  # Contains extensions, which msgspec may refuse for the declared type.
                try:
                    return self._decode_parcel(body, known, convert)
                except NeedsDeclaredType:
                    pass
                return self._decode_foreign(body, convert)
            unfit = None
            try:
                return quick_decoder(body)
            except NeedsDeclaredType:
                pass
            except msgspec.ValidationError as error:
                unfit = translate_error(error, kind)
            value, has_extensions = (_UNREAD, True) if unfit is None else noted(body)
            if unfit is None or value is _UNREAD:
                return self._decode_foreign(body, convert)
            if not has_extensions:  # Only extensions could be decoded in another way.
                try:
                    raise unfit
                finally:
                    del unfit  # Its traceback refers to this frame.
            return convert(value)

        return decode


class _Msgpack(Codec):
    def __init__(self, *, structural: bool = True) -> None:
        super().__init__(
            reference_package.pack, reference_package.unpack, pickled=False, reference=True, structural=structural
        )

    def quick_decoder(self, kind: Any) -> Callable[[Body], Any]:
        return self.decoder(kind)

    def decoder(self, kind: Any) -> Callable[[Body], Any]:
        """Return a decoder for a declared type, which converts every decoded value."""
        if kind is Any:
            return self.decode
        self._types.for_decoding(kind)
        convert = self._types.converter(kind)

        def decode(body: Body) -> Any:
            try:
                return (
                    self._decode_parcel(body, None, convert)
                    if type(body) is _core.Parcel
                    else convert(self._decode(body))
                )
            except NeedsDeclaredType:
                pass
            return self._decode_foreign(body, convert)

        return decode


@functools.cache
def _codec(name: str, structural: bool = True) -> Codec:
    """Return the codec of a valid name. ``structural``: False to refuse unregistered classes."""
    if name == "msgpack":
        return _Msgpack(structural=structural)
    return _Msgspec(pickled=name == "pickle", structural=structural)


def get_codec(name: CodecName) -> Codec:
    """Return the codec of a name, which all threads of the process share. Raises ValueError for an unknown name."""
    _check_name(name)
    return _codec(name)


def exact_codec(name: CodecName) -> Codec:
    """Return the codec of a name for values without declared types, such as items of queues.

    The codec encodes no dataclass, Struct, NamedTuple or Enum that is not registered, because the receiver could not
    know the class. Raises ValueError for an unknown name.
    """
    _check_name(name)
    return _codec(name, False)


def _check_name(name: CodecName) -> None:
    """Raise ValueError for an unknown name of a codec."""
    if name not in ("msgspec", "msgpack", "pickle"):
        raise ValueError(f"codec must be 'msgspec', 'msgpack' or 'pickle', not {name!r}")


@functools.cache
def identity_codec() -> Codec:
    """Return the codec of pools: ``"pickle"``, but an object that occurs twice in a value arrives as one object.

    Decoding returns a :class:`shmrpc.values.pickling.LazyPickle` in place of each pickled value.
    """
    return _Msgspec(pickled=True, whole=True)


@functools.cache
def _inline_encoder() -> ValueEncoder:
    """Return the encoder of :func:`encode_inline`."""
    values = ValueEncoder(msgspec.msgpack.Encoder(enc_hook=enc_hook).encode, ALL_EXTENSIONS, pickled=False)
    registry.on_change(values.forget)
    return values


def encode_inline(value: Any) -> bytes:
    """Encode a value that becomes part of another body, without buffers beside it and without pickles.

    Raises one of :data:`shmrpc.values.encode_errors.UNSENDABLE`.
    """
    return _inline_encoder().encode_inline(value)


def decode_inline(data: bytes) -> Any:
    """Decode a value encoded by :func:`encode_inline`. Raises one of UNREADABLE if the data is invalid."""
    return _codec("msgspec").decode(data)


def check_type(kind: Any) -> None:
    """Raise TypeError for a type to which no value can be decoded."""
    _codec("msgspec").quick_decoder(kind)
