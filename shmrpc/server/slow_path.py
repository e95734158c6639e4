"""The slow path: calls with metadata, streams or interceptors, or outside of the event loop."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from typing import Any

from shmrpc.server.call_runner import CallRunner
from shmrpc.server.program_exit import is_program_exit
from shmrpc.server.requests import NO_HEADER, ReadRequest, deadline_request_reader, header_request_reader, is_one_way
from shmrpc.server.served_client import InFlightCall, RunRequest, ServedClient
from shmrpc.server.served_endpoint import ServedEndpoint
from shmrpc.service.arguments import Arguments
from shmrpc.streams.credit import WINDOW
from shmrpc.streams.items import ItemDecoder
from shmrpc.streams.receiving import IncomingStream, iter_items
from shmrpc.streams.sending import OutgoingStream
from shmrpc.values.blocks import Unmapped
from shmrpc.wire import frames
from shmrpc.wire.codec import Body, body_weight
from shmrpc.wire.failure import CallRejected, unreadable_call
from shmrpc.wire.frames import opcode


def slow_path_handlers(endpoint: ServedEndpoint, runner: CallRunner) -> dict[int, RunRequest]:
    """Return the handlers of requests to any endpoint, by opcode without the endpoint's number."""
    decoders = endpoint.decoders
    decode, decode_keywords = decoders.positional, decoders.keywords
    read_with = header_request_reader(endpoint.signature, runner.codec, decoders)
    return {
        frames.CALL: _run(runner, endpoint, lambda body: (NO_HEADER, decode(body), {})),
        frames.CALL_KEYWORDS: _run(runner, endpoint, lambda body: (NO_HEADER, *decode_keywords(body))),
        frames.CALL_DEADLINE: _run(runner, endpoint, deadline_request_reader(decoders.with_deadline)),
        frames.CALL_WITH: _run(runner, endpoint, read_with, has_header=True),
    }


def _run(runner: CallRunner, endpoint: ServedEndpoint, read: ReadRequest, *, has_header: bool = False) -> RunRequest:
    """Return a handler that decodes a request with ``read``, runs the call, and returns its reply.

    The handler queues requests while the limits are reached. ``has_header``: True for CALL_WITH requests.
    """
    limiter, signature = runner.limiter, endpoint.signature

    def run(body: Body, client: ServedClient, call_id: int) -> Body | None:
        if limiter.is_full(client):
            limiter.wait(client, call_id, run, body, one_way=has_header and is_one_way(body))
            return None
        header, args, kwargs = read(body)
        if header.one_way:
            if endpoint.has_streams:  # The stream would wait forever for a reader, or for items.
                what = f"{endpoint.name}() streams, and so cannot be called one way"
                raise CallRejected("arguments", what, one_way=True)
            if endpoint.is_inline and header.deadline is None and not header.metadata:
                _call_one_way(runner, endpoint, client, args, kwargs)
                return None
        in_flight = runner.begin(endpoint.name, client, call_id, header, body_weight(body))
        if signature.inputs:
            args, kwargs = _open_inputs(runner, in_flight, endpoint, args, kwargs)
        if signature.streams:
            in_flight.outgoing = OutgoingStream(
                client.shared_memory.sender(frames.ITEM, call_id, WINDOW), limiter.change_busy
            )
            in_flight.accepts_early_metadata = has_header
        return runner.run(in_flight, endpoint.invoke(in_flight, args, kwargs))

    return run


def _call_one_way(
    runner: CallRunner, endpoint: ServedEndpoint, client: ServedClient, args: Sequence[Any], kwargs: Mapping[str, Any]
) -> None:
    """Call a plain function one way: log its failure. Raises an exception that ends the program."""
    try:
        endpoint.function(*args, **kwargs)
    except BaseException as error:
        runner.failure_log.log_one_way(client.service, endpoint.name, error)
        if is_program_exit(error):
            raise


def _open_inputs(
    runner: CallRunner,
    in_flight: InFlightCall,
    endpoint: ServedEndpoint,
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
) -> Arguments:
    """Return the arguments with a stream in the place of each parameter that takes one, and open the streams.

    Ends the stream of a parameter that the caller has omitted.
    """
    positional, keywords = list(args), dict(kwargs)
    send, call_id, signature = in_flight.client.send, in_flight.call.id, endpoint.signature
    for number, (name, place) in enumerate(signature.input_positions.items(), 1):
        credit, stop = opcode(frames.CREDIT, number), opcode(frames.STOP, number)
        incoming = IncomingStream(
            lambda size, credit=credit: send(credit, call_id, frames.encode_credit(size)),  # type: ignore[misc]
            allowed=0,
            extra=in_flight.client.extra_credit,
        )
        stream = iter_items(
            incoming,
            ItemDecoder(runner.codec, signature.inputs[name]),
            functools.partial(_item_rejection, signature.name, name),
            functools.partial(send, stop, call_id, frames.NIL),
        )
        in_flight.inputs.append(incoming)
        if name in keywords:
            keywords[name] = stream
        elif 0 <= place < len(positional):
            positional[place] = stream
        else:  # Omitted: the parameter has a default.
            incoming.finish()
            continue
        incoming.open()
    return positional, keywords


def _item_rejection(endpoint: str, parameter: str, error: Exception) -> CallRejected:
    """Return the rejection of a call for an item of a stream from the caller that cannot be decoded."""
    words = f"{endpoint}(): an item of {parameter!r}"
    if isinstance(error, Unmapped):
        return unreadable_call(words, error)
    what = str(error)
    return CallRejected("arguments", f"{words}: {what[0].lower()}{what[1:]}")
