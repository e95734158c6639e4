"""Calls beyond the plain one, as in docs/wire.md: deadlines, metadata, batches, and calls that end early."""

from __future__ import annotations

import re
import time
from pathlib import Path
from typing import Any

import msgpack
import pytest

from tests.helpers import wire_client
from tests.helpers.server_process import ServerProcess, eventually
from tests.helpers.wire_client import (
    ABORT,
    ANY,
    BATCH,
    CALL,
    CALL_DEADLINE,
    CALL_WITH,
    CANCEL,
    CREDIT,
    DESCRIBE,
    END,
    FAILURE,
    ITEM,
    RESULT_WITH,
    STOP,
    WINDOW,
    Control,
    Failed,
    Gone,
    WireClient,
)

SECOND = 1_000_000_000


TARGET = "tests.helpers.stream_service:service"
SHARED_SERVER = True


def failure(wire: WireClient, call_id: int) -> dict[str, Any]:
    """Return the failure in the next frame, which must answer this call."""
    with pytest.raises(Failed) as caught:
        wire.answer(call_id)
    return caught.value.map


def test_the_kinds_are_the_documented_ones() -> None:
    page = (Path(__file__).parents[2] / "docs" / "wire.md").read_text()
    frames = page[page.index("## 5. Frames") : page.index("## 6. Parcels")]
    documented = re.findall(r"^\| ([A-Z_]+) \| (\d+) \|", frames, re.MULTILINE)
    assert [(name, getattr(wire_client, name)) for name, _ in documented] == [(n, int(v)) for n, v in documented]
    assert [int(value) for _, value in documented] == list(range(16))


def seen(wire: WireClient, what: str) -> int:
    count: int = wire.call("seen").get(what, 0)
    return count


@pytest.mark.own_server
def test_a_deadline_in_the_past_is_refused(wire: WireClient) -> None:
    past = time.monotonic_ns() - 1
    for call_id in (
        wire.ask(CALL_DEADLINE, "add", [past, 1, 2]),
        wire.ask(CALL_DEADLINE, "sleep", [past, 0]),
        wire.request_with({"deadline": past}, "add", 1, 2),
        wire.request_with({"deadline": past}, "count", 1),
        wire.ask(BATCH, "add", [{"deadline": past}, [[1, 2]]]),
        wire.ask(CALL_DEADLINE, "add", [-1, 1, 2]),
    ):
        assert failure(wire, call_id)["kind"] == "deadline"
    assert seen(wire, "count:began") == 0


def test_a_deadline_in_the_future_is_the_handlers(wire: WireClient) -> None:
    soon = time.monotonic_ns() + 100 * SECOND
    for endpoint in ("remaining", "remaining_plainly"):
        for call_id in (wire.ask(CALL_DEADLINE, endpoint, [soon]), wire.request_with({"deadline": soon}, endpoint)):
            assert 0 < wire.answer(call_id) <= 100
    assert wire.answer(wire.ask(CALL_DEADLINE, "add", [(1 << 64) - 1, 1, 2])) == 3
    assert wire.answer(wire.request_with({"deadline": None}, "add", 1, b=2)) == 3


@pytest.mark.own_server
def test_a_deadline_that_passes_ends_the_handler(wire: WireClient) -> None:
    soon = time.monotonic_ns() + 3 * SECOND  # The handler must begin before.
    assert failure(wire, wire.ask(CALL_DEADLINE, "sleep", [soon, 600]))["kind"] == "deadline"
    assert seen(wire, "sleep:cancelled") == 1


def test_a_deadline_that_is_no_integer_is_an_argument_that_does_not_fit(wire: WireClient) -> None:
    for call_id in (
        wire.ask(CALL_DEADLINE, "add", ["soon", 1, 2]),
        wire.ask(CALL_DEADLINE, "add", []),
        wire.ask(CALL_DEADLINE, "add", None),
        wire.request_with({"deadline": 1.5}, "add", 1, 2),
        wire.ask(CALL_WITH, "add", [[1, 2], {}]),
    ):
        assert failure(wire, call_id)["kind"] == "arguments"
    assert wire.call("add", 1, 2) == 3


def test_metadata_goes_there_and_comes_back(wire: WireClient, server: ServerProcess) -> None:
    call_id = wire.request_with({"metadata": {"text": "t", "raw": b"\1"}, "new in 2030": 1}, "metadata")
    metadata, result = wire.expect(RESULT_WITH, call_id)
    assert metadata == {"pid": str(server.pid), "raw": b"\x00\xff"}
    assert result == {"text": "'t'", "raw": "b'\\x01'"}
    assert wire.expect(RESULT_WITH, wire.request_with({}, "metadata"))[1] == {}
    assert wire.call("metadata") == {}, "without a header there is no metadata in the answer"


def test_a_failure_brings_metadata_too(wire: WireClient) -> None:
    came = failure(wire, wire.request_with({}, "metadata_and_failure"))
    assert (came["kind"], came["metadata"]) == ("raised", {"why": "because"})


def test_metadata_that_is_neither_text_nor_bytes_is_refused(wire: WireClient) -> None:
    assert failure(wire, wire.request_with({"metadata": {"n": 1}}, "metadata"))["kind"] == "arguments"
    assert failure(wire, wire.request_with({"metadata": {1: "n"}}, "metadata"))["kind"] == "arguments"


@pytest.mark.own_server
def test_a_cancelled_call_ends_without_an_answer(wire: WireClient) -> None:
    call_id = wire.request("sleep", 60)
    assert eventually(lambda: seen(wire, "sleep:began") == 1)
    wire.part(CANCEL, call_id)
    assert eventually(lambda: seen(wire, "sleep:cancelled") == 1)  # Nothing but what seen() answers has come.


@pytest.mark.own_server
def test_a_cancelled_handler_that_goes_on_is_not_heard(wire: WireClient) -> None:
    call_id = wire.request("stubborn", 2)  # Longer than the cancellation takes to come.
    wire.part(CANCEL, call_id)
    assert eventually(lambda: seen(wire, "stubborn:finished") == 1)


def test_to_cancel_what_has_ended_or_never_was_is_no_fault(wire: WireClient) -> None:
    call_id = wire.request("add", 1, 2)
    assert wire.answer(call_id) == 3
    for late in (call_id, 999_999):
        wire.part(CANCEL, late)
    assert wire.call("add", 1, 2) == 3


def test_a_call_that_waits_for_its_turn_can_be_cancelled_and_too_many_are_refused() -> None:
    limits = ("--max-per-connection", "1", "--max-waiting", "1")
    with ServerProcess("tests.helpers.stream_service:service", *limits), WireClient("tested.flows") as wire:
        first, second, third = (wire.request("sleep", 60, tag) for tag in ("a", "b", "c"))
        assert failure(wire, third)["kind"] == "overloaded"
        wire.part(CANCEL, second)
        fourth = wire.request("sleep", 0, "d")  # There is room in the line again.
        wire.part(CANCEL, first)
        assert wire.answer(fourth) == "d"
        assert seen(wire, "b:began") == seen(wire, "c:began") == 0


def test_a_batch_of_one_endpoint_answers_each_call(wire: WireClient) -> None:
    call_id = wire.ask(BATCH, "add", [{}, [[1, 2], [1, "x"], [], [3, 4]]])
    results, failures = wire.answer(call_id)
    assert results == [3, None, None, 7]
    assert {index: map_["kind"] for index, map_ in failures.items()} == {1: "arguments", 2: "arguments"}
    results, failures = wire.answer(wire.ask(BATCH, "sleep", [{}, [[0.01, "a"], ["x"], [0]]]))
    assert (results, failures.keys()) == (["a", None, "sleep"], {1})
    assert wire.answer(wire.ask(BATCH, "add", [{}, []])) == [[], {}]


def test_a_batch_of_any_endpoints_answers_each_call(wire: WireClient) -> None:
    add, sleep, fails, count = (wire.number(name) for name in ("add", "sleep", "metadata_and_failure", "count"))
    calls = [
        [add, [1], {"b": 2}],
        [fails, [], {}],
        [sleep, [0.01, "slept"], {}],
        [len(wire.welcome["endpoints"]), [], {}],
        [-1, [1, 2], {}],
        [add, [1], {}],
        [count, [3], {}],
        "no call",
    ]
    results, failures = wire.answer(wire.send(BATCH | ANY << 8, msgpack.packb([{}, calls])))
    assert results == [3, None, "slept", None, None, None, None, None]
    assert {index: map_["kind"] for index, map_ in failures.items()} == {
        1: "raised",
        3: "endpoint",
        4: "endpoint",
        5: "arguments",
        6: "arguments",
        7: "endpoint",
    }
    assert failures[1]["base"] == "KeyError"


def test_a_call_of_a_batch_that_cannot_be_read_fails_alone(wire: WireClient) -> None:
    add, pack = wire.number("add"), msgpack.packb
    no_text = b"\xa1\xff"  # One byte of text that is no UTF-8.
    calls = [pack([1, 2]), pack(5), b"\x92\x01" + no_text, pack({}), pack([3, 4])]
    results, failures = wire.answer(wire.send(BATCH | add << 8, b"\x92\x80\x95" + b"".join(calls)))
    assert results == [3, None, None, None, 7]
    assert {index: map_["kind"] for index, map_ in failures.items()} == dict.fromkeys((1, 2, 3), "arguments")
    calls = [
        pack([add, [1], {"b": 2}]),
        pack([add, 5, {}]),
        pack([add, [1], 5]),
        b"\x93" + pack(add) + pack([1]) + b"\x81" + no_text + pack(2),
        pack([add, [1, 2], {}, None]),
    ]
    results, failures = wire.answer(wire.send(BATCH | ANY << 8, b"\x92\x80\x95" + b"".join(calls)))
    assert results == [3, None, None, None, None]
    kinds = dict.fromkeys((1, 2, 3), "arguments") | {4: "endpoint"}
    assert {index: map_["kind"] for index, map_ in failures.items()} == kinds


def test_a_batch_that_cannot_be_read_is_one_failure(wire: WireClient) -> None:
    for number in (wire.number("add"), ANY):
        for body in ([], [{}, 5], [[[1, 2]]], None):
            assert failure(wire, wire.send(BATCH | number << 8, msgpack.packb(body)))["kind"] == "arguments"
    assert failure(wire, wire.send(BATCH | 999 << 8, msgpack.packb([{}, []])))["kind"] == "endpoint"


def test_a_batch_whose_answer_is_too_large_is_one_failure() -> None:
    with ServerProcess(), WireClient("tested", max_frame=4096) as wire:
        assert failure(wire, wire.ask(BATCH, "zeros", [{}, [[3000], [3000]]]))["kind"] == "size"
        results, failures = wire.answer(wire.ask(BATCH, "unencodable", [{}, [[], []]]))
        assert (results, [failures[place]["kind"] for place in (0, 1)]) == ([None, None], ["encode", "encode"])


@pytest.mark.own_server
def test_a_batch_is_cancelled_as_one_call(wire: WireClient) -> None:
    call_id = wire.ask(BATCH, "sleep", [{}, [[60, "x"], [60, "x"]]])
    assert eventually(lambda: seen(wire, "x:began") == 2)
    wire.part(CANCEL, call_id)
    assert eventually(lambda: seen(wire, "x:cancelled") == 2)


def test_a_service_describes_itself(wire: WireClient) -> None:
    description = wire.answer(wire.send(DESCRIBE, msgpack.packb(None)))
    assert description["service"] == "tested.flows"
    assert [each["name"] for each in description["endpoints"]] == wire.welcome["endpoints"]
    add, total = (description["endpoints"][wire.number(name)] for name in ("add", "total"))
    assert (add["kind"], add["result"], total["kind"]) == ("unary", "int", "client stream")
    assert [(each["name"], each["type"], each["stream"]) for each in add["parameters"]] == [
        ("a", "int", False),
        ("b", "int", False),
    ]
    assert total["parameters"][0]["stream"]


@pytest.mark.own_server
def test_one_way_calls_are_not_answered_whatever_becomes_of_them(wire: WireClient) -> None:
    wire.request_with({"one_way": True}, "add", 1, 2)
    wire.request_with({"one_way": True}, "add", 1, "x")
    wire.request_with({"one_way": True}, "sleep", 0.01, "told")
    wire.request_with({"one_way": True}, "metadata")
    wire.request_with({"one_way": True}, "metadata_and_failure")
    wire.request_with({"one_way": True}, "count", 3)
    wire.request_with({"one_way": True}, "count", 3)
    wire.request_with({"one_way": True}, "total", None)
    assert eventually(lambda: seen(wire, "told:finished") == 1)  # Nothing but what seen() answers has come.
    assert seen(wire, "count:began") == 0, "a one-way call cannot stream"
    assert seen(wire, "count:began") == seen(wire, "total:began") == 0, "an endpoint that streams needs a reply"


@pytest.mark.own_server
def test_one_way_calls_outlive_their_client(server: ServerProcess, wire: WireClient) -> None:
    with WireClient("tested.flows") as other:
        other.request_with({"one_way": True}, "sleep", 0.01, "told")
        other.request("sleep", 60, "asked")
    assert eventually(lambda: seen(wire, "told:finished") == 1)
    assert eventually(lambda: seen(wire, "asked:began") == seen(wire, "asked:cancelled"))


def test_requests_that_the_server_does_not_know_are_answered(wire: WireClient) -> None:
    unknown = len(wire.welcome["endpoints"])
    for opcode in (FAILURE, STOP, RESULT_WITH, 100, CALL | unknown << 8, CALL_WITH | ANY << 8, DESCRIBE | 1 << 8):
        assert failure(wire, wire.send(opcode, msgpack.packb([])))["kind"] == "endpoint"
    assert wire.call("add", 1, 2) == 3


@pytest.mark.parametrize("kind", [ITEM, END, ABORT])
def test_part_of_a_stream_to_nowhere_ends_the_connection(wire: WireClient, kind: int) -> None:
    wire.part(kind, wire.request("sleep", 60))
    goodbye, _ = wire.control.receive()
    assert (goodbye["type"], goodbye["fault"]) == ("goodbye", True)


@pytest.mark.own_server
def test_a_server_that_drains_answers_what_is_under_way_and_says_how_far_it_came(
    server: ServerProcess, wire: WireClient
) -> None:
    under_way = wire.request("first", 1, None)
    credit = wire.expect(CREDIT, under_way, stream=1)
    assert credit == WINDOW
    server.process.terminate()
    goaway, _ = wire.control.receive()
    assert goaway == {"type": "goaway"}
    for refused in (wire.request("add", 1, 2), wire.send(DESCRIBE, b"\xc0"), wire.ask(BATCH, "add", [{}, [[1, 2]]])):
        assert failure(wire, refused)["kind"] == "draining"
    for kind, answered in (("status", "report"), ("hello", "refuse")):
        control = Control("tested.flows")
        with control.socket:
            control.send(kind, version=5, max_frame=1 << 20)
            message, _ = control.expect(answered)
        assert message.get("health", "draining") == "draining"
        assert message.get("try_again", True) is True
    # Streams of a call that is under way go on.
    wire.part(ITEM, under_way, 7, stream=1)
    assert wire.expect(STOP, under_way, stream=1) is None
    assert wire.answer(under_way) == [7]
    with pytest.raises(Gone) as caught:
        wire.receive()
    assert caught.value.message == {
        "type": "goodbye",
        "reason": "the server stopped",
        "fault": False,
        "reached": refused,
    }
