"""Handlers of requests with many calls in one frame. Each call fails on its own."""

from __future__ import annotations

import asyncio
import contextvars
import functools
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any, Final

import msgspec

from shmrpc import _core
from shmrpc.server.call_runner import CallRunner
from shmrpc.server.program_exit import is_program_exit
from shmrpc.server.requests import header_reader, unknown_endpoint
from shmrpc.server.result_checks import EncodedResult
from shmrpc.server.served_client import InFlightCall, RunRequest, ServedClient
from shmrpc.server.served_endpoint import ServedEndpoint
from shmrpc.service.call import Call, current_call_var
from shmrpc.streams.sending import TIME_SLICE
from shmrpc.values.encode_errors import is_unsendable
from shmrpc.wire.codec import UNREADABLE, Body, body_weight
from shmrpc.wire.failure import CallRejected, Failure, unreadable_call
from shmrpc.wire.frames import Header, sub_body

#: Results in order, with None for failed calls, and the failures by position.
_Outcomes = tuple[list[Any], dict[int, Failure]]
#: An endpoint with positional and keyword arguments.
_Prepared = tuple[ServedEndpoint, Sequence[Any], Mapping[str, Any]]
#: Function that logs the exception of a call, and returns the failure to send.
_Describe = Callable[[Any, BaseException], Failure]

_split = msgspec.msgpack.Decoder(tuple[msgspec.Raw, list[msgspec.Raw]])
_split_call = msgspec.msgpack.Decoder(tuple[Annotated[int, msgspec.Meta(ge=0)], msgspec.Raw, msgspec.Raw])


class _Batch(msgspec.Struct, frozen=True):
    """A decoded batch. Its calls are prepared one by one, because thousands take many iterations of the loop."""

    header: Header
    calls: list[tuple[Any, ...]]
    #: Function that decodes the arguments of a call, given its parts, or raises its rejection.
    prepare: Callable[..., _Prepared]
    #: Function that returns the name of a call's endpoint.
    name_of: Callable[[Any], str]
    #: True if every call runs to its end without suspending.
    is_inline: bool
    #: The plain function of all calls, if their arguments are decoded already.
    function: Callable[..., Any] | None = None


def batch_of_one(endpoint: ServedEndpoint, runner: CallRunner) -> RunRequest:
    """Return the handler of requests with many calls of one endpoint, with positional arguments only."""
    signature, decode, inline = endpoint.signature, endpoint.decoders.positional, endpoint.is_inline
    read_header = header_reader(runner.codec)
    kinds = tuple(map(signature.types.__getitem__, signature.positional_names))
    decode_all = runner.codec.decoder(tuple[Header, list[tuple.__class_getitem__(kinds)]])  # type: ignore[misc]
    function = endpoint.function if inline else None

    def name_of(call: Any) -> str:
        return endpoint.name

    def read(body: Body) -> _Batch:
        try:
            header, calls = decode_all(body)
            return _Batch(header, calls, lambda *args: (endpoint, args, {}), name_of, inline, function)
        except UNREADABLE:  # Some calls have fewer arguments, or invalid ones.
            pass
        try:
            first, parts = _split.decode(body)
            header = read_header(body, first)
        except UNREADABLE as error:
            raise signature.unreadable_call(error) from None
        return _Batch(
            header,
            list(zip(parts)),
            lambda part: (endpoint, decode(sub_body(body, part)), {}),
            name_of,
            inline,
        )

    return _run(runner, endpoint.name, read)


def batch_of_any(service: str, endpoints: Sequence[ServedEndpoint], runner: CallRunner) -> RunRequest:
    """Return the handler of requests with many calls, each of which names its endpoint."""
    read_header = header_reader(runner.codec)

    def name_of(call: Any) -> str:
        return "batch" if call[0] is None else str(call[0].name)

    def split(part: msgspec.Raw) -> tuple[ServedEndpoint | None, msgspec.Raw, msgspec.Raw]:
        try:
            number, args, kwargs = _split_call.decode(part)
            return endpoints[number], args, kwargs
        except (*UNREADABLE, IndexError):
            return None, part, part

    def read(body: Body) -> _Batch:
        try:
            first, parts = _split.decode(body)
            header = read_header(body, first)
        except UNREADABLE as error:
            raise unreadable_call(f"{service}: the batch cannot be read", error) from None

        def prepare(endpoint: ServedEndpoint | None, args: msgspec.Raw, kwargs: msgspec.Raw) -> _Prepared:
            if endpoint is None:
                raise unknown_endpoint(service)
            return endpoint, *endpoint.decoders.decode_parts(body, args, kwargs)

        calls = list(map(split, parts))
        return _Batch(header, calls, prepare, name_of, all(call[0] is None or call[0].is_inline for call in calls))

    return _run(runner, "batch", read)


def _run(runner: CallRunner, name: str, read: Callable[[Body], _Batch]) -> RunRequest:
    """Return the handler that runs the batches which ``read`` decodes. It queues requests while the limits are reached.

    ``name``: the endpoint for messages.
    """

    def run(body: Body, client: ServedClient, call_id: int) -> Body | None:
        if runner.limiter.is_full(client):
            runner.limiter.wait(client, call_id, run, body)
            return None
        batch = read(body)
        in_flight = runner.begin(name, client, call_id, batch.header, body_weight(body))
        return runner.run(in_flight, _answer(runner, in_flight, batch))

    return run


async def _answer(runner: CallRunner, in_flight: InFlightCall, batch: _Batch) -> EncodedResult:
    """Run the calls; return the encoded reply. A result that cannot be encoded fails its call only."""

    def describe(call: Any, error: BaseException) -> Failure:
        return runner.describe(in_flight.call.service, batch.name_of(call), error)

    if batch.is_inline:
        function = batch.function or functools.partial(_call_one, runner, in_flight, batch.prepare)
        results, failures = await _call_each(function, batch.calls, describe)
    else:
        results, failures = await _gather(runner, in_flight, batch, describe)
    try:
        return EncodedResult(runner.codec.encode_all((results, failures)))
    except Exception as error:
        if not is_unsendable(error, (Exception,)):
            raise
    for index, result in enumerate(results):
        try:
            runner.encode_result(f"call {index} of the batch", result)
        except CallRejected as error:
            results[index] = None
            failures[index] = describe(batch.calls[index], error)
    return EncodedResult(runner.codec.encode_all((results, failures)))


async def _call_each(function: Callable[..., Any], calls: list[tuple[Any, ...]], describe: _Describe) -> _Outcomes:
    """Call a plain function with each argument list, in a context of its own; return the outcomes.

    Yields to the loop after each time slice. Raises an exception that ends the program.
    """
    contexts = _core.CallContexts(contextvars.copy_context())
    results: list[Any] = []
    failures: dict[int, Failure] = {}
    _sharing.batches += 1
    try:
        slice_end = _sharing.slice_end()
        while len(results) < len(calls):
            try:
                contexts.call_each(function, calls, results, slice_end)
            except BaseException as error:
                if is_program_exit(error):
                    raise
                failures[len(results)] = describe(calls[len(results)], error)
                results.append(None)
            if time.monotonic_ns() > slice_end:
                contexts.leave()
                await asyncio.sleep(0)
                slice_end = _sharing.slice_end()
    finally:
        contexts.leave()
        _sharing.batches -= 1
    return results, failures


class _TimeSharing:
    """The division of one time slice among the batches in flight."""

    #: Number of batches in flight.
    batches = 0

    def slice_end(self) -> int:
        """Return the end of a batch's part of a slice that begins now, in nanoseconds of time.monotonic_ns().

        Call this only while ``batches`` is at least 1.
        """
        return time.monotonic_ns() + int(TIME_SLICE * 1e9) // self.batches


_sharing: Final = _TimeSharing()


def _call_one(runner: CallRunner, in_flight: InFlightCall, prepare: Callable[..., _Prepared], *parts: Any) -> Any:
    """Decode the arguments of one call, and call its plain function; return the result or raise its exception."""
    endpoint, args, kwargs = prepare(*parts)
    call = _set_part_call(in_flight, endpoint)
    if runner.current_call.frame is not None:  # Until the batch first yields to the loop, this call is the running one.
        runner.current_call.frame = call
    try:
        return endpoint.function(*args, **kwargs)
    finally:
        call._ended = True


async def _gather(runner: CallRunner, in_flight: InFlightCall, batch: _Batch, describe: _Describe) -> _Outcomes:
    """Run each call in its own task, at most ``max_per_client`` at once; return the outcomes."""
    places = asyncio.Semaphore(runner.limiter.max_per_client)

    async def one(parts: Sequence[Any]) -> Any:
        async with places:
            endpoint, args, kwargs = batch.prepare(*parts)
            if endpoint.has_streams:
                raise CallRejected("arguments", f"{endpoint.name}() streams, and so cannot be called in a batch")
            call = _set_part_call(in_flight, endpoint)
            try:
                return await endpoint.invoke(InFlightCall(in_flight.client, call, 0), args, kwargs)
            except (SystemExit, KeyboardInterrupt) as error:  # A task cannot keep these: they would stop the loop.
                if is_program_exit(error):
                    raise
                return error
            finally:
                call._ended = True

    results = await asyncio.gather(*map(one, batch.calls), return_exceptions=True)
    failures = {
        index: describe(batch.calls[index], result)
        for index, result in enumerate(results)
        if isinstance(result, BaseException)
    }
    return [None if index in failures else result for index, result in enumerate(results)], failures


def _set_part_call(in_flight: InFlightCall, endpoint: ServedEndpoint) -> Call:
    """Make a Call for one call of a batch the current one, which its handler sees; return it."""
    batch = in_flight.call
    call = Call(in_flight.client, endpoint.name, batch.id, batch.deadline, batch._metadata)
    current_call_var.set(call)
    return call
