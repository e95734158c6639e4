"""Frames: what travels through a channel. docs/wire.md is the same for people without this code.

A frame is an opcode (u32), a call id (u64) and a body. The low eight bits of the opcode are the kind, the
rest is a number: of the endpoint in a request, as the welcome gave it; of the stream in what belongs to one,
0 for the one to the caller, and for those from the caller 1 and on, in the order that their shape has them;
else 0. Every frame carries the id of its call.

=============  ======  ==================================================================================
kind           from    body, in MessagePack
=============  ======  ==================================================================================
RESULT         server  the result; after a stream nil
FAILURE        server  a :class:`Failure`
CALL           client  array of the positional arguments
CALL_KEYWORDS  client  array of two: the positional ones, map of the others
CALL_DEADLINE  client  array of the deadline and the positional arguments
CALL_WITH      client  array of three: :class:`Header`, the positional arguments, map of the others
BATCH          client  array of two: :class:`Header`, array of calls: each the array of its arguments; or, to
                       number ANY, array of its endpoint's number, the positional arguments, map of the others
DESCRIBE       client  nil; the result is a :class:`shmrpc.Description`
CANCEL         client  nil: the caller does not wait for this call any more
ITEM           both    an item of a stream
END            client  nil: a stream from the caller has ended
ABORT          client  a :class:`Failure`: a stream from the caller has failed
STOP           server  nil: no more of a stream from the caller is wanted
CREDIT         both    how many more bytes of a stream may be sent
RESULT_WITH    server  array of two: metadata, the result
METADATA       server  metadata that there is before the first item of a stream
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

#: The kinds of frames that begin something; bytes, as the core takes them.
REQUESTS: Final = bytes((CALL, CALL_KEYWORDS, CALL_DEADLINE, CALL_WITH, BATCH, DESCRIBE))
#: How a call ends.
ANSWERS: Final = frozenset({RESULT, FAILURE, RESULT_WITH})
#: The number in a BATCH whose calls name their endpoints themselves.
ANY: Final = (1 << 24) - 1
NIL: Final = b"\xc0"
#: Begins an array; its length follows in four bytes.
ARRAY: Final = b"\xdd"
#: Stands in the place of an opcode if a client broke the rules; the body is an exception then. No frame has it: opcodes
#: have 32 bits.
FAULT: Final = 1 << 32

DEFAULT_MAX_FRAME: Final = 64 << 20
#: Room for the shortest words on a failure; and what the 32 bits of the length field can say.
MIN_MAX_FRAME: Final = 1024
MAX_MAX_FRAME: Final = (1 << 32) - (1 << 16)


def opcode(kind: int, number: int) -> int:
    """The opcode of this kind, to the endpoint or the stream of this number."""
    return kind | number << 8


#: A parameter's place among the positional ones; -1 if it can only be given by name.
Place = Annotated[int, msgspec.Meta(ge=-1, le=ANY)]


class Shape(msgspec.Struct, omit_defaults=True, frozen=True):
    """Which sides of an endpoint are streams."""

    #: Whether it streams to the caller.
    streams: bool = False
    #: The parameters that take a stream, in order, each with its place among the positional ones, or -1. The first one
    #: is stream 1: an array, since the maps of many languages have no order.
    inputs: tuple[tuple[str, Place], ...] = ()


class Header(msgspec.Struct, omit_defaults=True):
    """What a call carries besides its arguments."""

    #: The instant by which it must have ended, in nanoseconds of CLOCK_MONOTONIC.
    deadline: int | None = None
    #: Text or bytes by name.
    metadata: dict[str, Any] | None = None
    #: Whether nobody waits for an answer: none is sent.
    one_way: bool = False


def header(deadline: int | None, metadata: dict[str, Any] | None, *, one_way: bool = False) -> dict[str, Any]:
    """A :class:`Header` to be encoded: what it says beyond the defaults, as a plain map."""
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
    """What stands before the result in a RESULT_WITH."""
    return _encoder.encode(metadata)


def behind(first: bytes, body: Body) -> Body:
    """A body that begins with something else."""
    return first + body if isinstance(body, bytes) else body.with_body(first + body.body)


_first = msgspec.msgpack.Decoder(list[Any])


def deadline_of(body: Body) -> int:
    """The deadline in the body of a CALL_DEADLINE, which has been read before."""
    return int(_first.decode(body)[0])


def part_of(body: Body, part: msgspec.Raw | bytes) -> Body:
    """A value within a body as a body of its own, which refers to the same buffers."""
    return body.with_body(bytes(part)) if isinstance(body, _core.Parcel) else bytes(part)


_credit = msgspec.msgpack.Decoder(int)


def encode_credit(size: int) -> bytes:
    """The body of a CREDIT."""
    return _encoder.encode(size)


def decode_credit(body: Body) -> int | None:
    """Bytes; None for a body that is no CREDIT's."""
    try:
        size = _credit.decode(body)
    except UNREADABLE:
        return None
    return size if 0 < size <= MAX_MAX_FRAME else None
