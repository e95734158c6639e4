"""Streams, as in docs/wire.md: numbers, credit, and frames that are a fault."""

from __future__ import annotations

from typing import Any

import pytest

from tests.helpers.server_process import ServerProcess, eventually
from tests.helpers.wire_client import (
    ABORT,
    BUFFER_BYTES_PER_BYTE,
    CANCEL,
    CREDIT,
    END,
    FAILURE,
    ITEM,
    METADATA,
    OVERHEAD,
    RESULT,
    RESULT_WITH,
    STOP,
    WINDOW,
    Failed,
    Parcel,
    WireClient,
    unpacked,
)

TARGET = "tests.helpers.stream_service:service"
SHARED_SERVER = True


def items_until_answer(wire: WireClient, call_id: int) -> tuple[list[bytes], int, Any]:
    """Bodies of items, then kind and value of the answer."""
    bodies: list[bytes] = []
    while True:
        opcode, answered, body = wire.receive()
        assert answered == call_id
        if opcode != ITEM:
            return bodies, opcode, unpacked(body)
        bodies.append(body)


def cost(body: bytes) -> int:
    """Return the credit that an item costs."""
    buffers = body.buffers if isinstance(body, Parcel) else []
    return len(body) + sum(map(len, buffers)) // BUFFER_BYTES_PER_BYTE + OVERHEAD


def counted(wire: WireClient, endpoint: str, *args: Any) -> tuple[Any, int]:
    """Call an endpoint while items arrive, and return its result and the credit that the items cost."""
    call_id, taken = wire.request(endpoint, *args), 0
    while True:
        opcode, answered, body = wire.receive()
        if answered == call_id:
            assert opcode == RESULT
            return unpacked(body), taken
        assert opcode == ITEM
        taken += cost(body)


def fault_of(wire: WireClient) -> str:
    """Return the reason with which the server ends the connection for a fault of the client."""
    goodbye, _ = wire.control.receive()
    assert (goodbye["type"], goodbye["fault"]) == ("goodbye", True)
    return str(goodbye["reason"])


def test_the_welcome_says_which_endpoints_stream(wire: WireClient) -> None:
    shapes = dict(zip(wire.welcome["endpoints"], wire.welcome["shapes"], strict=True))
    assert shapes["count"] == shapes["count_plainly"] == {"streams": True}
    assert shapes["total"] == {"inputs": [["numbers", 0]]}
    assert shapes["first"] == {"inputs": [["items", 1]]}
    assert shapes["doubled"] == {"streams": True, "inputs": [["numbers", 0]]}
    assert shapes["zipped"] == {"streams": True, "inputs": [["left", 0], ["right", 1]]}
    assert shapes["add"] is None


def test_a_stream_ends_with_nil_or_a_failure(wire: WireClient) -> None:
    for endpoint, expected in (("count", [0, 1, 2]), ("count_plainly", [0, 1, 2])):
        bodies, kind, value = items_until_answer(wire, wire.request(endpoint, 3))
        assert ([unpacked(body) for body in bodies], kind, value) == (expected, RESULT, None)
    bodies, kind, value = items_until_answer(wire, wire.request("fail_after", 2))
    assert (len(bodies), kind, value["base"]) == (2, FAILURE, "ValueError")
    bodies, kind, value = items_until_answer(wire, wire.request("odd_items"))
    assert (bodies, kind, value["kind"]) == ([b"\x01"], FAILURE, "encode")


def test_metadata_comes_before_the_first_item_and_what_changed_with_the_answer(wire: WireClient) -> None:
    call_id = wire.request_with({}, "metadata_and_items", 1)
    assert wire.expect(METADATA, call_id) == {"first": "1", "changes": "early", "last": b"2"}
    assert wire.expect(ITEM, call_id) == 0
    assert wire.expect(RESULT_WITH, call_id) == [{"changes": "late"}, None]


@pytest.mark.parametrize("size", [0, 1000, 20_000, 200_000])
@pytest.mark.own_server
def test_a_server_stops_when_the_credit_is_used_up_and_goes_on_with_more(wire: WireClient, size: int) -> None:
    call_id = wire.request("blobs", 1_000_000, size)
    credit, sent = WINDOW, 0
    for more in (0, 1, 5000, 50_000):
        if more:
            wire.part(CREDIT, call_id, more)
            credit += more
        while credit > 0:
            opcode, answered, body = wire.receive()
            assert (opcode, answered, len(unpacked(body))) == (ITEM, call_id, size)
            credit, sent = credit - cost(body), sent + 1
        # The server's loop turns, and nothing more comes: the item after the last one was not even made.
        assert counted(wire, "sleep", 0.02) == ("sleep", 0)
        assert counted(wire, "produced") == (sent, 0)
    wire.part(CANCEL, call_id)
    assert wire.call("add", 1, 2) == 3


@pytest.mark.own_server
def test_a_stream_that_is_cancelled_closes_its_generator(wire: WireClient) -> None:
    call_id = wire.request("flood")
    wire.expect(ITEM, call_id)
    wire.part(CANCEL, call_id)
    assert eventually(lambda: counted(wire, "seen")[0].get("flood:closed") == 1)


def test_credit_for_what_does_not_take_it_is_no_fault(wire: WireClient) -> None:
    under_way, over = wire.request("sleep", 60), wire.request("add", 1, 2)
    assert wire.answer(over) == 3
    for call_id in (under_way, over, 999_999):
        wire.part(CREDIT, call_id, 1000)
    assert wire.call("add", 1, 2) == 3


@pytest.mark.parametrize("credit", [0, -1, 1 << 40, 1.5, "1", None, [1]])
@pytest.mark.parametrize("over", [False, True])
def test_credit_that_is_no_number_of_bytes_is_a_fault(wire: WireClient, credit: object, over: bool) -> None:
    call_id = wire.request("count" if over else "flood", *([1] if over else []))
    wire.expect(ITEM, call_id)
    if over:
        assert wire.expect(RESULT, call_id) is None
    wire.part(CREDIT, call_id, credit)
    assert "credit" in fault_of(wire)


def test_a_stream_to_the_server_begins_with_its_credit(wire: WireClient) -> None:
    call_id = wire.request("total", None, scale=2)
    assert wire.expect(CREDIT, call_id, stream=1) == WINDOW
    for number in range(100):
        wire.part(ITEM, call_id, number, stream=1)
    wire.part(END, call_id, stream=1)
    assert wire.answer(call_id) == 2 * sum(range(100))


def test_credit_is_given_back_as_items_are_consumed(wire: WireClient) -> None:
    call_id = wire.request("tolerate", None)
    credit = wire.expect(CREDIT, call_id, stream=1)
    for _ in range(10_000):
        while credit <= 0:
            more = wire.expect(CREDIT, call_id, stream=1)
            assert 0 < more <= WINDOW
            credit += more
        wire.part(ITEM, call_id, 7, stream=1)
        credit -= 1 + OVERHEAD
    wire.part(END, call_id, stream=1)
    while (frame := wire.receive())[0] == CREDIT | 1 << 8:
        assert frame[1] == call_id
    assert (frame[0], frame[1], unpacked(frame[2])) == (RESULT, call_id, "10000 all")


def test_a_call_that_waits_for_its_turn_gives_no_credit() -> None:
    with (
        ServerProcess("tests.helpers.stream_service:service", "--max-per-connection", "1"),
        WireClient("tested.flows") as wire,
    ):
        first = wire.request("sleep", 60)
        waiting = wire.request("total", None)
        assert wire.call("add", 1, 2) == 3  # add() does not wait in line; and no credit has come before its reply.
        wire.part(CANCEL, first)
        assert wire.expect(CREDIT, waiting, stream=1) == WINDOW
        wire.part(ITEM, waiting, 5, stream=1)
        wire.part(END, waiting, stream=1)
        assert wire.answer(waiting) == 5


@pytest.mark.parametrize(
    ("args", "kwargs"), [((None, None), {}), ((), {"right": None, "left": None})], ids=["positional", "keyword"]
)
def test_streams_have_the_numbers_of_their_places(
    wire: WireClient, args: tuple[None, ...], kwargs: dict[str, None]
) -> None:
    call_id = wire.request("zipped", *args, **kwargs)
    credits = [(opcode, answered) for opcode, answered, _ in (wire.receive(), wire.receive())]
    assert credits == [(CREDIT | 1 << 8, call_id), (CREDIT | 2 << 8, call_id)]
    wire.part(ITEM, call_id, "right", stream=2)
    wire.part(ITEM, call_id, 1, stream=1)
    assert wire.expect(ITEM, call_id) == (1, "right")
    wire.part(END, call_id, stream=1)
    wire.part(END, call_id, stream=2)
    # The endpoint stops the right stream, before or after the reply; no other frame arrives here.
    while (opcode := wire.receive()[0]) != RESULT:
        assert opcode == STOP | 2 << 8


def test_a_call_streams_in_both_directions_at_a_time(wire: WireClient) -> None:
    call_id = wire.request("doubled", None)
    wire.expect(CREDIT, call_id, stream=1)
    for number in range(10):
        wire.part(ITEM, call_id, number, stream=1)
        assert wire.expect(ITEM, call_id) == 2 * number
    wire.part(END, call_id, stream=1)
    assert wire.expect(RESULT, call_id) is None


def test_a_server_that_wants_no_more_says_stop_and_ignores_what_was_on_its_way(wire: WireClient) -> None:
    call_id = wire.request("first", 2, None)
    wire.expect(CREDIT, call_id, stream=1)
    for number in range(50):
        wire.part(ITEM, call_id, number, stream=1)
    assert wire.expect(STOP, call_id, stream=1) is None
    for _ in range(3):
        wire.part(ITEM, call_id, 0, stream=1)
    wire.part(END, call_id, stream=1)
    assert wire.answer(call_id) == [0, 1]


def test_an_aborted_stream_fails_in_the_handler(wire: WireClient) -> None:
    for body, name in (
        ({"kind": "raised", "message": "no more", "type_name": "a.B", "base": "KeyError"}, "KeyError"),
        ({"kind": "new in 2030", "message": ""}, "DecodeError"),
        (None, "DecodeError"),
    ):
        call_id = wire.request("tolerate", None)
        wire.expect(CREDIT, call_id, stream=1)
        wire.part(ITEM, call_id, 1, stream=1)
        wire.part(ABORT, call_id, body, stream=1)
        assert name in wire.answer(call_id)


def test_an_item_that_does_not_fit_fails_its_call(wire: WireClient) -> None:
    call_id = wire.request("total", None)
    wire.expect(CREDIT, call_id, stream=1)
    wire.part(ITEM, call_id, "one", stream=1)
    while (frame := wire.receive())[0] == STOP | 1 << 8:
        assert frame[1] == call_id
    with pytest.raises(Failed) as caught:
        wire.read(frame[0], frame[2])
    assert caught.value.map["kind"] == "arguments"
    assert wire.call("add", 1, 2) == 3


def test_one_item_may_overstep_the_credit_and_the_next_is_a_fault_of_this_connection_alone(wire: WireClient) -> None:
    with WireClient("tested.flows") as other:
        call_id = wire.request("zipped", None, None)  # The endpoint reads from the right only after the left.
        for stream in (1, 2):
            wire.expect(CREDIT, call_id, stream=stream)
        wire.part(ITEM, call_id, "x" * (WINDOW - OVERHEAD - 5 - 1), stream=2)
        wire.part(ITEM, call_id, "x" * 100_000, stream=2)  # One byte of credit was left.
        assert wire.call("add", 1, 2) == 3
        wire.part(ITEM, call_id, "x", stream=2)
        assert "credit" in fault_of(wire)
        assert other.call("add", 1, 2) == 3


def test_parts_of_streams_of_calls_that_have_ended_are_ignored(wire: WireClient) -> None:
    ended = wire.request("total", None)
    wire.expect(CREDIT, ended, stream=1)
    wire.part(END, ended, stream=1)
    assert wire.answer(ended) == 0
    without = wire.request("sleep", 60)
    for call_id in (ended, without, 999_999):
        wire.part(ITEM, call_id, bytes(WINDOW), stream=1)
        wire.part(ITEM, call_id, bytes(WINDOW), stream=1)
        wire.part(END, call_id, stream=1)
        wire.part(ABORT, call_id, None, stream=1)
    assert wire.call("add", 1, 2) == 3


@pytest.mark.own_server
def test_a_cancelled_call_ignores_its_streams(wire: WireClient) -> None:
    call_id = wire.request("total", None)
    wire.expect(CREDIT, call_id, stream=1)
    wire.part(CANCEL, call_id)
    wire.part(ITEM, call_id, 1, stream=1)
    wire.part(END, call_id, stream=1)

    def is_cancelled() -> bool:
        asked = wire.request("seen")
        while (frame := wire.receive())[1] == call_id:
            assert frame[0] == STOP | 1 << 8, "the handler may yet say that it wants no more"
        assert frame[:2] == (RESULT, asked)
        return bool(unpacked(frame[2]).get("total:cancelled") == 1)

    assert eventually(is_cancelled)
