"""The kinds of frames of a connection; docs/wire.md describes them for other languages.

A frame is an opcode (u32), a call id (u64) and a body. The low eight bits of the opcode are the kind of the
frame, the other bits a number: in a request the number of the endpoint, which the welcome message lists; in
a frame of a stream the number of the stream, 0 for the stream to the caller, 1 and up for the streams from
the caller, in the order of the endpoint's shape; otherwise 0. Every frame carries the id of its call.

=============  ======  ==================================================================================
kind           from    body, in MessagePack
=============  ======  ==================================================================================
RESULT         server  the result; after a stream nil
FAILURE        server  a :class:`shmrpc.wire.failure.Failure`
CALL           client  array of the positional arguments
CALL_KEYWORDS  client  array of two: the positional ones, map of the others
CALL_DEADLINE  client  array of the deadline and the positional arguments
CALL_WITH      client  array of three: :class:`Header`, the positional arguments, map of the others
BATCH          client  array of two: :class:`Header`, array of calls: each the array of its arguments; or, to
                       number ANY_ENDPOINT, array of its endpoint's number, the positional arguments, map of the others
DESCRIBE       client  nil; the result is a :class:`shmrpc.Description`
CANCEL         client  nil: the caller no longer waits for this call
ITEM           both    an item of a stream
END            client  nil: a stream from the caller has ended
ABORT          client  a ``Failure``: a stream from the caller has failed
STOP           server  nil: the handler needs no more items of a stream from the caller
CREDIT         both    the number of further bytes of a stream that may be sent
RESULT_WITH    server  array of two: metadata, the result
METADATA       server  the metadata set before the first item of a stream
=============  ======  ==================================================================================
"""

from __future__ import annotations

from typing import Annotated, Any, Final

import msgspec

from shmrpc import _core
from shmrpc.wire.codec import UNREADABLE, Body

RESULT: Final = 0
FAILURE: Final = 1
CALL: Final = 2
CALL_KEYWORDS: Final = 3
CALL_DEADLINE: Final = 4
CALL_WITH: Final = 5
BATCH: Final = 6
DESCRIBE: Final = 7
CANCEL: Final = 8
ITEM: Final = 9
END: Final = 10
ABORT: Final = 11
STOP: Final = 12
CREDIT: Final = 13
RESULT_WITH: Final = 14
METADATA: Final = 15

#: Kinds of frames that begin a call, as bytes for the core.
REQUESTS: Final = bytes((CALL, CALL_KEYWORDS, CALL_DEADLINE, CALL_WITH, BATCH, DESCRIBE))
#: Kinds of frames that end a call.
ANSWERS: Final = frozenset({RESULT, FAILURE, RESULT_WITH})
#: Endpoint number of a BATCH each of whose calls has the number of its own endpoint.
ANY_ENDPOINT: Final = (1 << 24) - 1
NIL: Final = b"\xc0"
#: First byte of an array; its length follows in four bytes.
ARRAY: Final = b"\xdd"
#: Pseudo opcode for a client that broke the protocol; its body is an exception. No frame has it: opcodes have 32 bits.
PEER_FAULT: Final = 1 << 32

DEFAULT_MAX_FRAME: Final = 64 << 20
#: Bounds of ``max_frame`` in bytes: room for the shortest failure, and the largest value of the 32-bit length field.
MIN_MAX_FRAME: Final = 1024
MAX_MAX_FRAME: Final = (1 << 32) - (1 << 16)


def opcode(kind: int, number: int) -> int:
    """Return the opcode of a frame of this kind for an endpoint or a stream, given its number of at most 24 bits."""
    return kind | number << 8


#: Position of a parameter among the positional ones; -1 if it can only be given by name.
Position = Annotated[int, msgspec.Meta(ge=-1, le=ANY_ENDPOINT)]


class Shape(msgspec.Struct, omit_defaults=True, frozen=True):
    """Streams of an endpoint, to the caller and from it."""

    #: True if the endpoint streams to the caller.
    streams: bool = False
    #: Parameters that take a stream, each with its position among the positional ones, or -1; the first is stream 1. An
    #: array, because the maps of many languages have no order.
    inputs: tuple[tuple[str, Position], ...] = ()


class Header(msgspec.Struct, omit_defaults=True):
    """Part of a request besides the arguments."""

    #: Deadline of the call, in nanoseconds of the host's CLOCK_MONOTONIC.
    deadline: int | None = None
    #: Metadata of the call: text or bytes by name.
    metadata: dict[str, Any] | None = None
    #: True if the server sends no answer, because no caller waits for one.
    one_way: bool = False


def header_fields(deadline: int | None, metadata: dict[str, Any] | None, *, one_way: bool = False) -> dict[str, Any]:
    """Return the fields of a :class:`Header` that differ from the defaults, by name, to encode them."""
    fields: dict[str, Any] = {}
    if deadline is not None:
        fields["deadline"] = deadline
    if metadata:
        fields["metadata"] = metadata
    if one_way:
        fields["one_way"] = True
    return fields


_encoder = msgspec.msgpack.Encoder()


def encode_metadata(metadata: dict[str, Any]) -> bytes:
    """Encode the metadata of a RESULT_WITH or METADATA. Raises ValueError for text that is not valid UTF-8."""
    return _encoder.encode(metadata)


def prepend(first: bytes, body: Body) -> Body:
    """Return a body of the bytes ``first``, then those of ``body``, with the same buffers."""
    return first + body if isinstance(body, bytes) else body.with_body(first + body.body)


_first = msgspec.msgpack.Decoder(list[Any])


def read_deadline(body: Body) -> int:
    """Return the deadline in a CALL_DEADLINE body, which must be valid, in nanoseconds of the host's clock."""
    return int(_first.decode(body)[0])


def sub_body(body: Body, part: msgspec.Raw | bytes) -> Body:
    """Return a part of a body as a body of its own, which refers to the same buffers."""
    return body.with_body(bytes(part)) if isinstance(body, _core.Parcel) else bytes(part)


_credit = msgspec.msgpack.Decoder(int)


def encode_credit(size: int) -> bytes:
    """Encode the body of a CREDIT: a number of bytes."""
    return _encoder.encode(size)


def decode_credit(body: Body) -> int | None:
    """Decode the body of a CREDIT. Returns 1 to MAX_MAX_FRAME bytes, or None if the body holds no such number."""
    try:
        size = _credit.decode(body)
    except UNREADABLE:
        return None
    return size if 0 < size <= MAX_MAX_FRAME else None
