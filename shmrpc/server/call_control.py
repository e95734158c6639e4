"""The frames that belong to a call under way: its cancellation, and its streams."""

from __future__ import annotations

import functools
import weakref

from shmrpc.errors import RemoteProtocolError
from shmrpc.server.call_runner import CallRunner
from shmrpc.server.served_client import RunRequest, ServedClient
from shmrpc.streams.receiving import Incoming
from shmrpc.wire import frames
from shmrpc.wire.codec import Body
from shmrpc.wire.frames import opcode


def control_table(runner: CallRunner, inputs: int) -> dict[int, RunRequest]:
    """By opcode, what runs these frames. ``inputs``: the most streams that a call takes from its client."""

    def cancel(body: Body, client: ServedClient, call_id: int) -> None:
        runner.cancel(client, call_id)

    table: dict[int, RunRequest] = {frames.CANCEL: cancel, frames.CREDIT: _credit}
    table |= dict.fromkeys((frames.ITEM, frames.END, frames.ABORT), _misplaced)
    for number in range(1, inputs + 1):
        table |= {
            opcode(frames.ITEM, number): functools.partial(_item, number),
            opcode(frames.END, number): functools.partial(_end, number),
            opcode(frames.ABORT, number): functools.partial(_abort, number),
        }
    return table


def _credit(body: Body, client: ServedClient, call_id: int) -> None:
    size = frames.decode_credit(body)
    if size is None:
        client.peer.fault("it sent credit that is no number of bytes")
        return
    under = client.calls.get(call_id)
    if under is not None and under.outgoing is not None:
        under.outgoing.grant(size)


def _misplaced(body: Body, client: ServedClient, call_id: int) -> None:
    client.peer.fault("it sent part of a stream to where none is")


def _input(number: int, client: ServedClient, call_id: int) -> Incoming | None:
    """A stream from the client, the first is 1; None if its call has ended or never began, as it may not know yet."""
    under = client.calls.get(call_id)
    return under.inputs[number - 1] if under is not None and number <= len(under.inputs) else None


def _item(number: int, body: Body, client: ServedClient, call_id: int) -> None:
    incoming = _input(number, client, call_id)
    if incoming is not None:
        try:
            incoming.feed((0, body))
        except RemoteProtocolError as error:
            client.peer.fault(str(error))


def _end(number: int, body: Body, client: ServedClient, call_id: int) -> None:
    incoming = _input(number, client, call_id)
    if incoming is not None:
        incoming.finish()


def _abort(number: int, body: Body, client: ServedClient, call_id: int) -> None:
    incoming = _input(number, client, call_id)
    if incoming is not None:
        error = frames.decode_failure(body)
        client.calls[call_id].aborted = weakref.ref(error)
        incoming.finish(error)
