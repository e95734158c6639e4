"""An endpoint as one server runs it: inside its interceptors, in the event loop, a thread or a process."""

from __future__ import annotations

import inspect
from collections.abc import AsyncIterable, Callable, Coroutine, Mapping, Sequence
from contextlib import AsyncExitStack
from typing import Any

from shmrpc.server.call_runner import CallRunner
from shmrpc.server.result_checks import ResultCheck, checked_encode, checked_function, make_result_check
from shmrpc.server.served_client import InFlightCall
from shmrpc.server.writable_arguments import WritableArguments
from shmrpc.service.arguments import ArgumentDecoders
from shmrpc.service.endpoints import Endpoint
from shmrpc.service.interceptors import Interceptor, enter_all
from shmrpc.service.service import Service
from shmrpc.service.signature import Signature
from shmrpc.streams.sending import EncodeItem
from shmrpc.values.encode_errors import advise_endpoint
from shmrpc.wire.failure import CallRejected

#: Coroutine function that runs a call, given its positional and keyword arguments, and returns its result.
Invoke = Callable[[InFlightCall, Sequence[Any], Mapping[str, Any]], Coroutine[Any, Any, Any]]


class ServedEndpoint:
    """An endpoint and the functions that run its calls."""

    def __init__(self, service: Service, endpoint: Endpoint, runner: CallRunner) -> None:
        codec = runner.codec
        self.name = endpoint.name
        self.signature = signature = endpoint.signature
        self.is_coroutine = endpoint.is_coroutine
        self.has_streams = signature.streams or bool(signature.inputs)
        interceptors = (*runner.interceptors, *service.interceptors, *endpoint.interceptors)
        #: True if a call has arguments and a result only, and runs in the event loop.
        self.is_plain = endpoint.run_in == "loop" and not (self.has_streams or signature.writable or interceptors)
        #: True if a call runs to its end without suspending.
        self.is_inline = self.is_plain and not endpoint.is_coroutine
        self.decoders = ArgumentDecoders(signature, codec)
        check = make_result_check(endpoint, codec, refuse=runner.validate_results) if runner.checks_results else None
        self.function = endpoint.function
        # Another process receives the function by pickle, and the result is checked here.
        if check is not None and not signature.streams and endpoint.run_in != "process":
            self.function = checked_function(endpoint, check)
        self.invoke = _invoker(service, endpoint, self.function, check, runner)
        if signature.writable:
            self.invoke = _writing_in_place(signature, self.invoke)
        if interceptors:
            self.invoke = _intercepted(interceptors, self.invoke)


def _invoker(
    service: Service, endpoint: Endpoint, function: Callable[..., Any], check: ResultCheck | None, runner: CallRunner
) -> Invoke:
    """Return the function that runs a call in the loop, in a thread or in a process, as the endpoint declares."""
    if endpoint.signature.streams:
        return _streaming(service, endpoint, check, runner)
    executors = runner.executors

    async def in_loop(in_flight: InFlightCall, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        result = function(*args, **kwargs)
        return await result if endpoint.is_coroutine else result

    async def in_thread(in_flight: InFlightCall, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        return await executors.threads(service, endpoint).call(function, args, kwargs)

    async def in_process(in_flight: InFlightCall, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        result = await executors.in_process(function, args, kwargs)
        if check is not None:
            check(result)
        return result

    return {"loop": in_loop, "thread": in_thread, "process": in_process}[endpoint.run_in]


def _streaming(service: Service, endpoint: Endpoint, check: ResultCheck | None, runner: CallRunner) -> Invoke:
    """Return the function that runs a call and sends the items of its stream. The call must have ``outgoing``.

    The function raises CallRejected for a result that is no iterable.
    """
    in_thread, executors = endpoint.run_in == "thread", runner.executors
    encode: EncodeItem = runner.codec.encoder if check is None else checked_encode(runner.codec.encode, check)

    async def stream(in_flight: InFlightCall, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
        assert in_flight.outgoing is not None
        items = _items_of(endpoint.name, endpoint.function(*args, **kwargs), in_thread=in_thread)
        if in_thread:
            items = executors.threads(service, endpoint).iterate(items)
        before_first = in_flight.send_metadata if in_flight.accepts_early_metadata else None
        await in_flight.outgoing.pump(items, encode, before_first=before_first)

    return stream


def _writing_in_place(signature: Signature, invoke: Invoke) -> Invoke:
    """Return a function that runs a call with ``invoke``, and lends it the caller's memory for that time."""

    async def lend(in_flight: InFlightCall, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        arguments = WritableArguments(signature)
        try:
            return await invoke(in_flight, *arguments.give(args, kwargs))
        finally:
            arguments.end()

    return lend


def _intercepted(interceptors: Sequence[Interceptor], invoke: Invoke) -> Invoke:
    """Return a function that runs a call with ``invoke`` inside the interceptors, the first one outermost."""

    async def intercept(in_flight: InFlightCall, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        async with AsyncExitStack() as stack:
            await enter_all(stack, interceptors, in_flight.call)
            return await invoke(in_flight, args, kwargs)

    return intercept


def _items_of(name: str, result: Any, *, in_thread: bool) -> Any:
    """Return the iterable that a streaming endpoint has returned, or its iterator with ``in_thread``.

    Raises CallRejected for any other value, and for an async iterable with ``in_thread``. Closes a coroutine.
    """
    if hasattr(result, "__iter__") or hasattr(result, "__getitem__"):
        return iter(result) if in_thread else result
    if isinstance(result, AsyncIterable) and not in_thread:
        return result
    if inspect.iscoroutine(result):
        result.close()
    expected = "an iterable" if in_thread else "an iterable or an async iterable"
    advice = (
        advise_endpoint(result) if not isinstance(result, AsyncIterable) else "an async iterable needs run_in='loop'"
    )
    raise CallRejected(
        "encode",
        f"{name}() is declared to stream: expected {expected}, but it returned {type(result).__qualname__}"
        f"{f'; {advice}' if advice else ''}",
    )
