"""Reading the bodies of requests: the header, and the arguments behind it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import msgspec

from shmrpc.service.signature import Arguments, Signature
from shmrpc.wire.codec import UNREADABLE, Body, Codec, drop_buffers
from shmrpc.wire.frames import Header, Rejected, part_of

#: Reads a request's body: header, positional arguments, keyword arguments.
Read = Callable[[Body], tuple[Header, Sequence[Any], Mapping[str, Any]]]
#: Reads the positional and keyword arguments that are parts of a body.
ReadParts = Callable[[Body, msgspec.Raw, msgspec.Raw], Arguments]

NO_HEADER: Final = Header()
_EMPTY_MAP: Final = b"\x80"
_PAIR: Final = b"\x92"

_split = msgspec.msgpack.Decoder(tuple[msgspec.Raw, msgspec.Raw, msgspec.Raw])
_peek = msgspec.msgpack.Decoder(tuple[Header, msgspec.Raw, msgspec.Raw])


def is_one_way(body: Body) -> bool:
    """Whether a CALL_WITH wants no answer."""
    try:
        return _peek.decode(body)[0].one_way
    except UNREADABLE:
        return False


def header_reader(codec: Codec) -> Callable[[Body, msgspec.Raw], Header]:
    """Reads the header that is part of a body."""
    decode: Callable[[Body], Header] = codec.decoder(Header)

    def read(body: Body, part: msgspec.Raw) -> Header:
        return NO_HEADER if bytes(part) == _EMPTY_MAP else decode(part_of(body, part))

    return read


def parts_reader(positional: Callable[[Body], Sequence[Any]], keywords: Callable[[Body], Arguments]) -> ReadParts:
    """Reads arguments as the decoders of CALL and CALL_KEYWORDS do, which read a whole body."""

    def read(body: Body, args: msgspec.Raw, kwargs: msgspec.Raw) -> Arguments:
        if bytes(kwargs) == _EMPTY_MAP:
            return positional(part_of(body, args)), {}
        return keywords(part_of(body, b"".join((_PAIR, args, kwargs))))

    return read


def with_header(
    signature: Signature, read_header: Callable[[Body, msgspec.Raw], Header], read_parts: ReadParts
) -> Read:
    """Reads the body of a CALL_WITH. A rejection says whether anybody waits to hear of it."""

    def read(body: Body) -> tuple[Header, Sequence[Any], Mapping[str, Any]]:
        try:
            first, args, kwargs = _split.decode(body)
            header = read_header(body, first)
        except UNREADABLE as error:
            raise signature.unreadable(error) from None
        try:
            arguments = read_parts(body, args, kwargs)
        except Rejected as error:
            error.one_way = header.one_way
            raise
        drop_buffers(body)
        return header, *arguments

    return read


def with_deadline(decode: Callable[[Body], Sequence[Any]]) -> Read:
    """Reads the body of a CALL_DEADLINE."""

    def read(body: Body) -> tuple[Header, Sequence[Any], Mapping[str, Any]]:
        deadline, *args = decode(body)
        return Header(deadline), args, {}

    return read


def no_endpoint(service: str) -> Rejected:
    """The rejection of a request to an endpoint that is not there."""
    return Rejected("endpoint", f"service {service!r} has no endpoint of this number")
