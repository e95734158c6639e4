"""MessagePack by the reference package of the format, with the results of msgspec."""

from __future__ import annotations

import datetime
from collections.abc import Callable
from typing import Any, Final

import msgpack
import msgspec
from msgspec.msgpack import Ext

from shmrpc.values.decode_context import UNREADABLE
from shmrpc.values.encode import NotPlain, enc_hook
from shmrpc.values.encode_context import ExtKey

#: Types that the reference package encodes without a conversion.
_NATIVE: Final = (bytes, bytearray, memoryview, datetime.datetime, Ext, ExtKey)


def pack(value: Any) -> bytes:
    """Encode a plain value with the reference package.

    Raises TypeError, ValueError, OverflowError or RecursionError if MessagePack cannot carry the value.
    """
    plain = msgspec.to_builtins(value, builtin_types=_NATIVE, enc_hook=enc_hook)
    return msgpack.packb(plain, default=_plain)  # type: ignore[no-any-return]


def _plain(value: Any) -> Any:
    """Convert a value for the reference package as msgspec does: a datetime to a timestamp, without a zone to text."""
    if isinstance(value, datetime.datetime):
        if value.tzinfo is None:
            return value.isoformat()
        return msgpack.Timestamp.from_datetime(value.astimezone(datetime.UTC))
    if isinstance(value, ExtKey):
        value = value.ext
    if isinstance(value, Ext):
        return msgpack.ExtType(value.code, bytes(value.data))
    raise NotPlain(f"Encoding objects of type {type(value).__qualname__} is unsupported")


def unpack(body: Any, *, ext_hook: Callable[[int, Any], Any]) -> Any:
    """Decode a body with the reference package.

    Raises one of UNREADABLE if the body is invalid, and what ``ext_hook`` raises; a ValueError, TypeError or
    OverflowError of ``ext_hook`` becomes a msgspec.DecodeError.
    """
    # The default limits of the package are meant for streams; here the length of the frame is the limit.
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
            object_pairs_hook=_build_map,
            ext_hook=ext_hook,
        )
    except UNREADABLE:
        raise
    except (ValueError, TypeError, OverflowError, msgpack.UnpackException) as error:
        raise msgspec.DecodeError(f"MessagePack data is malformed: {str(error) or type(error).__name__}") from None


def _build_map(pairs: list[tuple[Any, Any]]) -> dict[Any, Any]:
    """Build a map as msgspec does: an array that is a key becomes a tuple."""
    return {_build_key(key): value for key, value in pairs}


def _build_key(key: Any) -> Any:
    """Return a key of a map with tuples in place of lists, which cannot be hashed."""
    return tuple(map(_build_key, key)) if isinstance(key, list) else key
