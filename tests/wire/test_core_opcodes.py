"""The core knows no opcode of a call: the makers of a channel and a poller pass the opcodes of results and faults."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator

import pytest

from shmrpc import _core
from shmrpc.transport.shm.segment import NewSegment
from shmrpc.wire import frames

ANSWER = 7


@contextlib.contextmanager
def connected() -> Iterator[tuple[_core.Channel, _core.Channel]]:
    """Both sides of a connection, the server's first. They look for frames and never wait."""
    made = NewSegment("tested", semaphores=False)
    bells, lendings = _core.Descriptor.pair(), _core.Descriptor.pair()
    try:
        sides = [
            _core.Channel(
                segment=made.file,
                capacity=made.capacity,
                server=server,
                bell=bell,
                semaphores=None,
                owner=os.geteuid(),
                loans=lending,
                blocking=False,
                max_frame=1000,
                max_memory=1 << 20,
                spin=1e6,
                reply_opcode=ANSWER,
            )
            for server, bell, lending in zip((True, False), bells, lendings, strict=True)
        ]
    finally:
        made.unlink()
    yield sides[0], sides[1]
    for side in sides:
        side.close()


@pytest.mark.parametrize(("opcode", "expected"), [(ANSWER, b"a"), (frames.RESULT, (frames.RESULT, 1, b"a"))])
def test_exchange_returns_only_the_body_for_the_reply_opcode_of_the_channel(opcode: int, expected: object) -> None:
    with connected() as (server, client):
        answers = []
        for _ in range(20):
            server.send(opcode, 1, b"a")
            answers.append(client.exchange(2, 1, b""))
            server.receive()
        # When the yield budget is used up, a reply comes as a whole frame, too.
        assert expected in answers and all(each in ((opcode, 1, b"a"), expected) for each in answers)


def test_a_run_begins_with_the_given_head() -> None:
    with connected() as (server, client):
        for item in (b"a", b"b", b"c"):
            server.send(9, 1, item)
        assert client.receive_run(9, 1, 2, b"head") == (2, b"head\0\0\0\2ab")
        assert client.receive_run(9, 1, 2, b"") == (1, b"\0\0\0\1c")
        assert client.receive_run(9, 1, 2, b"") is None


def test_a_fault_is_no_frame_that_a_client_can_send() -> None:
    assert frames.PEER_FAULT > (1 << 32) - 1
    with connected() as (server, client):
        poller = _core.Poller(spin=0, fault=frames.PEER_FAULT, reply_opcode=frames.RESULT)
        poller.add(server, "key", None)
        client.send(frames.RESULT, 3, b"x")
        assert poller.next() == ("key", frames.RESULT, 3, b"x")
        client.send(frames.RESULT | 0xFF, 0, b"no RELEASE")
        key, opcode, call_id, error = poller.next() or pytest.fail("nothing is reported")
        assert (key, opcode, call_id) == ("key", frames.PEER_FAULT, 0)
        assert isinstance(error, _core.ChannelError) and str(error) == "a RELEASE has 10 bytes instead of 16"
