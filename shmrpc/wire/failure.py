"""The body of a FAILURE frame: encoding of an exception, and decoding to an exception at the caller."""

from __future__ import annotations

import functools
import re
import traceback
from typing import Any, Final, Literal

import msgspec

from shmrpc import errors, exception_parts
from shmrpc.values import registry
from shmrpc.values.blocks import Unmapped
from shmrpc.wire.codec import UNREADABLE, Body, decode_inline, encode_inline
from shmrpc.wire.remote_errors import application_error, remote_error

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
    """Body of a FAILURE: the reason why a call failed."""

    kind: FailureKind
    message: str
    #: Qualified name of the class of the exception.
    type_name: str = ""
    #: Name of the nearest base class that both sides know, see :func:`shmrpc.errors.base_of`.
    base: str = ""
    #: Code of an ApplicationError.
    code: str = ""
    #: Contents of the exception in MessagePack: the exception itself if its class is registered, the details of an
    #: ApplicationError, otherwise the parts that the base class takes.
    value: bytes | None = None
    traceback: str = ""
    #: Metadata from the handler for the caller.
    metadata: dict[str, Any] | None = None
    #: Exceptions of an exception group.
    exceptions: list[Failure] | None = None


#: Largest length of a traceback or a message, in characters, because a failure must always fit into a frame.
_MAX_TEXT: Final = 16_384
#: Largest length of a text within a group, in characters.
_MAX_MEMBER_TEXT: Final = 4_096
#: Largest number of exceptions in one group, including those of groups within it.
MAX_EXCEPTIONS: Final = 64
#: Largest depth of groups within groups.
MAX_GROUPS: Final = 8
#: Largest text, in characters, that each process on the way may add to a traceback.
_MAX_HOP_TEXT: Final = 4_096


@functools.cache
def _failure_decoder() -> msgspec.msgpack.Decoder[Failure]:
    """Return the decoder of failures, which all calls share."""
    return msgspec.msgpack.Decoder(Failure)  # Slow to build, and few servers decode a failure.


class CallRejected(Exception):
    """Failure of a call outside the code of its endpoint: before or after it ran."""

    def __init__(self, kind: FailureKind, message: str, *, one_way: bool = False) -> None:
        super().__init__(message)
        self.kind: FailureKind = kind
        #: True if no caller waits for the failure.
        self.one_way = one_way


def unreadable_call(prefix: str, why: object) -> CallRejected:
    """Return the rejection of a call that cannot be decoded, with the text "prefix: why".

    The kind is "overloaded" if the memory of the call could not be mapped, otherwise "arguments".
    """
    return CallRejected("overloaded" if isinstance(why, Unmapped) else "arguments", f"{prefix}: {why}")


def encode_failure(error: BaseException, max_frame: int, metadata: dict[str, str | bytes] | None = None) -> bytes:
    """Encode an exception as the body of a FAILURE. Leaves out and shortens parts to fit ``max_frame`` bytes.

    The last part to go is ``metadata``. Trims the traceback of ``error`` as :func:`traceback_of` does.
    """
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
    name, code = _shorten(failure.type_name, 100), _shorten(failure.code, 100)
    return _encoder.encode(Failure(failure.kind, _shorten(failure.message, 150), name, failure.base, code))


def _without_tracebacks(failures: list[Failure]) -> list[Failure]:
    """Return copies of failures, and of the failures within them, without tracebacks."""
    return [
        msgspec.structs.replace(
            each,
            traceback="",
            exceptions=None if each.exceptions is None else _without_tracebacks(each.exceptions),
        )
        for each in failures
    ]


def describe_failure(error: BaseException) -> Failure:
    """Return the failure that describes an exception to the caller, with the exceptions of a group.

    Leaves out what cannot be sent. Trims the traceback of ``error`` as :func:`traceback_of` does.
    """
    failure = _describe_one(error)
    if isinstance(error, BaseExceptionGroup):
        _describe_members(failure, error, [MAX_EXCEPTIONS], 1)
    return failure


def _describe_members(failure: Failure, group: BaseExceptionGroup[Any], left: list[int], depth: int) -> None:
    """Set the message and the exceptions of a group's failure, and those of the groups in it.

    Adds at most ``left[0]`` exceptions, and decreases ``left[0]`` for each. If exceptions are left out, a last one
    gives their number. Groups more than ``MAX_GROUPS`` deep are added without their members.
    """
    failure.message = _shorten(group.message)
    failure.exceptions = []
    for number, error in enumerate(group.exceptions):
        left[0] -= 1
        if left[0] < 0:
            more = f"{len(group.exceptions) - number} more exceptions of this group were left out"
            failure.exceptions.append(Failure("raised", more))
            return
        member = _describe_one(error)
        member.message = _shorten(member.message, _MAX_MEMBER_TEXT)
        member.traceback = _shorten(member.traceback, _MAX_MEMBER_TEXT)
        failure.exceptions.append(member)
        if isinstance(error, BaseExceptionGroup) and depth < MAX_GROUPS:
            _describe_members(member, error, left, depth + 1)


def _describe_one(error: BaseException) -> Failure:
    """Return the failure that describes an exception without the members of a group."""
    if isinstance(error, CallRejected):
        return Failure(error.kind, _shorten(str(error)))
    failure = Failure("raised", _shorten(_message_of(error)))
    failure.type_name = (isinstance(error, errors.RemoteError) and error.type_name) or exception_parts.class_name(
        type(error)
    )
    failure.base = errors.base_of(type(error)).__name__
    if isinstance(error, errors.ApplicationError):
        failure.code, failure.message = _shorten(error.code), _shorten(error.message)
    failure.value, remark = _encode_value(error)
    failure.traceback = _shorten(traceback_of(error) + remark)
    return failure


def _encode_value(error: BaseException) -> tuple[bytes | None, str]:
    """Return the encoded ``value`` of a failure, and a remark for its traceback about parts that cannot be sent.

    The value is the exception itself if its class is registered, the details of an ApplicationError, or else the parts
    that the base class takes. A RemoteError that this process could not decode passes on the value that it came with.
    The value is None if it cannot be encoded, or if the receiver could not rebuild the message from the parts.
    """
    kind = type(error)
    if isinstance(error, errors.RemoteError):
        if error._unread is not None:
            return error._unread, ""
        kind = error._also or kind
    if registry.entry_of(kind) is not None:
        try:
            return encode_inline(error), ""
        except Exception as second:
            remark = f"\n{exception_parts.class_name(kind)} is registered, but this one cannot be sent: {second}\n"
            return None, remark
    if isinstance(error, errors.ApplicationError):
        return _encode_details(getattr(error, "details", {}))
    base = errors.base_of(kind)
    if base in (Exception, BaseException, ExceptionGroup, BaseExceptionGroup) or kind.__str__ is not base.__str__:
        return None, ""  # The other side could not rebuild the message from the arguments.
    try:
        known = exception_parts.known_parts(base)
        return encode_inline(
            {name: part for name, part in exception_parts.parts_of(error).items() if name in known}
        ), ""
    except Exception:  # The failure has the message at least.
        return None, ""


def _encode_details(details: dict[str, Any]) -> tuple[bytes | None, str]:
    """Return the encoded details of an ApplicationError, without those that cannot be sent.

    Also return a remark that names the details left out; "" if there are none.
    """
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


def _message_of(error: BaseException) -> str:
    """Return the text of an exception, or a note about the error that its ``__str__`` raised."""
    try:
        return str(error)
    except Exception as second:  # A failing __str__ must not prevent the answer.
        return f"<{type(error).__qualname__}, whose __str__ raised {type(second).__name__}>"


def traceback_of(error: BaseException) -> str:
    """Return the traceback of an exception as text of about 16,384 characters at most, from the endpoint on.

    For an exception that arrived from another process, the traceback of each process on the way is included. Also trims
    the traceback of ``error`` itself.
    """
    _trim_traceback(error)
    try:
        if isinstance(error, errors.RemoteError) and error.remote_traceback:
            hop = _format_hop(error)  # Empty for an error from a worker of a pool: only frames of shmrpc passed it on.
            return _shorten(f"{error.remote_traceback.rstrip()}\n" + (f"\nPassed on by:\n{hop}" if hop else ""))
        return _shorten("".join(traceback.format_exception(error)))
    except Exception as second:  # For example for a SyntaxError with unusual arguments.
        frames = "".join(traceback.format_tb(error.__traceback__))
        name = exception_parts.class_name(type(error))
        return _shorten(f"{frames}{name} <to format it raised {type(second).__name__}>\n")


def _format_hop(error: errors.RemoteError) -> str:
    """Return the text that this process adds to the traceback of an exception from another process.

    The text has the cause or context of the exception, the frames that passed it on without those of shmrpc, and the
    notes that were added here; "" if there are none.
    """
    before, words = error.__cause__, "The above exception was the direct cause of this:"
    if before is None and not error.__suppress_context__:
        before, words = error.__context__, "It was passed on during handling of the above exception:"
    lines = [] if before is None else [*traceback.format_exception(before), f"\n{words}\n\n"]
    frames = [f for f in traceback.walk_tb(error.__traceback__) if not _is_internal(f[0])]
    lines += traceback.StackSummary.extract(iter(frames)).format()
    lines += [f"{note}\n" for note in getattr(error, "__notes__", ()) if note not in error._came_with]
    return _shorten("".join(lines), _MAX_HOP_TEXT)


def _trim_traceback(error: BaseException) -> BaseException:
    """Remove the frames of shmrpc above the endpoint from the traceback of an exception, and return the exception.

    Leaves a traceback without other frames unchanged.
    """
    inner = error.__traceback__
    while inner is not None and _is_internal(inner.tb_frame):
        inner = inner.tb_next
    return error if inner is None else error.with_traceback(inner)


def _is_internal(frame: Any) -> bool:
    """Return True if a frame runs code of a module of shmrpc."""
    return str(frame.f_globals.get("__name__", "")).startswith("shmrpc.")


_OMISSION = re.compile(r"\n… (\d+) characters left out …\n")


def _shorten(text: str, limit: int = _MAX_TEXT) -> str:
    """Return a text of at most about ``limit`` characters, with the middle of a longer one replaced by a note.

    The note gives the number of characters left out, including those of notes that it replaces. Characters that UTF-8
    cannot encode are escaped.
    """
    if len(text) > limit:
        before = sum(int(found[1]) - len(found[0]) for found in _OMISSION.finditer(text))
        half = (limit - 50) // 2
        begin, end = text[:half], text[-half:]
        kept = sum(int(found[1]) - len(found[0]) for part in (begin, end) for found in _OMISSION.finditer(part))
        text = f"{begin}\n… {len(text) - 2 * half + before - kept} characters left out …\n{end}"
    return text.encode("utf-8", "backslashreplace").decode()


def decode_failure(body: Body) -> errors.ShmrpcError:
    """Return the exception to raise at the caller for an encoded failure; a DecodeError for an invalid body.

    See :func:`failure_error` for the classes.
    """
    failure = read_failure(body)
    return failure if isinstance(failure, errors.ShmrpcError) else failure_error(failure)


def read_failure(body: Body) -> Failure | errors.DecodeError:
    """Decode a failure. Returns a DecodeError, and does not raise it, if the body is invalid."""
    try:
        return _failure_decoder().decode(body)
    except UNREADABLE as error:
        return errors.DecodeError(f"the call failed, and its reason cannot be decoded: {error}")


def failure_error(failure: Failure) -> errors.ShmrpcError:
    """Return the exception to raise at the caller for a failure.

    The exception is a RemoteError for one that the endpoint raised, ServiceUnavailable for a draining server, and a
    CallError of its own class for each other kind.
    """
    return _failure_error(failure, [MAX_EXCEPTIONS], 1)


def _failure_error(failure: Failure, left: list[int], depth: int) -> errors.ShmrpcError:
    """Return the exception for a failure within ``depth`` groups, with at most ``left[0]`` exceptions in it."""
    if failure.kind == "raised":
        return _raised_error(failure, _member_errors(failure.exceptions or [], left, depth))
    if failure.kind == "draining":
        return errors.ServiceUnavailable(failure.message)
    return _KINDS[failure.kind](failure.message)


def _member_errors(failures: list[Failure], left: list[int], depth: int) -> list[Exception]:
    """Return the exceptions of a group, and decrease ``left[0]`` by their number.

    Returns none if there are more exceptions, or deeper groups, than a correct sender describes.
    """
    left[0] -= len(failures)
    # Each group may end with an additional exception that counts those left out.
    if left[0] < -MAX_GROUPS or depth > MAX_GROUPS:
        return []
    return [_failure_error(each, left, depth + 1) for each in failures]


def _raised_error(failure: Failure, exceptions: list[Exception]) -> errors.RemoteError:
    """Return the RemoteError for an exception that an endpoint raised, as a group if there are ``exceptions``.

    The error is also an instance of the registered class, ApplicationError or builtin class that was raised. If this
    process cannot decode a registered exception, the error keeps the encoded value, and its text says which name to
    register.
    """
    value, raised, hint = None, None, ""
    if failure.value is not None:
        try:
            value = decode_inline(failure.value)
        except Exception:  # Its class has no converters here, or the peer sent invalid data.
            value = None
    registered = registry.name_in(failure.value) if failure.value is not None else None
    if isinstance(value, BaseException):
        raised = value
    elif registered is not None:
        hint = f"; to catch it as itself, shmrpc.register(its class, name={registered!r}) here too"
    if raised is None and failure.code:
        details = value.get("details", {}) if registered is not None and isinstance(value, dict) else value
        raised = application_error(failure.code, failure.message, details)
    return remote_error(
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
