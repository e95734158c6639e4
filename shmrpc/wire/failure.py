"""The body of a FAILURE frame: an exception on its way to the caller, and back into an exception there."""

from __future__ import annotations

import functools
import re
import traceback
from typing import Any, Final, Literal

import msgspec

from shmrpc import errors
from shmrpc.values import registry
from shmrpc.values.blocks import Unmapped
from shmrpc.wire.codec import UNREADABLE, Body, decode_inline, encode_inline

_encoder = msgspec.msgpack.Encoder()

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
