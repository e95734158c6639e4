"""Decoding of request bodies: the header, then the arguments."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import msgspec

from shmrpc.service.arguments import ArgumentDecoders
from shmrpc.service.signature import Signature
from shmrpc.wire.codec import UNREADABLE, Body, Codec, drop_buffers
from shmrpc.wire.failure import CallRejected
from shmrpc.wire.frames import Header, sub_body

#: Function that decodes the body of a request: header, positional arguments, keyword arguments.
ReadRequest = Callable[[Body], tuple[Header, Sequence[Any], Mapping[str, Any]]]

NO_HEADER: Final = Header()
_EMPTY_MAP: Final = b"\x80"

_split = msgspec.msgpack.Decoder(tuple[msgspec.Raw, msgspec.Raw, msgspec.Raw])
_peek = msgspec.msgpack.Decoder(tuple[Header, msgspec.Raw, msgspec.Raw])


def is_one_way(body: Body) -> bool:
    """Return True if the body of a CALL_WITH is of a one-way call; False if it cannot be read."""
    try:
        return _peek.decode(body)[0].one_way
    except UNREADABLE:
        return False


def header_reader(codec: Codec) -> Callable[[Body, msgspec.Raw], Header]:
    """Return a function that decodes ``part`` of a body as its header, or raises one of UNREADABLE."""
    decode: Callable[[Body], Header] = codec.decoder(Header)

    def read(body: Body, part: msgspec.Raw) -> Header:
        return NO_HEADER if bytes(part) == _EMPTY_MAP else decode(sub_body(body, part))

    return read


def header_request_reader(signature: Signature, codec: Codec, decoders: ArgumentDecoders) -> ReadRequest:
    """Return a decoder of CALL_WITH bodies, which drops the buffers of the body at the end.

    The decoder raises CallRejected for an invalid body, with ``one_way`` set if the header has it.
    """
    read_header = header_reader(codec)

    def read(body: Body) -> tuple[Header, Sequence[Any], Mapping[str, Any]]:
        try:
            first, args, kwargs = _split.decode(body)
            header = read_header(body, first)
        except UNREADABLE as error:
            raise signature.unreadable_call(error) from None
        try:
            arguments = decoders.decode_parts(body, args, kwargs)
        except CallRejected as error:
            error.one_way = header.one_way
            raise
        drop_buffers(body)
        return header, *arguments

    return read


def deadline_request_reader(decode: Callable[[Body], Sequence[Any]]) -> ReadRequest:
    """Return a decoder of CALL_DEADLINE bodies, which does not check whether the deadline has passed.

    ``decode`` returns the deadline and the arguments; the decoder raises its exceptions.
    """

    def read(body: Body) -> tuple[Header, Sequence[Any], Mapping[str, Any]]:
        deadline, *args = decode(body)
        return Header(deadline), args, {}

    return read


def unknown_endpoint(service: str) -> CallRejected:
    """Return the rejection of a request to an unknown endpoint."""
    return CallRejected("endpoint", f"service {service!r} has no endpoint of this number")
