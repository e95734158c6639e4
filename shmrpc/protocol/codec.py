"""MessagePack, by two implementations that produce and accept the same bytes.

``"msgspec"`` is the fast one. ``"msgpack"`` is the format's reference package; it is there to check the
other by, and to read what travels. Each side chooses for itself. Types that MessagePack does not have are
carried as msgspec's documentation says: a datetime as a timestamp or as ISO text, a UUID or a Decimal as
text, an Enum as its value, a set as an array, a dataclass as a map.
"""

from __future__ import annotations

import datetime
from collections.abc import Callable
from typing import Any, Final, Literal, Protocol

import msgpack
import msgspec

CodecName = Literal["msgspec", "msgpack"]


class Codec(Protocol):
    """Values to bytes and back."""

    #: Bytes for a value; TypeError, ValueError or OverflowError for one that cannot be carried.
    encode: Callable[[Any], bytes]
    #: The plain value; msgspec.DecodeError for bytes that are no MessagePack.
    decode: Callable[[bytes], Any]

    def decoder(self, kind: Any) -> Callable[[bytes], Any]:
        """Decodes and validates for a type; msgspec.ValidationError if the value does not fit."""
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
        packed = msgpack.packb(msgspec.to_builtins(value, builtin_types=(*_NATIVE, datetime.datetime)), default=_plain)
        assert packed is not None
        return packed

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
            )
        except (ValueError, TypeError, msgpack.UnpackException) as error:
            raise msgspec.DecodeError(f"MessagePack data is malformed: {error}") from None

    def decoder(self, kind: Any) -> Callable[[bytes], Any]:
        def decode(body: bytes) -> Any:
            return msgspec.convert(self.decode(body), kind, builtin_types=_NATIVE)

        return decode


def _plain(value: Any) -> Any:
    """A datetime as msgspec writes it: a timestamp if it has a zone, ISO text if not."""
    if isinstance(value, datetime.datetime):
        return msgpack.Timestamp.from_datetime(value) if value.tzinfo else value.isoformat()
    raise TypeError(f"Encoding objects of type {type(value).__qualname__} is unsupported")


def get_codec(name: CodecName) -> Codec:
    """The codec of this name."""
    if name == "msgspec":
        return _Msgspec()
    if name == "msgpack":
        return _Msgpack()
    raise ValueError(f"codec must be 'msgspec' or 'msgpack', not {name!r}")
