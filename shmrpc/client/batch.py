"""Calls collected by a client, to be sent in one frame.

Their futures are done at the end of the block. Who waits for one within the block would wait for ever, and is told so:
by ``await``, ``result()`` and ``exception()``, and by what asyncio has for waiting (``gather``, ``wait_for``, ``wait``,
``shield``). Another task or thread may wait. What nobody can see is the block itself waiting for such a task.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import functools
import itertools
import threading
from collections.abc import Callable, Coroutine, Generator, Iterable, Iterator, Mapping, Sequence
from types import TracebackType
from typing import Any, Generic, ParamSpec, Protocol, TypeVar, overload

import msgspec

from shmrpc.client.requests import (
    Offer,
    check_no_streams,
    encode_all,
    find_endpoint,
    result_of,
    undecodable,
    unencodable,
)
from shmrpc.errors import CallError, LocalProtocolError, ShmrpcError
from shmrpc.service.call import Call
from shmrpc.values.unsendable import UNSENDABLE
from shmrpc.wire import frames
from shmrpc.wire.codec import UNREADABLE, Body, Codec
from shmrpc.wire.frames import Failure, Rejected, opcode, part_of

_P = ParamSpec("_P")
_R = TypeVar("_R")

#: Name of the endpoint, positional and keyword arguments.
_Entry = tuple[str, Sequence[Any], Mapping[str, Any]]

#: The results in order, None for the failed ones, and why these failed, by their place.
Outcomes = tuple[list[Any], dict[int, ShmrpcError]]

#: Validates a value that has been decoded, for a type.
Convert = Callable[[Any, Any], Any]


class _Future(Protocol):
    """What asyncio's futures and those of threads have in common."""

    def set_result(self, result: Any, /) -> None: ...
    def set_exception(self, exception: Any, /) -> None: ...
    def cancel(self) -> bool: ...
    def done(self) -> bool: ...


_F = TypeVar("_F", bound=_Future)


class BatchBlock:
    """The block in which calls are collected; ``here`` says which task or thread runs."""

    def __init__(self, here: Callable[[], object], with_statement: str) -> None:
        self._here = here
        self._with = with_statement
        #: Which task or thread is in the block; None once it has ended.
        self._inside: object = here()

    def enter(self) -> None:
        """The block is run here, wherever it was made."""
        self._inside = self._here()

    def leave(self) -> None:
        """It has ended: from now on anybody may wait."""
        self._inside = None

    def check(self, endpoint: str) -> None:
        """Raises LocalProtocolError for who waits within the block."""
        if self._inside is not None and self._inside == self._here():
            raise self.unsent(endpoint)

    def check_result(self, endpoint: str) -> None:
        """Raises LocalProtocolError for who asks for a result within the block, or elsewhere before its end."""
        if self._inside is not None:
            raise self.unsent(endpoint)

    def unsent(self, endpoint: str) -> LocalProtocolError:
        """The error for who wants a result before the calls were sent."""
        return LocalProtocolError(
            f"{endpoint}() is part of a batch, which is sent at the end of its block: wait for it after the "
            f"`{self._with}`, not within"
        )


class BatchFuture(asyncio.Future[Any]):
    """The result of one call of a :class:`Batch`."""

    def __init__(self, block: BatchBlock, endpoint: str) -> None:
        super().__init__()
        self._block = block
        self._endpoint = endpoint

    def __await__(self) -> Generator[Any, None, Any]:
        if not self.done():
            self._block.check(self._endpoint)
        return super().__await__()

    __iter__ = __await__

    def add_done_callback(self, fn: Callable[[Any], object], /, **context: Any) -> None:
        """As of any future; what waits by it raises LocalProtocolError within the block."""
        if not self.done() and _is_asyncios(fn):
            self._block.check(self._endpoint)
        super().add_done_callback(fn, **context)

    def result(self) -> Any:
        """The call's result; LocalProtocolError before the end of the block."""
        if not self.done():
            self._block.check_result(self._endpoint)
        try:
            return super().result()
        finally:
            del self  # What it raises has this frame in its traceback, and is kept by the future.

    def exception(self) -> BaseException | None:
        """What the call raised, or None; LocalProtocolError before the end of the block."""
        if not self.done():
            self._block.check_result(self._endpoint)
        return super().exception()


def _is_asyncios(callback: Any) -> bool:
    """Whether a callback is one by which asyncio waits."""
    module = getattr(getattr(callback, "func", callback), "__module__", None)
    return isinstance(module, str) and module.startswith("asyncio.")


class SyncBatchFuture(concurrent.futures.Future[Any]):
    """The result of one call of a :class:`SyncBatch`."""

    def __init__(self, block: BatchBlock, endpoint: str) -> None:
        super().__init__()
        self._block = block
        self._endpoint = endpoint

    def result(self, timeout: float | None = None) -> Any:
        """The call's result; LocalProtocolError within the block."""
        if not self.done():
            self._block.check(self._endpoint)
        try:
            return super().result(timeout)
        finally:
            del self  # As in BatchFuture.

    def exception(self, timeout: float | None = None) -> BaseException | None:
        """What the call raised, or None; LocalProtocolError within the block."""
        if not self.done():
            self._block.check(self._endpoint)
        return super().exception(timeout)


class ManyCalls:
    """Calls in one frame: the request, and what became of each. One that cannot be sent or read fails alone.

    ``endpoint``: the one that all of them call, with positional arguments, of which ``calls`` has a list for each; None
    if each is an entry, and names its own. ``kind``: the type of the results. ``in_loop``: whether a loop calls.
    """

    def __init__(
        self, codec: Codec, call: Call, endpoint: str | None, calls: Sequence[Any], kind: Any, *, in_loop: bool
    ) -> None:
        self._codec = codec
        self._header = frames.header(call.deadline, call._metadata)
        self._endpoint = endpoint
        self._calls = calls
        self._kind = kind
        self._in_loop = in_loop
        #: The place of each call that was sent, and why the others were not.
        self._places: Sequence[int] = range(len(calls))
        self._unsent: dict[int, ShmrpcError] = {}

    def request(self, session: Offer) -> tuple[int, Body]:
        """Opcode and body. To be asked for anew with each session, which may have other endpoints.

        Raises EndpointNotFound and InvalidArguments if the one endpoint is not there, or streams.
        """
        number, numbers = frames.ANY, session.numbers
        if self._endpoint is not None:
            number = find_endpoint(session.service, self._endpoint, numbers)
            check_no_streams(self._endpoint, session.shapes.get(number), "by map()", in_loop=self._in_loop)
        self._places, self._unsent = range(len(self._calls)), {}
        try:
            calls = self._calls
            if self._endpoint is None:
                calls = [[numbers[name], [*args], kwargs] for name, args, kwargs in calls]
            body = self._codec.encode_all((self._header, calls))
        except (KeyError, Rejected, *UNSENDABLE):
            sendable = self._sendable(session)
            body = encode_all(self._codec, self._endpoint or "batch", (self._header, sendable))
        return opcode(frames.BATCH, number), body

    def _sendable(self, session: Offer) -> list[Any]:
        """The calls that can be sent. Notes of the others why they cannot."""
        calls, places = [], []
        for place, each in enumerate(self._calls):
            name, call = self._endpoint or each[0], each
            try:
                if self._endpoint is None:
                    call = [find_endpoint(session.service, name, session.numbers), [*each[1]], each[2]]
                self._codec.encode_all(call)
            except Exception as error:
                failure = unencodable(name, error)
                if not isinstance(failure, CallError):
                    raise
                self._unsent[place] = failure.with_traceback(None)  # Which has this frame.
            else:
                calls.append(call)
                places.append(place)
        self._places = places
        return calls

    def read(self, body: Body) -> Outcomes:
        """The results in an answer, and the errors; one of UNREADABLE if it is none."""
        whole, one = _decoders(self._codec, self._kind)
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
                        results[index] = one(part_of(body, part))
                    except UNREADABLE as error:
                        errors[place] = undecodable(self._endpoint or self._calls[place][0], error)
        if len(results) != len(places):
            raise msgspec.ValidationError(f"Expected {len(places)} results, got {len(results)}")
        for index, failure in failures.items():
            if 0 <= index < len(places):
                errors[places[index]] = frames.failure_error(failure)
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


class _Client(Protocol):
    def _check_batched(self, name: str, /) -> None: ...

    def _name_of(self, endpoint: Any) -> str: ...


class Collected(Generic[_F]):
    """The calls of a batch, and the futures of their results."""

    def __init__(
        self, make_future: Callable[[BatchBlock, str], _F], block: BatchBlock, client: _Client, convert: Convert
    ) -> None:
        self._make_future = make_future
        self.block = block
        self._client = client
        self._convert = convert
        self.entries: list[_Entry] = []
        self._futures: list[tuple[_F, Any]] = []

    def adder(self, endpoint: Any) -> Callable[..., _F]:
        """What adds a call of an endpoint, given by name or by function. Raises EndpointNotFound, InvalidArguments."""
        name = self._client._name_of(endpoint)
        self._client._check_batched(name)
        return functools.partial(self._add, name, result_of(endpoint))

    def _add(self, name: str, kind: Any, /, *args: Any, **kwargs: Any) -> _F:
        future = self._make_future(self.block, name)
        self.entries.append((name, args, kwargs))
        self._futures.append((future, kind))
        return future

    def settle(self, results: list[Any], errors: Mapping[int, Exception]) -> None:
        """Each call has its own outcome."""
        for index, (future, kind) in enumerate(self._futures):
            if future.done():
                continue
            if index in errors:
                future.set_exception(errors[index])
                continue
            try:
                future.set_result(results[index] if kind is Any else self._convert(results[index], kind))
            except UNREADABLE as error:
                future.set_exception(undecodable(self.entries[index][0], error))

    def close(self) -> None:
        """Those that have no outcome will have none. We keep nothing: an error's traceback may have us."""
        for future, _ in self._futures:
            future.cancel()
        self._futures.clear()
        self.entries.clear()


class _Sender(_Client, Protocol):
    async def send_batch(self, calls: Sequence[Any]) -> Outcomes: ...


class Batch:
    """Calls to be sent in one frame; made by :meth:`Client.batch`."""

    def __init__(self, client: _Sender, convert: Convert) -> None:
        self._client = client
        block = BatchBlock(asyncio.current_task, "async with client.batch()")
        self._collected: Collected[BatchFuture] = Collected(BatchFuture, block, client, convert)

    def __getattr__(self, name: str) -> Callable[..., asyncio.Future[Any]]:
        if name.startswith("_"):
            raise AttributeError(name)
        add = self.__dict__[name] = self._collected.adder(name)  # The next time it is found without us.
        return add

    @overload
    def call(
        self, endpoint: Callable[_P, Coroutine[Any, Any, _R]], /, *args: _P.args, **kwargs: _P.kwargs
    ) -> asyncio.Future[_R]: ...
    @overload
    def call(self, endpoint: Callable[_P, _R], /, *args: _P.args, **kwargs: _P.kwargs) -> asyncio.Future[_R]: ...
    @overload
    def call(self, endpoint: str, /, *args: Any, **kwargs: Any) -> asyncio.Future[Any]: ...
    def call(self, endpoint: Any, /, *args: Any, **kwargs: Any) -> asyncio.Future[Any]:
        """Adds a call of an endpoint, given by name or by function. The future is done at the end of the block.

        Raises EndpointNotFound, InvalidArguments for an endpoint with streams, LocalProtocolError if there is no
        connection. Arguments that cannot be sent are an EncodeError of this future alone. Within the block to wait
        for it, or to ask for its result, raises LocalProtocolError.
        """
        return self._collected.adder(endpoint)(*args, **kwargs)

    async def __aenter__(self) -> Batch:
        self._collected.block.enter()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Sends the calls and waits for the answers; after an exception in the block nothing is sent."""
        collected = self._collected
        collected.block.leave()
        try:
            if error is None and collected.entries:
                collected.settle(*await self._client.send_batch(collected.entries))
        finally:
            collected.close()


class _SyncSender(_Client, Protocol):
    def send_batch(self, calls: Sequence[Any]) -> Outcomes: ...


class SyncBatch:
    """Calls to be sent in one frame; made by :meth:`shmrpc.sync.Client.batch`."""

    def __init__(self, client: _SyncSender, convert: Convert) -> None:
        self._client = client
        block = BatchBlock(threading.get_ident, "with client.batch()")
        self._collected: Collected[SyncBatchFuture] = Collected(SyncBatchFuture, block, client, convert)

    def __getattr__(self, name: str) -> Callable[..., concurrent.futures.Future[Any]]:
        if name.startswith("_"):
            raise AttributeError(name)
        add = self.__dict__[name] = self._collected.adder(name)  # The next time it is found without us.
        return add

    @overload
    def call(
        self, endpoint: Callable[_P, Coroutine[Any, Any, _R]], /, *args: _P.args, **kwargs: _P.kwargs
    ) -> concurrent.futures.Future[_R]: ...
    @overload
    def call(
        self, endpoint: Callable[_P, _R], /, *args: _P.args, **kwargs: _P.kwargs
    ) -> concurrent.futures.Future[_R]: ...
    @overload
    def call(self, endpoint: str, /, *args: Any, **kwargs: Any) -> concurrent.futures.Future[Any]: ...
    def call(self, endpoint: Any, /, *args: Any, **kwargs: Any) -> concurrent.futures.Future[Any]:
        """Adds a call of an endpoint, given by name or by function; see :meth:`Batch.call`."""
        return self._collected.adder(endpoint)(*args, **kwargs)

    def __enter__(self) -> SyncBatch:
        self._collected.block.enter()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Sends the calls and waits for the answers; after an exception in the block nothing is sent."""
        collected = self._collected
        collected.block.leave()
        try:
            if error is None and collected.entries:
                collected.settle(*self._client.send_batch(collected.entries))
        finally:
            collected.close()


def chunks(iterables: Sequence[Iterable[Any]], size: int) -> Iterator[list[list[Any]]]:
    """The items of the iterables side by side, so many at a time."""
    if isinstance(size, bool) or not isinstance(size, int):
        raise TypeError(f"chunk: expected a number of calls in a frame, got {size!r}")
    if size < 1:
        raise ValueError(f"chunk: expected 1 or more calls in a frame, got {size}")
    source = map(list, zip(*iterables, strict=False))
    while calls := list(itertools.islice(source, size)):
        yield calls
