"""Frames: what travels through a channel. docs/wire.md is the same for people without this code.

A frame is an opcode (u32), a call id (u64) and a body. The low eight bits of the opcode are the kind, the
rest is the number of the endpoint, which the welcome gave it. Answers carry the id of their call.

=============  ======  =========  =======================================================
kind           from    endpoint   body, in MessagePack
=============  ======  =========  =======================================================
RESULT         server  0          the result
FAILURE        server  0          a :class:`Failure`
CALL           client  its number  array of the positional arguments
CALL_KEYWORDS  client  its number  array of two: the positional ones, map of the others
=============  ======  =========  =======================================================
"""

from __future__ import annotations

import builtins
import traceback
from typing import Any, Final, Literal

import msgspec

from shmrpc import errors
from shmrpc.protocol.codec import UNREADABLE

RESULT: Final = 0
FAILURE: Final = 1
CALL: Final = 2
CALL_KEYWORDS: Final = 3

DEFAULT_MAX_FRAME: Final = 64 << 20
#: Room for the shortest words on a failure; and what the 32 bits of the length field can say.
MIN_MAX_FRAME: Final = 1024
MAX_MAX_FRAME: Final = (1 << 32) - (1 << 16)


def request_opcode(kind: int, endpoint: int) -> int:
    """The opcode of a request of this kind to the endpoint of this number."""
    return kind | endpoint << 8


FailureKind = Literal["raised", "endpoint", "arguments", "encode", "size"]

_KINDS: Final[dict[FailureKind, type[errors.CallError]]] = {
    "endpoint": errors.EndpointNotFound,
    "arguments": errors.InvalidArguments,
    "encode": errors.EncodeError,
    "size": errors.FrameTooLarge,
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


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(Failure)
#: A traceback or a message is cut here, in characters: an error must always fit into a frame.
_MAX_TEXT: Final = 16_384


class Rejected(Exception):
    """A call that fails before or after its endpoint runs, by no fault of the endpoint's code."""

    def __init__(self, kind: FailureKind, message: str) -> None:
        super().__init__(message)
        self.kind: FailureKind = kind


def encode_failure(error: BaseException, max_frame: int) -> bytes:
    """The body of a FAILURE for an exception, small enough for any frame."""
    failure = _describe(error)
    for smaller in (failure, msgspec.structs.replace(failure, args=None)):
        try:
            body = _encoder.encode(smaller)
        except Exception:  # Arguments that MessagePack does not carry.
            continue
        if len(body) <= max_frame:
            return body
    least = Failure(failure.kind, _cut(failure.message, 100), _cut(failure.type_name, 50), failure.base)
    return _encoder.encode(least)


def _describe(error: BaseException) -> Failure:
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


def decode_failure(body: bytes) -> errors.ShmrpcError:
    """The exception to raise at the caller; RemoteProtocolError for a body that cannot be read."""
    try:
        failure = _decoder.decode(body)
    except UNREADABLE as error:
        return errors.DecodeError(f"the call failed, and why cannot be read: {error}")
    if failure.kind == "raised":
        return errors.remote_error(
            failure.message,
            type_name=failure.type_name,
            base=failure.base,
            args=failure.args,
            remote_traceback=failure.traceback,
        )
    return _KINDS[failure.kind](failure.message)
