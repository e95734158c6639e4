"""A call with streams, sans I/O: what a server may not send, and ends that get lost."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from shmrpc.client.common.stream_exchange import StreamExchange, check_unexpected_frame
from shmrpc.errors import ConnectionLost, RemoteProtocolError
from shmrpc.service.call import Call
from shmrpc.streams.credit import SendWindow
from shmrpc.streams.receiving import IncomingStream
from shmrpc.wire import frames
from shmrpc.wire.frames import opcode
from tests.helpers.server_process import PATIENCE

_SESSION: Any = None


class Talk(StreamExchange):
    """One whose driver keeps what comes in a list, and is interrupted if told so."""

    def __init__(self, *, streams: bool) -> None:
        super().__init__(_SESSION, Call(_SESSION, "talk", 7), streams=streams)
        self.items: list[Any] = []
        self.ends = 0
        self.interrupted = False

    def add_item(self, body: Any) -> None:
        self.items.append(body)

    def begin(self, kind: int, body: Any) -> None:
        raise NotImplementedError

    def _add_source(self, codec: Any, number: int, source: Any) -> Any:
        raise NotImplementedError

    async def wait_ready(self) -> bool:
        raise NotImplementedError

    def take_runs(self) -> list[Any]:
        return self.items

    async def close(self) -> None:
        raise NotImplementedError

    def end(self) -> None:
        raise NotImplementedError

    def finish(self) -> None:
        if self.interrupted:
            self.interrupted = False
            raise KeyboardInterrupt
        self.ends += 1
        super().finish()


def test_credit_and_the_end_reach_the_stream_that_they_name() -> None:
    talk = Talk(streams=True)
    talk.uploads[1], talk.uploads[2] = one, two = SendWindow(), SendWindow()
    talk.feed(opcode(frames.CREDIT, 1), frames.encode_credit(10))
    talk.feed(opcode(frames.STOP, 2), frames.NIL)
    talk.feed(opcode(frames.CREDIT, 3), frames.encode_credit(10))
    assert (one.credit, one.closed, two.credit, two.closed) == (10, False, 0, True)
    talk.feed(frames.ITEM, b"item")
    talk.feed(frames.RESULT, frames.NIL)
    assert (talk.items, talk.ended, talk.body, one.closed) == ([b"item"], True, frames.NIL, True)


@pytest.mark.parametrize(
    ("kind", "body", "words"),
    [
        (frames.ITEM, frames.NIL, "call 7, which has one result"),
        (opcode(frames.ITEM, 1), frames.NIL, "which no server sends"),
        (opcode(frames.CREDIT, 1), frames.NIL, "no number of bytes"),
        (frames.METADATA, frames.NIL, "metadata of a stream cannot be read"),
        (frames.CALL, frames.NIL, "which no server sends"),
    ],
)
def test_frames_that_no_server_may_send_are_rejected(kind: int, body: bytes, words: str) -> None:
    with pytest.raises(RemoteProtocolError, match=words):
        Talk(streams=False).feed(kind, body)


def test_late_frames_are_ignored_unless_no_server_sends_them() -> None:
    for kind in (frames.ITEM, frames.METADATA, opcode(frames.STOP, 1)):
        check_unexpected_frame(kind, 7, frames.NIL, under_way=False)
    with pytest.raises(RemoteProtocolError, match="no number of bytes"):
        check_unexpected_frame(opcode(frames.CREDIT, 1), 7, frames.NIL, under_way=False)


def test_an_end_that_was_interrupted_is_made_up_for() -> None:
    talk = Talk(streams=False)
    talk.interrupted = True
    with pytest.raises(KeyboardInterrupt):
        talk.feed(frames.RESULT, frames.NIL)
    talk.fail(ConnectionLost("closed"))
    assert (talk.ends, talk.body, talk.error) == (1, frames.NIL, None)


async def test_finish_wakes_the_reader_when_repeated_after_an_interruption(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    incoming = IncomingStream(lambda size: None)
    reading = asyncio.ensure_future(incoming.wait_ready())
    for _ in range(3):
        await asyncio.sleep(0)  # The reader lets the loop turn once, then waits.

    def interrupted(_: IncomingStream) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(IncomingStream, "_wake", interrupted)
        with pytest.raises(KeyboardInterrupt):
            incoming.finish(ConnectionLost("closed"))
    assert not incoming.ended
    incoming.finish(ConnectionLost("closed"))
    with pytest.raises(ConnectionLost, match="closed"):
        await asyncio.wait_for(reading, PATIENCE)
