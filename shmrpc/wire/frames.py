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

import functools
import re
import traceback
from typing import Annotated, Any, Final, Literal

import msgspec

from shmrpc import _core, errors
from shmrpc.values import registry
from shmrpc.values.blocks import Unmapped
from shmrpc.wire.codec import UNREADABLE, Body, decode_inline, encode_inline

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
    #: The class that both sides know without any agreement, see :func:`errors.base_of`.
    base: str = ""
    #: An ApplicationError's code.
    code: str = ""
    #: What the exception carries, a MessagePack value with all of it inside: of an exception whose class is registered
    #: that exception, of another ApplicationError its details, of another exception its parts as its base takes them.
    value: bytes | None = None
    traceback: str = ""
    #: The handler's, for the caller.
    metadata: dict[str, Any] | None = None
    #: Of an exception group: its exceptions.
    exceptions: list[Failure] | None = None


_encoder = msgspec.msgpack.Encoder()
#: A traceback or a message is cut here, in characters: an error must always fit into a frame.
_MAX_TEXT: Final = 16_384
#: The same within a group.
_MAX_MEMBER_TEXT: Final = 4_096
#: Exceptions of one group, also of groups in it.
MAX_EXCEPTIONS: Final = 64
#: Groups in each other.
MAX_GROUPS: Final = 8
#: What each process that passes an exception on may add to its traceback.
_MAX_HOP: Final = 4_096


@functools.cache
def _failures() -> msgspec.msgpack.Decoder[Failure]:
    return msgspec.msgpack.Decoder(Failure)  # Whose types take a while to look through, and few servers read any.


class Rejected(Exception):
    """A call that fails before or after its endpoint runs, by no fault of the endpoint's code."""

    def __init__(self, kind: FailureKind, message: str, *, one_way: bool = False) -> None:
        super().__init__(message)
        self.kind: FailureKind = kind
        #: Whether no caller waits to hear of it.
        self.one_way = one_way


def unreadable(words: str, why: object) -> Rejected:
    """The rejection of a call of which something cannot be read: its fault, unless there is no room to look at it."""
    return Rejected("overloaded" if isinstance(why, Unmapped) else "arguments", f"{words}: {why}")


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
    bare = None if failure.exceptions is None else _without_tracebacks(failure.exceptions)
    for left_out in (
        {},
        {"exceptions": bare},
        {"exceptions": bare, "traceback": ""},
        {"exceptions": None, "traceback": ""},
        {"exceptions": None, "traceback": "", "value": None},
    ):
        body = _encoder.encode(msgspec.structs.replace(failure, **left_out))
        if len(body) <= max_frame:
            return body
    name, code = _cut(failure.type_name, 100), _cut(failure.code, 100)
    return _encoder.encode(Failure(failure.kind, _cut(failure.message, 150), name, failure.base, code))


def _without_tracebacks(failures: list[Failure]) -> list[Failure]:
    return [
        msgspec.structs.replace(
            each,
            traceback="",
            exceptions=None if each.exceptions is None else _without_tracebacks(each.exceptions),
        )
        for each in failures
    ]


def describe_failure(error: BaseException) -> Failure:
    """What to tell the caller of an exception."""
    failure = _described(error)
    if isinstance(error, BaseExceptionGroup):
        _describe_members(failure, error, [MAX_EXCEPTIONS], 1)
    return failure


def _describe_members(failure: Failure, group: BaseExceptionGroup[Any], left: list[int], depth: int) -> None:
    """Describe the exceptions of a group, of which ``left`` are left: the last one tells of those that are too many."""
    failure.message = _cut(group.message)
    failure.exceptions = []
    for number, error in enumerate(group.exceptions):
        left[0] -= 1
        if left[0] < 0:
            more = f"{len(group.exceptions) - number} more exceptions of this group were left out"
            failure.exceptions.append(Failure("raised", more))
            return
        member = _described(error)
        member.message = _cut(member.message, _MAX_MEMBER_TEXT)
        member.traceback = _cut(member.traceback, _MAX_MEMBER_TEXT)
        failure.exceptions.append(member)
        if isinstance(error, BaseExceptionGroup) and depth < MAX_GROUPS:
            _describe_members(member, error, left, depth + 1)


def _described(error: BaseException) -> Failure:
    """Describe an exception, without the members of a group."""
    if isinstance(error, Rejected):
        return Failure(error.kind, _cut(str(error)))
    failure = Failure("raised", _cut(_message(error)))
    failure.type_name = (isinstance(error, errors.RemoteError) and error.type_name) or errors.class_name(type(error))
    failure.base = errors.base_of(type(error)).__name__
    if isinstance(error, errors.ApplicationError):
        failure.code, failure.message = _cut(error.code), _cut(error.message)
    failure.value, remark = _value_of(error)
    failure.traceback = _cut(traceback_of(error) + remark)
    return failure


def _value_of(error: BaseException) -> tuple[bytes | None, str]:
    """What a failure's ``value`` is for an exception; and what to say of what cannot be sent."""
    kind = type(error)
    if isinstance(error, errors.RemoteError):
        if error._unread is not None:
            return error._unread, ""
        kind = error._also or kind
    if registry.entry_of(kind) is not None:
        try:
            return encode_inline(error), ""
        except Exception as second:
            remark = f"\n{errors.class_name(kind)} is registered, but this one cannot be sent: {second}\n"
            return None, remark
    if isinstance(error, errors.ApplicationError):
        return _encode_details(getattr(error, "details", {}))
    base = errors.base_of(kind)
    if base in (Exception, BaseException, ExceptionGroup, BaseExceptionGroup) or kind.__str__ is not base.__str__:
        return None, ""  # Of its arguments the other side could make nothing that says the same.
    try:
        known = errors.known_parts(base)
        return encode_inline({name: part for name, part in errors.parts_of(error).items() if name in known}), ""
    except Exception:  # The message will do.
        return None, ""


def _encode_details(details: dict[str, Any]) -> tuple[bytes | None, str]:
    try:
        return encode_inline(details), ""
    except Exception:
        pass
    remark, sendable = "", {}
    for name, value in details.items():
        try:
            encode_inline({name: value})
        except Exception as error:
            remark += f"\nIts detail {name!r} was left out, it cannot be sent: {error}\n"
        else:
            sendable[name] = value
    return encode_inline(sendable), remark


def _message(error: BaseException) -> str:
    try:
        return str(error)
    except Exception as second:  # A __str__ that fails must not cost the caller the answer.
        return f"<{type(error).__qualname__}, whose __str__ raised {type(second).__name__}>"


def traceback_of(error: BaseException) -> str:
    """The text of an exception's traceback, from the endpoint on; of one that was passed on, each hop's. Bounded."""
    _trimmed(error)
    try:
        if isinstance(error, errors.RemoteError) and error.remote_traceback:
            hop = _hop(error)  # None from the child of a pool: our own frames alone have brought it here.
            return _cut(f"{error.remote_traceback.rstrip()}\n" + (f"\nPassed on by:\n{hop}" if hop else ""))
        return _cut("".join(traceback.format_exception(error)))
    except Exception as second:  # As for a SyntaxError with odd arguments.
        frames = "".join(traceback.format_tb(error.__traceback__))
        name = errors.class_name(type(error))
        return _cut(f"{frames}{name} <to format it raised {type(second).__name__}>\n")


def _hop(error: errors.RemoteError) -> str:
    """What this process adds to the traceback of an exception that came from another one."""
    before, words = error.__cause__, "The above exception was the direct cause of this:"
    if before is None and not error.__suppress_context__:
        before, words = error.__context__, "It was passed on during handling of the above exception:"
    lines = [] if before is None else [*traceback.format_exception(before), f"\n{words}\n\n"]
    frames = [f for f in traceback.walk_tb(error.__traceback__) if not _is_ours(f[0])]
    lines += traceback.StackSummary.extract(iter(frames)).format()
    lines += [f"{note}\n" for note in getattr(error, "__notes__", ()) if note not in error._came_with]
    return _cut("".join(lines), _MAX_HOP)


def _trimmed(error: BaseException) -> BaseException:
    """The same, its traceback from the endpoint on: our own frames above it tell the user nothing."""
    inner = error.__traceback__
    while inner is not None and _is_ours(inner.tb_frame):
        inner = inner.tb_next
    return error if inner is None else error.with_traceback(inner)


def _is_ours(frame: Any) -> bool:
    return str(frame.f_globals.get("__name__", "")).startswith("shmrpc.")


_left_out = re.compile(r"\n… (\d+) characters left out …\n")


def _cut(text: str, limit: int = _MAX_TEXT) -> str:
    """The text, without its middle if it is too long. What was left out of it before is counted too."""
    if len(text) > limit:
        before = sum(int(found[1]) - len(found[0]) for found in _left_out.finditer(text))
        half = (limit - 50) // 2
        begin, end = text[:half], text[-half:]
        kept = sum(int(found[1]) - len(found[0]) for part in (begin, end) for found in _left_out.finditer(part))
        text = f"{begin}\n… {len(text) - 2 * half + before - kept} characters left out …\n{end}"
    return text.encode("utf-8", "backslashreplace").decode()


def decode_failure(body: Body) -> errors.ShmrpcError:
    """The exception to raise at the caller; a DecodeError for a body that cannot be read."""
    failure = read_failure(body)
    return failure if isinstance(failure, errors.ShmrpcError) else failure_error(failure)


def read_failure(body: Body) -> Failure | errors.DecodeError:
    """The failure in a body, or the error that says why there is none."""
    try:
        return _failures().decode(body)
    except UNREADABLE as error:
        return errors.DecodeError(f"the call failed, and why cannot be read: {error}")


def failure_error(failure: Failure) -> errors.ShmrpcError:
    """The exception that a failure is at the caller."""
    return _failure_error(failure, [MAX_EXCEPTIONS], 1)


def _failure_error(failure: Failure, left: list[int], depth: int) -> errors.ShmrpcError:
    """The same for a failure in so many groups, of whose exceptions so many are left."""
    if failure.kind == "raised":
        return _raised_error(failure, _members(failure.exceptions or [], left, depth))
    if failure.kind == "draining":
        return errors.ServiceUnavailable(failure.message)
    return _KINDS[failure.kind](failure.message)


def _members(failures: list[Failure], left: list[int], depth: int) -> list[Exception]:
    """The exceptions of a group; none for more of them, or more groups in each other, than a sender tells of."""
    left[0] -= len(failures)
    # Each group may end with one that tells of those left out.
    if left[0] < -MAX_GROUPS or depth > MAX_GROUPS:
        return []
    return [_failure_error(each, left, depth + 1) for each in failures]


def _raised_error(failure: Failure, exceptions: list[Exception]) -> errors.RemoteError:
    """Return the error that an endpoint raised; a group of ``exceptions``, if there are any."""
    value, raised, hint = None, None, ""
    if failure.value is not None:
        try:
            value = decode_inline(failure.value)
        except Exception:  # Of a class whose functions are not here, or a lie.
            value = None
    registered = registry.name_in(failure.value) if failure.value is not None else None
    if isinstance(value, BaseException):
        raised = value
    elif registered is not None:
        hint = f"; to catch it as itself, shmrpc.register(its class, name={registered!r}) here too"
    if raised is None and failure.code:
        details = value.get("details", {}) if registered is not None and isinstance(value, dict) else value
        raised = errors.application_error(failure.code, failure.message, details)
    return errors.remote_error(
        failure.message,
        type_name=failure.type_name,
        base=failure.base,
        raised=raised,
        parts=value if registered is None and isinstance(value, dict) else None,
        unread=failure.value if registered is not None and not isinstance(value, BaseException) else None,
        hint=hint,
        remote_traceback=failure.traceback,
        exceptions=exceptions,
    )


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
