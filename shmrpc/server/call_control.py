"""Frames that belong to a call in flight: its cancellation, and its streams."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Final

from shmrpc.errors import RemoteProtocolError
from shmrpc.server.call_runner import CallRunner
from shmrpc.server.served_client import InFlightCall, RunRequest, ServedClient
from shmrpc.streams.receiving import IncomingStream
from shmrpc.wire import frames
from shmrpc.wire.codec import Body
from shmrpc.wire.failure import decode_failure
from shmrpc.wire.frames import opcode

#: Applies a frame to a stream from the client.
_Act = Callable[[InFlightCall, IncomingStream, Body], None]


def control_table(runner: CallRunner, inputs: int) -> dict[int, RunRequest]:
    """Return the handlers of these frames by opcode. ``inputs``: maximum number of streams from a client per call."""

    def cancel(body: Body, client: ServedClient, call_id: int) -> None:
        runner.cancel(client, call_id)

    table: dict[int, RunRequest] = {frames.CANCEL: cancel, frames.CREDIT: _credit}
    table |= dict.fromkeys(_OF_INPUTS, _misplaced)
    for number in range(1, inputs + 1):
        table |= {opcode(kind, number): _to_input(number, act) for kind, act in _OF_INPUTS.items()}
    return table


def _to_input(number: int, act: _Act) -> RunRequest:
    """Return the handler of frames for stream ``number`` from the client. Ignores frames of calls not in flight."""

    def run(body: Body, client: ServedClient, call_id: int) -> None:
        in_flight = client.calls.get(call_id)
        if in_flight is not None and number <= len(in_flight.inputs):
            act(in_flight, in_flight.inputs[number - 1], body)

    return run


def _credit(body: Body, client: ServedClient, call_id: int) -> None:
    size = frames.decode_credit(body)
    if size is None:
        client.peer.fault("it sent credit that is no number of bytes")
        return
    in_flight = client.calls.get(call_id)
    if in_flight is not None and in_flight.outgoing is not None:
        in_flight.outgoing.grant(size)


def _misplaced(body: Body, client: ServedClient, call_id: int) -> None:
    client.peer.fault("it sent part of a stream to where none is")


def _item(in_flight: InFlightCall, incoming: IncomingStream, body: Body) -> None:
    try:
        incoming.feed((0, body))
    except RemoteProtocolError as error:
        in_flight.client.peer.fault(str(error))


def _end(in_flight: InFlightCall, incoming: IncomingStream, body: Body) -> None:
    incoming.finish()


def _abort(in_flight: InFlightCall, incoming: IncomingStream, body: Body) -> None:
    error = decode_failure(body)
    in_flight.aborted = weakref.ref(error)
    incoming.finish(error)


_OF_INPUTS: Final[dict[int, _Act]] = {frames.ITEM: _item, frames.END: _end, frames.ABORT: _abort}
