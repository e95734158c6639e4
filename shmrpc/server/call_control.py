"""Handlers of the frames that belong to a call in flight: its cancellation, and parts of its streams."""

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

#: Function that applies the body of a frame to a stream from the client.
_ApplyToInput = Callable[[InFlightCall, IncomingStream, Body], None]


def control_table(runner: CallRunner, inputs: int) -> dict[int, RunRequest]:
    """Return the handlers of frames that belong to a call in flight, by opcode.

    ``inputs``: maximum number of streams to the server in a call.
    """

    def cancel(body: Body, client: ServedClient, call_id: int) -> None:
        runner.cancel(client, call_id)

    table: dict[int, RunRequest] = {frames.CANCEL: cancel, frames.CREDIT: _grant_credit}
    table |= dict.fromkeys(_APPLY_TO_INPUT, _report_misplaced)
    for number in range(1, inputs + 1):
        table |= {opcode(kind, number): _input_handler(number, apply) for kind, apply in _APPLY_TO_INPUT.items()}
    return table


def _input_handler(number: int, apply: _ApplyToInput) -> RunRequest:
    """Return the handler of frames for stream ``number`` from the client.

    Ignores a call that is not in flight, and a stream that the call does not have.
    """

    def run(body: Body, client: ServedClient, call_id: int) -> None:
        in_flight = client.calls.get(call_id)
        if in_flight is not None and number <= len(in_flight.inputs):
            apply(in_flight, in_flight.inputs[number - 1], body)

    return run


def _grant_credit(body: Body, client: ServedClient, call_id: int) -> None:
    """Grant credit to the stream to the client. Reports invalid credit as a fault of the client."""
    size = frames.decode_credit(body)
    if size is None:
        client.peer.fault("it sent credit that is no number of bytes")
        return
    in_flight = client.calls.get(call_id)
    if in_flight is not None and in_flight.outgoing is not None:
        in_flight.outgoing.grant(size)


def _report_misplaced(body: Body, client: ServedClient, call_id: int) -> None:
    """Report a part of a stream without a number as a fault of the client."""
    client.peer.fault("it sent part of a stream without its number")


def _add_item(in_flight: InFlightCall, incoming: IncomingStream, body: Body) -> None:
    """Add an item to a stream. Reports an item without credit as a fault of the client."""
    try:
        incoming.feed((0, body))
    except RemoteProtocolError as error:
        in_flight.client.peer.fault(str(error))


def _end_input(in_flight: InFlightCall, incoming: IncomingStream, body: Body) -> None:
    """End a stream after its last item."""
    incoming.finish()


def _abort_input(in_flight: InFlightCall, incoming: IncomingStream, body: Body) -> None:
    """End a stream with the error in the body, which its reader raises.

    Records the error as ``aborted`` of the call, so that it is not logged as a failure of the handler.
    """
    error = decode_failure(body)
    in_flight.aborted = weakref.ref(error)
    incoming.finish(error)


_APPLY_TO_INPUT: Final[dict[int, _ApplyToInput]] = {
    frames.ITEM: _add_item,
    frames.END: _end_input,
    frames.ABORT: _abort_input,
}
