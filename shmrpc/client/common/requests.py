"""Requests and replies in bytes, and the arguments that become streams."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec

from shmrpc.basics.suggestions import closest_match
from shmrpc.client.common.call_errors import decode_error, encode_error
from shmrpc.errors import (
    DecodeError,
    EndpointNotFound,
    InvalidArguments,
    ShmrpcError,
)
from shmrpc.host.runtime_dir import check_name
from shmrpc.service.call import Call, check_metadata
from shmrpc.service.endpoints import Endpoint
from shmrpc.service.service import Service
from shmrpc.transport.connection import Frame
from shmrpc.values.blocks import Unmapped
from shmrpc.wire import frames
from shmrpc.wire.codec import UNREADABLE, Body, Codec
from shmrpc.wire.failure import failure_error, read_failure
from shmrpc.wire.frames import Shape, opcode

_metadata = msgspec.msgpack.Decoder(dict[str, Any])
_with_metadata = msgspec.msgpack.Decoder(tuple[dict[str, Any], msgspec.Raw])

#: A stream to the server: its number, and the iterable that yields its items.
Source = tuple[int, Any]


def find_endpoint(service: str, name: str, numbers: Mapping[str, int]) -> int:
    """Return the number of an endpoint. Raises EndpointNotFound, which suggests a similar name or lists all."""
    number = numbers.get(name)
    if number is None:
        close = closest_match(name, numbers)
        hint = f"; did you mean {close!r}?" if close else f"; it has {', '.join(numbers) or 'none'}"
        raise EndpointNotFound(f"service {service!r} has no endpoint {name!r}{hint}")
    return number


def reject_streams(name: str, shape: Shape | None, how: str, *, is_async: bool) -> None:
    """Raise InvalidArguments for an endpoint with streams, whose items need frames of their own.

    ``shape`` is None for an endpoint without streams. ``how`` says how the endpoint was called, such as "one way".
    ``is_async``: True if the caller awaits calls.
    """
    if shape is None:
        return
    call = f"client.{name}(...)"
    if shape.streams:
        instead = f"{'async ' if is_async else ''}for item in {call}: ..."
    else:
        instead = f"{'await ' if is_async else ''}{call}"
    raise InvalidArguments(f"{name}() streams, and so cannot be called {how}; write `{instead}`")


def is_group(name: str, numbers: Mapping[str, int]) -> bool:
    """Return True if ``name`` is a prefix of endpoint names, and not itself an endpoint."""
    return name not in numbers and any(other.startswith(f"{name}.") for other in numbers)


def name_and_endpoints(service: str | Service) -> tuple[str, dict[str, Endpoint]]:
    """Return the name of a service and its known endpoints, which are empty if only the name is given.

    Raises TypeError or ValueError for an invalid name.
    """
    if isinstance(service, Service):
        return service.name, dict(service.endpoints)
    if not isinstance(service, str):
        raise TypeError(f"connect() expected the name of a service or a shmrpc.Service, got {service!r}")
    if ":" in service:
        raise ValueError(
            f"connect() expected the name of a shmrpc.Service, not the module to import it from: {service!r}"
        )
    return check_name(service), {}


def find_endpoint_name(endpoint: Any, numbers: Mapping[str, int]) -> str:
    """Return the name of an endpoint, given by name or by function. Raises TypeError for anything else.

    Does not check that the endpoint exists. Uses the ``__name__`` of any callable: an endpoint declared with another
    ``name=`` must be given by that name. A function of a group gets its full name from ``numbers`` if only one fits.
    """
    if isinstance(endpoint, str):
        return endpoint
    name = getattr(endpoint, "__name__", None)
    if not isinstance(name, str) or not callable(endpoint):
        raise TypeError(f"expected the name or the function of an endpoint, got {endpoint!r}")
    if name not in numbers:
        # In a group, the last part of the name suffices if it is unique.
        same = [other for other in numbers if other.rpartition(".")[2] == name]
        if len(same) == 1:
            return same[0]
    return name


def decode_result(name: str, decode: Callable[[Body], Any], body: Body) -> Any:
    """Decode the result in a body. Raises DecodeError, or SharedMemoryError if this process cannot map it."""
    try:
        return decode(body)
    except UNREADABLE as error:
        raise decode_error(name, error) from None


def make_result_decoder(name: str, codec: Codec, kind: Any) -> Callable[[Body], Any]:
    """Return a function that decodes results of type ``kind``, with the errors of :func:`decode_result`."""
    quick, decode = codec.quick_decoder(kind), codec.decoder(kind)

    def read(body: Body) -> Any:
        if type(body) is bytes:
            try:
                return quick(body)
            except UNREADABLE:
                pass
        return decode_result(name, decode, body)

    return read


def extract_sources(
    name: str, shape: Shape, args: Sequence[Any], kwargs: Mapping[str, Any], *, from_async: bool
) -> tuple[list[Any], dict[str, Any], list[Source]]:
    """Take the streams to the server out of a call's arguments, and leave nil in their places.

    Returns the positional arguments, the keyword arguments and the streams; skips a stream that was not passed. Raises
    InvalidArguments for a str, and for an argument that is no iterable. ``from_async``: True if async iterators are
    accepted.
    """
    positional, keywords = list(args), dict(kwargs)
    sources: list[Source] = []
    for number, (parameter, place) in enumerate(shape.inputs, 1):
        if parameter in keywords:
            source, keywords[parameter] = keywords[parameter], None
        elif 0 <= place < len(positional):
            source, positional[place] = positional[place], None
        else:
            continue
        if isinstance(source, str):
            raise InvalidArguments(
                f"{name}(): parameter {parameter!r}: a str is no stream, got {source!r:.100}; give [text]"
            )
        if not from_async and hasattr(source, "__aiter__") and not hasattr(source, "__iter__"):
            raise InvalidArguments(
                f"{name}(): parameter {parameter!r}: expected an iterable, got {source!r}, which is async: use the "
                "client of shmrpc.connect()"
            )
        if not (hasattr(source, "__iter__") or (from_async and hasattr(source, "__aiter__"))):
            what = "an async iterator or an iterable" if from_async else "an iterable"
            raise InvalidArguments(f"{name}(): parameter {parameter!r}: expected {what}, got {source!r}")
        sources.append((number, source))
    return positional, keywords, sources


def prepare_open_arguments(
    name: str, shape: Shape | None, args: Sequence[Any], kwargs: Mapping[str, Any]
) -> tuple[list[Any], dict[str, Any], bool]:
    """Return the arguments for a call by open(), with nil in the place of the stream to the server.

    ``args`` and ``kwargs`` are the arguments without that stream. Returns positional and keyword arguments, and True if
    the endpoint takes a stream. Raises InvalidArguments for an endpoint without streams or with several streams to the
    server, or if a keyword argument passes the stream.
    """
    if shape is None:
        raise InvalidArguments(f"{name}() has no streams to write or read: call it instead of opening it")
    positional, keywords = list(args), dict(kwargs)
    if len(shape.inputs) > 1:
        raise InvalidArguments(f"{name}() takes {len(shape.inputs)} streams: call it with iterators, not by open()")
    for parameter, place in shape.inputs:
        if parameter in keywords:
            raise InvalidArguments(f"{name}(): leave out {parameter!r}: write() sends its items")
        if 0 <= place <= len(positional):
            positional.insert(place, None)
        else:
            keywords[parameter] = None
    return positional, keywords, bool(shape.inputs)


def encode_call(
    codec: Codec, number: int, call: Call, args: Sequence[Any], kwargs: Mapping[str, Any], *, with_header: bool
) -> tuple[int, Body]:
    """Return opcode and body of a request, in the most compact form that holds all of it.

    Raises EncodeError as :func:`encode_arguments` does. ``with_header``: True if the caller reads the reply's metadata.
    """
    if call._metadata or with_header or (kwargs and call.deadline is not None):
        header = frames.header_fields(call.deadline, call._metadata)
        return opcode(frames.CALL_WITH, number), encode_arguments(codec, call.endpoint, (header, list(args), kwargs))
    return encode_plain_call(codec, number, call.endpoint, call.deadline, args, kwargs)


def encode_plain_call(
    codec: Codec, number: int, name: str, deadline: int | None, args: Sequence[Any], kwargs: Mapping[str, Any]
) -> tuple[int, Body]:
    """Return opcode and body of a request without metadata.

    The caller passes a deadline or keyword arguments, never both. Raises EncodeError as :func:`encode_arguments` does.
    """
    if deadline is not None:
        return opcode(frames.CALL_DEADLINE, number), encode_arguments(codec, name, (deadline, *args))
    if kwargs:
        return opcode(frames.CALL_KEYWORDS, number), encode_arguments(codec, name, (list(args), kwargs))
    return opcode(frames.CALL, number), encode_arguments(codec, name, args)


def encode_arguments(codec: Codec, name: str, values: Sequence[Any]) -> Body:
    """Return the encoded arguments of a request. Raises EncodeError for an argument that cannot be sent.

    Raises other errors of encoding as :func:`call_errors.encode_error` returns them.
    """
    try:
        return codec.encode_all(values)
    except Exception as error:
        raise encode_error(name, error) from None


def result_body(frame: Frame, call: Call | None) -> Body:
    """Return the body of the result in a reply frame, and store the reply's metadata in ``call``.

    With None for ``call``, discards the metadata. Raises the failure in the frame, and DecodeError or SharedMemoryError
    if the frame cannot be read.
    """
    opcode, _, body = frame
    if opcode == frames.RESULT:
        return body
    if opcode == frames.RESULT_WITH:
        try:
            metadata, result = _with_metadata.decode(body)
        except Unmapped as error:
            raise decode_error(call.endpoint if call is not None else "the call", error) from None
        except UNREADABLE as error:
            raise DecodeError(f"the metadata of a result cannot be read: {error}") from None
        if call is not None:
            _update_reply_metadata(call, metadata)
        return frames.sub_body(body, result)
    failure = read_failure(body)
    if isinstance(failure, ShmrpcError):
        try:
            raise failure
        finally:
            del failure  # The traceback of the error refers to this frame.
    if call is not None and failure.metadata:
        _update_reply_metadata(call, failure.metadata)
    raise failure_error(failure)


def store_metadata(body: Body, call: Call) -> None:
    """Store the metadata of a METADATA frame in ``call``. Raises DecodeError for invalid metadata."""
    try:
        metadata = _metadata.decode(body)
    except UNREADABLE as error:
        raise DecodeError(f"the metadata of a stream cannot be read: {error}") from None
    _update_reply_metadata(call, metadata)


def _update_reply_metadata(call: Call, metadata: dict[str, Any]) -> None:
    """Add received metadata to that of a call. Raises DecodeError for values that are no metadata."""
    try:
        call.reply_metadata.update(check_metadata(metadata))
    except TypeError as error:
        raise DecodeError(f"the metadata of a reply cannot be read: {error}") from None
