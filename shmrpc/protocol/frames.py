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
CANCEL         client  nil: nobody waits for this call any more
ITEM           both    an item of a stream
END            client  nil: a stream from the caller has ended
ABORT          client  a :class:`Failure`: a stream from the caller has failed
STOP           server  nil: no more of a stream from the caller is wanted
CREDIT         both    bytes: so many more of a stream may be sent
RESULT_WITH    server  array of two: metadata, the result
=============  ======  ==================================================================================
"""

from __future__ import annotations

import builtins
import traceback
from typing import Any, Final, Literal

import msgspec

from shmrpc import errors
from shmrpc.protocol.codec import UNREADABLE, Body

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

#: The kinds of frames that begin something; bytes, as the core takes them.
REQUESTS: Final = bytes((CALL, CALL_KEYWORDS, CALL_DEADLINE, CALL_WITH, BATCH, DESCRIBE))
#: How a call ends.
ANSWERS: Final = frozenset({RESULT, FAILURE, RESULT_WITH})
#: The number in a BATCH whose calls name their endpoints themselves.
ANY: Final = (1 << 24) - 1
NIL: Final = b"\xc0"

DEFAULT_MAX_FRAME: Final = 64 << 20
#: Room for the shortest words on a failure; and what the 32 bits of the length field can say.
MIN_MAX_FRAME: Final = 1024
MAX_MAX_FRAME: Final = (1 << 32) - (1 << 16)


def opcode(kind: int, number: int) -> int:
    """The opcode of this kind, to the endpoint or the stream of this number."""
    return kind | number << 8


def is_from_server(opcode: int) -> bool:
    """Whether a server sends frames with this opcode."""
    return opcode in ANSWERS or opcode == ITEM or opcode & 0xFF in (STOP, CREDIT)


class Shape(msgspec.Struct, omit_defaults=True, frozen=True):
    """Which sides of an endpoint are streams."""

    #: Whether it streams to the caller.
    streams: bool = False
    #: The parameters that take a stream, each with its place among the positional ones, or -1.
    inputs: dict[str, int] = {}


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


FailureKind = Literal["raised", "endpoint", "arguments", "encode", "size", "deadline", "overloaded", "draining"]

_KINDS: Final[dict[FailureKind, type[errors.CallError]]] = {
    "endpoint": errors.EndpointNotFound,
    "arguments": errors.InvalidArguments,
    "encode": errors.EncodeError,
    "size": errors.FrameTooLarge,
    "deadline": errors.DeadlineExceeded,
    "overloaded": errors.Overloaded,
}


class Failure(msgspec.Struct, omit_defaults=True):
    """Why a call failed."""

    kind: FailureKind
    message: str
    #: Qualified name of the exception's class.
    type_name: str = ""
    #: The builtin exception that it is, or is derived from.
    base: str = ""
    #: The exception's arguments, if the codec carries them.
    args: list[Any] | None = None
    traceback: str = ""
    #: The handler's, for the caller.
    metadata: dict[str, Any] | None = None


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(Failure)
#: A traceback or a message is cut here, in characters: an error must always fit into a frame.
_MAX_TEXT: Final = 16_384


class Rejected(Exception):
    """A call that fails before or after its endpoint runs, by no fault of the endpoint's code."""

    def __init__(self, kind: FailureKind, message: str) -> None:
        super().__init__(message)
        self.kind: FailureKind = kind
        #: Whether nobody waits to hear of it.
        self.one_way = False


def encode_metadata(metadata: dict[str, Any]) -> bytes:
    """What stands before the result in a RESULT_WITH."""
    return _encoder.encode(metadata)


def behind(first: bytes, body: Body) -> Body:
    """A body that begins with something else."""
    return first + body if isinstance(body, bytes) else body.with_body(first + body.body)


def encode_failure(error: BaseException, max_frame: int, metadata: dict[str, str | bytes] | None = None) -> bytes:
    """The body of a FAILURE for an exception, small enough for any frame."""
    failure = describe_failure(error)
    failure.metadata = metadata or None
    for smaller in (failure, msgspec.structs.replace(failure, args=None)):
        try:
            body = _encoder.encode(smaller)
        except Exception:  # Arguments that MessagePack does not carry.
            continue
        if len(body) <= max_frame:
            return body
    least = Failure(failure.kind, _cut(failure.message, 100), _cut(failure.type_name, 50), failure.base)
    return _encoder.encode(least)


def describe_failure(error: BaseException) -> Failure:
    """What to tell the caller of an exception."""
    if isinstance(error, Rejected):
        return Failure(error.kind, _cut(str(error)))
    kind_of = type(error)
    base = next(c for c in kind_of.__mro__ if c.__module__ == "builtins")
    message = _message(error)
    text = _traceback(error)
    plain = kind_of.__module__ == "builtins" and base is getattr(builtins, kind_of.__name__, None)
    return Failure(
        "raised",
        _cut(message),
        f"{kind_of.__module__}.{kind_of.__qualname__}",
        base.__name__,
        list(error.args) if plain else None,
        _cut(text),
    )


def _message(error: BaseException) -> str:
    try:
        return str(error)
    except Exception as second:  # A __str__ that fails must not cost the caller the answer.
        return f"<{type(error).__qualname__}, whose __str__ raised {type(second).__name__}>"


def _traceback(error: BaseException) -> str:
    try:
        return "".join(traceback.format_exception(error.with_traceback(_below_us(error))))
    except Exception as second:  # As for a SyntaxError with odd arguments.
        return f"<no traceback: formatting it raised {type(second).__name__}>"


def _below_us(error: BaseException) -> Any:
    """The traceback from the endpoint on: our own frames above it tell the user nothing."""
    inner = error.__traceback__
    while inner is not None and inner.tb_frame.f_globals.get("__name__", "").startswith("shmrpc."):
        inner = inner.tb_next
    return inner if inner is not None else error.__traceback__


def _cut(text: str, limit: int = _MAX_TEXT) -> str:
    if len(text) > limit:
        half = limit // 2
        text = f"{text[:half]}\n… {len(text) - limit} characters left out …\n{text[-half:]}"
    return text.encode("utf-8", "backslashreplace").decode()


def decode_failure(body: Body) -> errors.ShmrpcError:
    """The exception to raise at the caller; a DecodeError for a body that cannot be read."""
    failure = read_failure(body)
    return failure if isinstance(failure, errors.ShmrpcError) else failure_error(failure)


def read_failure(body: Body) -> Failure | errors.DecodeError:
    """The failure in a body, or the error that says why there is none."""
    try:
        return _decoder.decode(body)
    except UNREADABLE as error:
        return errors.DecodeError(f"the call failed, and why cannot be read: {error}")


def failure_error(failure: Failure) -> errors.ShmrpcError:
    """The exception that a failure is at the caller."""
    if failure.kind == "raised":
        return errors.remote_error(
            failure.message,
            type_name=failure.type_name,
            base=failure.base,
            args=failure.args,
            remote_traceback=failure.traceback,
        )
    if failure.kind == "draining":
        return errors.ServiceUnavailable(failure.message)
    return _KINDS[failure.kind](failure.message)


_first = msgspec.msgpack.Decoder(list[Any])


def deadline_of(body: Body) -> int:
    """The deadline in the body of a CALL_DEADLINE, which has been read before."""
    return int(_first.decode(body)[0])


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
