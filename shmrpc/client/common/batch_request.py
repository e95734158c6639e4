"""Many calls in one frame."""

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
    """Result that needs ``require_converted`` after its conversion to the declared type."""

    __slots__ = ("value",)

    def __init__(self, value: Any) -> None:
        self.value = value


#: The results in order, None for the failed ones, and why these failed, by their place.
BatchOutcome = tuple[list[Any], dict[int, ShmrpcError]]


class BatchRequest:
    """Calls in one frame: the request, and what became of each. One that cannot be sent or read fails alone.

    ``endpoint``: the one that all of them call, with positional arguments, of which ``calls`` has a list for each; None
    if each is an entry, and names its own. ``kind``: the type of the results. ``is_async``: whether a loop calls.
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
        #: The place of each call that was sent, and why the others were not.
        self._places: Sequence[int] = range(len(calls))
        self._unsent: dict[int, ShmrpcError] = {}

    def request(self, session: Session[Any]) -> tuple[int, Body]:
        """Opcode and body. To be asked for anew with each session, which may have other endpoints.

        Raises EndpointNotFound and InvalidArguments if the one endpoint is not there, or streams.
        """
        number, numbers = frames.ANY_ENDPOINT, session.numbers
        if self._endpoint is not None:
            number = find_endpoint(session.service, self._endpoint, numbers)
            reject_streams(self._endpoint, session.shapes.get(number), "by map()", is_async=self._is_async)
        self._places, self._unsent = range(len(self._calls)), {}
        try:
            calls = self._calls
            if self._endpoint is None:
                calls = [[numbers[name], [*args], kwargs] for name, args, kwargs in calls]
            body = self._codec.encode_all((self._header, calls))
        except (KeyError, CallRejected, *UNSENDABLE):
            sendable = self._sendable(session)
            body = encode_arguments(self._codec, self._endpoint or "batch", (self._header, sendable))
        return opcode(frames.BATCH, number), body

    def _sendable(self, session: Session[Any]) -> list[Any]:
        """The calls that can be sent. Notes of the others why they cannot."""
        calls, places = [], []
        for place, each in enumerate(self._calls):
            name, call = self._endpoint or each[0], each
            try:
                if self._endpoint is None:
                    call = [find_endpoint(session.service, name, session.numbers), [*each[1]], each[2]]
                self._codec.encode_all(call)
            except Exception as error:
                failure = encode_error(name, error)
                if not isinstance(failure, CallError):
                    raise
                self._unsent[place] = failure.with_traceback(None)  # Which has this frame.
            else:
                calls.append(call)
                places.append(place)
        self._places = places
        return calls

    def _read_open(self, body: Body) -> Any:
        """A result that is converted next, to what its own endpoint declares."""
        value, is_open = self._codec.decode_for_conversion(body)
        return UnconvertedResult(value) if is_open else value

    def read(self, body: Body) -> BatchOutcome:
        """The results in an answer, and the errors; one of UNREADABLE if it is none."""
        whole, one = _decoders(self._codec, self._kind)
        if self._endpoint is None:
            one = self._read_open
        results: list[Any]
        failures: dict[int, Failure]
        errors, places = dict(self._unsent), self._places
        try:
            results, failures = whole(body)
        except UNREADABLE:
            parts, failures = _split.decode(body)
            results = [None] * len(parts)
            for index, (place, part) in enumerate(zip(places, parts, strict=False)):
                if index not in failures:  # There is a nil in the place of each.
                    try:
                        results[index] = one(sub_body(body, part))
                    except UNREADABLE as error:
                        errors[place] = decode_error(self._endpoint or self._calls[place][0], error)
        if len(results) != len(places):
            raise msgspec.ValidationError(f"Expected {len(places)} results, got {len(results)}")
        for index, failure in failures.items():
            if 0 <= index < len(places):
                errors[places[index]] = failure_error(failure)
        if self._unsent:
            sent = dict(zip(places, results, strict=True))
            results = [sent.get(place) for place in range(len(self._calls))]
        return results, errors


_split = msgspec.msgpack.Decoder(tuple[list[msgspec.Raw], dict[int, Failure]])


def _decoders(codec: Codec, kind: Any) -> tuple[Callable[[Body], Any], Callable[[Body], Any]]:
    """What decodes an answer whose results have this type, and what decodes one of these."""
    try:
        return _kept_decoders(codec, kind)  # type: ignore[no-any-return]
    except TypeError:  # A type that cannot be a key: one for this time.
        return _make_decoders(codec, kind)


def _make_decoders(codec: Codec, kind: Any) -> tuple[Callable[[Body], Any], Callable[[Body], Any]]:
    whole = tuple.__class_getitem__((list.__class_getitem__(kind), dict[int, Failure]))
    return codec.decoder(whole), codec.decoder(kind)


_kept_decoders: Any = functools.lru_cache(maxsize=256)(_make_decoders)


def iter_chunks(iterables: Sequence[Iterable[Any]], size: int) -> Iterator[list[list[Any]]]:
    """The items of the iterables side by side, ``size`` at a time."""
    if isinstance(size, bool) or not isinstance(size, int):
        raise TypeError(f"chunk: expected a number of calls in a frame, got {size!r}")
    if size < 1:
        raise ValueError(f"chunk: expected 1 or more calls in a frame, got {size}")
    source = map(list, zip(*iterables, strict=False))
    while calls := list(itertools.islice(source, size)):
        yield calls
