"""The general way of a call: with metadata, streams, interceptors, or in a place of its own."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from typing import Any

from shmrpc.server.call_runner import CallRunner
from shmrpc.server.interrupts import is_for_the_program
from shmrpc.server.requests import NO_HEADER, Read, is_one_way, with_deadline, with_header
from shmrpc.server.served_client import RunRequest, ServedClient, Underway
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


def general_calls(endpoint: ServedEndpoint, runner: CallRunner) -> dict[int, RunRequest]:
    """By kind, what runs the requests to any endpoint."""
    decoders = endpoint.decoders
    decode, decode_keywords = decoders.positional, decoders.keywords
    read_with = with_header(endpoint.signature, runner.codec, decoders)
    return {
        frames.CALL: _run(runner, endpoint, lambda body: (NO_HEADER, decode(body), {})),
        frames.CALL_KEYWORDS: _run(runner, endpoint, lambda body: (NO_HEADER, *decode_keywords(body))),
        frames.CALL_DEADLINE: _run(runner, endpoint, with_deadline(decoders.with_deadline)),
        frames.CALL_WITH: _run(runner, endpoint, read_with, has_header=True),
    }


def _run(runner: CallRunner, endpoint: ServedEndpoint, read: Read, *, has_header: bool = False) -> RunRequest:
    limiter, signature = runner.limiter, endpoint.signature

    def run(body: Body, client: ServedClient, call_id: int) -> Body | None:
        if limiter.is_full(client):
            limiter.wait(client, call_id, run, body, one_way=has_header and is_one_way(body))
            return None
        header, args, kwargs = read(body)
        if header.one_way:
            if endpoint.has_streams:  # It would wait for ever for a reader, or for items.
                what = f"{endpoint.name}() streams, and so cannot be called one way"
                raise CallRejected("arguments", what, one_way=True)
            if endpoint.is_inline and header.deadline is None and not header.metadata:
                _tell(runner, endpoint, client, args, kwargs)
                return None
        under = runner.begin(endpoint.name, client, call_id, header, body_weight(body))
        if signature.inputs:
            args, kwargs = _open_inputs(runner, under, endpoint, args, kwargs)
        if signature.streams:
            under.outgoing = OutgoingStream(client.sharing.sender(frames.ITEM, call_id, WINDOW), limiter.change_busy)
            under.reads_metadata = has_header
        return runner.run(under, endpoint.invoke(under, args, kwargs))

    return run


def _tell(
    runner: CallRunner, endpoint: ServedEndpoint, client: ServedClient, args: Sequence[Any], kwargs: Mapping[str, Any]
) -> None:
    """Calls a plain function one way."""
    try:
        endpoint.function(*args, **kwargs)
    except BaseException as error:
        runner.failures.note_one_way(client.service, endpoint.name, error)
        if is_for_the_program(error):
            raise


def _open_inputs(
    runner: CallRunner, under: Underway, endpoint: ServedEndpoint, args: Sequence[Any], kwargs: Mapping[str, Any]
) -> Arguments:
    """Puts streams in the places of the parameters that take one."""
    positional, keywords = list(args), dict(kwargs)
    send, call_id, signature = under.client.send, under.call.id, endpoint.signature
    for number, (name, place) in enumerate(signature.input_places.items(), 1):
        credit, stop = opcode(frames.CREDIT, number), opcode(frames.STOP, number)
        incoming = IncomingStream(
            lambda size, credit=credit: send(credit, call_id, frames.encode_credit(size)),  # type: ignore[misc]
            allowed=0,
            extra=under.client.extra_credit,
        )
        stream = iter_items(
            incoming,
            ItemDecoder(runner.codec, signature.inputs[name]),
            functools.partial(_unfit, signature.name, name),
            functools.partial(send, stop, call_id, frames.NIL),
        )
        under.inputs.append(incoming)
        if name in keywords:
            keywords[name] = stream
        elif 0 <= place < len(positional):
            positional[place] = stream
        else:  # It was left out, and has a default.
            incoming.finish()
            continue
        incoming.open()
    return positional, keywords


def _unfit(endpoint: str, parameter: str, error: Exception) -> CallRejected:
    """The rejection for an item of a stream from the caller."""
    words = f"{endpoint}(): an item of {parameter!r}"
    if isinstance(error, Unmapped):
        return unreadable_call(words, error)
    what = str(error)
    return CallRejected("arguments", f"{words}: {what[0].lower()}{what[1:]}")
