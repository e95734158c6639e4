"""Requests of many calls in one frame, for batches and map()."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import msgspec

from shmrpc.client.common.call_errors import decode_error, encode_error
from shmrpc.client.common.requests import encode_arguments, find_endpoint, reject_streams
from shmrpc.client.common.session import Session
from shmrpc.errors import CallError, ShmrpcError
from shmrpc.service.call import Call
from shmrpc.values.encode_errors import UNSENDABLE
from shmrpc.wire import frames
from shmrpc.wire.codec import UNREADABLE, Body, Codec
from shmrpc.wire.failure import CallRejected, Failure, failure_error
from shmrpc.wire.frames import opcode, sub_body


class UnconvertedResult:
    """A result for which ``require_converted`` must follow the conversion to the declared type."""

    __slots__ = ("value",)

    def __init__(self, value: Any) -> None:
        self.value = value


#: Results in order, with None for failed calls, and the errors of failed calls by position.
BatchOutcome = tuple[list[Any], dict[int, ShmrpcError]]


class BatchRequest:
    """A request of many calls in one frame. A call that cannot be encoded or decoded fails alone.

    ``endpoint``: the endpoint of all calls, of which ``calls`` holds lists of positional arguments; None if each call
    is an entry that names its endpoint. ``kind``: the type of the results. ``is_async``: True if the caller awaits.
    """

    def __init__(
        self, codec: Codec, call: Call, endpoint: str | None, calls: Sequence[Any], kind: Any, *, is_async: bool
    ) -> None:
        self._codec = codec
        self._header = frames.header_fields(call.deadline, call._metadata)
        self._endpoint = endpoint
        self._calls = calls
        self._kind = kind
        self._is_async = is_async
        #: Positions of the calls that were sent, and the errors of the others by position.
        self._positions: Sequence[int] = range(len(calls))
        self._encode_errors: dict[int, ShmrpcError] = {}

    def encode_request(self, session: Session[Any]) -> tuple[int, Body]:
        """Return opcode and body of the request for a session. Another session may have other endpoints.

        Leaves out calls that cannot be encoded, whose errors decode_reply() returns. Raises EndpointNotFound or
        InvalidArguments if the one endpoint of all calls does not exist or streams, and errors of encoding that are
        no CallError, such as those of a signal handler.
        """
        number, numbers = frames.ANY_ENDPOINT, session.numbers
        if self._endpoint is not None:
            number = find_endpoint(session.service, self._endpoint, numbers)
            reject_streams(self._endpoint, session.shapes.get(number), "by map()", is_async=self._is_async)
        self._positions, self._encode_errors = range(len(self._calls)), {}
        try:
            calls = self._calls
            if self._endpoint is None:
                calls = [[numbers[name], [*args], kwargs] for name, args, kwargs in calls]
            body = self._codec.encode_all((self._header, calls))
        except (KeyError, CallRejected, *UNSENDABLE):
            encodable = self._encodable_calls(session)
            body = encode_arguments(self._codec, self._endpoint or "batch", (self._header, encodable))
        return opcode(frames.BATCH, number), body

    def _encodable_calls(self, session: Session[Any]) -> list[Any]:
        """Return the calls that can be encoded, and record the errors of the others.

        Raises errors that are no CallError.
        """
        calls, positions = [], []
        for position, each in enumerate(self._calls):
            name, call = self._endpoint or each[0], each
            try:
                if self._endpoint is None:
                    call = [find_endpoint(session.service, name, session.numbers), [*each[1]], each[2]]
                self._codec.encode_all(call)
            except Exception as error:
                failure = encode_error(name, error)
                if not isinstance(failure, CallError):
                    raise
                self._encode_errors[position] = failure.with_traceback(None)  # Its traceback refers to this frame.
            else:
                calls.append(call)
                positions.append(position)
        self._positions = positions
        return calls

    def _decode_unconverted(self, body: Body) -> Any:
        """Decode a result before its conversion to the declared type of its endpoint, which the batch knows.

        Returns an UnconvertedResult for a value that is complete only after the conversion.
        """
        value, is_open = self._codec.decode_for_conversion(body)
        return UnconvertedResult(value) if is_open else value

    def decode_reply(self, body: Body) -> BatchOutcome:
        """Return the results and errors in a reply to the last request, also the errors of calls that were not sent.

        Raises one of UNREADABLE for an invalid reply. A result that cannot be decoded is the error of its call only.
        """
        whole, one = _decoders(self._codec, self._kind)
        if self._endpoint is None:
            one = self._decode_unconverted
        results: list[Any]
        failures: dict[int, Failure]
        errors, positions = dict(self._encode_errors), self._positions
        try:
            results, failures = whole(body)
        except UNREADABLE:
            parts, failures = _raw_decoder.decode(body)
            results = [None] * len(parts)
            for index, (position, part) in enumerate(zip(positions, parts, strict=False)):
                if index not in failures:  # A failed call has a nil in its position.
                    try:
                        results[index] = one(sub_body(body, part))
                    except UNREADABLE as error:
                        errors[position] = decode_error(self._endpoint or self._calls[position][0], error)
        if len(results) != len(positions):
            raise msgspec.ValidationError(f"Expected {len(positions)} results, got {len(results)}")
        for index, failure in failures.items():
            if 0 <= index < len(positions):
                errors[positions[index]] = failure_error(failure)
        if self._encode_errors:
            sent = dict(zip(positions, results, strict=True))
            results = [sent.get(position) for position in range(len(self._calls))]
        return results, errors


_raw_decoder = msgspec.msgpack.Decoder(tuple[list[msgspec.Raw], dict[int, Failure]])


def _decoders(codec: Codec, kind: Any) -> tuple[Callable[[Body], Any], Callable[[Body], Any]]:
    """Return the decoders of a reply with results of type ``kind``, and of one such result."""
    try:
        return _cached_decoders(codec, kind)  # type: ignore[no-any-return]
    except TypeError:  # An unhashable type is not cached.
        return _make_decoders(codec, kind)


def _make_decoders(codec: Codec, kind: Any) -> tuple[Callable[[Body], Any], Callable[[Body], Any]]:
    """Make the decoders that :func:`_decoders` returns."""
    whole = tuple.__class_getitem__((list.__class_getitem__(kind), dict[int, Failure]))
    return codec.decoder(whole), codec.decoder(kind)


_cached_decoders: Any = functools.lru_cache(maxsize=256)(_make_decoders)


def iter_chunks(iterables: Sequence[Iterable[Any]], size: int) -> Iterator[list[list[Any]]]:
    """Yield lists of up to ``size`` argument lists. Each argument list has an item of each iterable, as in ``zip()``.

    Ends with the shortest iterable. The first step raises TypeError or ValueError for a size that is no int of 1 or
    more.
    """
    if isinstance(size, bool) or not isinstance(size, int):
        raise TypeError(f"chunk: expected a number of calls in a frame, got {size!r}")
    if size < 1:
        raise ValueError(f"chunk: expected 1 or more calls in a frame, got {size}")
    source = map(list, zip(*iterables, strict=False))
    while calls := list(itertools.islice(source, size)):
        yield calls
