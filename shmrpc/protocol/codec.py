"""MessagePack, by two implementations that produce and accept the same bytes.

``"msgspec"`` is the fast one. ``"msgpack"`` is the format's reference package; it is there to check the
other by, and to read what travels. Each side chooses for itself. Types that MessagePack does not have are
carried as msgspec's documentation says: a datetime as a timestamp or as ISO text, a UUID or a Decimal as
text, an Enum as its value, a set as an array, a dataclass as a map.
"""

from __future__ import annotations

import datetime
from collections.abc import Callable
from typing import Any, Final, Literal, Protocol, cast

import msgpack
import msgspec

CodecName = Literal["msgspec", "msgpack"]

#: What decoding raises for bytes that are no MessagePack, or hold a value that does not fit.
UNREADABLE: Final = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)


class Codec(Protocol):
    """Values to bytes and back."""

    @property
    def encode(self) -> Callable[[Any], bytes]:
        """Bytes for a value; TypeError, ValueError or OverflowError for one that cannot be carried."""
        ...

    @property
    def decode(self) -> Callable[[bytes], Any]:
        """The plain value; one of UNREADABLE for bytes that are no MessagePack."""
        ...

    def decoder(self, kind: Any) -> Callable[[bytes], Any]:
        """Decodes and validates for a type; one of UNREADABLE if the value does not fit."""
        ...


class _Msgspec:
    def __init__(self) -> None:
        self.encode: Callable[[Any], bytes] = msgspec.msgpack.Encoder().encode
        self.decode: Callable[[bytes], Any] = msgspec.msgpack.Decoder().decode

    def decoder(self, kind: Any) -> Callable[[bytes], Any]:
        return msgspec.msgpack.Decoder(kind).decode


#: What the reference package carries itself and need not be turned into something plainer first.
_NATIVE: Final = (bytes, bytearray, memoryview)


class _Msgpack:
    def encode(self, value: Any) -> bytes:
        plain = msgspec.to_builtins(value, builtin_types=(*_NATIVE, datetime.datetime))
        return cast(bytes, msgpack.packb(plain, default=_plain))

    def decode(self, body: bytes) -> Any:
        # The limits of the package are for streams; here the frame's length is the limit.
        limit = max(len(body), 1)
        try:
            return msgpack.unpackb(
                body,
                strict_map_key=False,
                timestamp=3,
                max_str_len=limit,
                max_bin_len=limit,
                max_array_len=limit,
                max_map_len=limit,
                max_ext_len=limit,
                object_pairs_hook=_map,
                ext_hook=msgspec.msgpack.Ext,
            )
        except (ValueError, TypeError, OverflowError, msgpack.UnpackException) as error:
            raise msgspec.DecodeError(f"MessagePack data is malformed: {str(error) or type(error).__name__}") from None

    def decoder(self, kind: Any) -> Callable[[bytes], Any]:
        def decode(body: bytes) -> Any:
            return msgspec.convert(self.decode(body), kind, builtin_types=_NATIVE)

        return decode


def _map(pairs: list[tuple[Any, Any]]) -> dict[Any, Any]:
    """A map as msgspec reads it: an array that is a key becomes a tuple."""
    return {_key(key): value for key, value in pairs}


def _key(key: Any) -> Any:
    return tuple(map(_key, key)) if isinstance(key, list) else key


def _plain(value: Any) -> Any:
    """A datetime as msgspec writes it: a timestamp if it has a zone, ISO text if not."""
    if isinstance(value, datetime.datetime):
        if value.tzinfo is None:
            return value.isoformat()
        return msgpack.Timestamp.from_datetime(value.astimezone(datetime.UTC))
    raise TypeError(f"Encoding objects of type {type(value).__qualname__} is unsupported")


def get_codec(name: CodecName) -> Codec:
    """The codec of this name."""
    if name == "msgspec":
        return _Msgspec()
    if name == "msgpack":
        return _Msgpack()
    raise ValueError(f"codec must be 'msgspec' or 'msgpack', not {name!r}")
