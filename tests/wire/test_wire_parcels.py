"""Parcels, as in docs/wire.md: the memory that both sides lend each other, and its return."""

from __future__ import annotations

import itertools
import mmap
import os
import random
import re
import socket
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgpack
import pytest

from tests.conftest import SharedServers
from tests.helpers import wire_memory
from tests.helpers.server_process import ServerProcess, eventually
from tests.helpers.wire_client import (
    ABORT,
    ANY,
    BATCH,
    BUFFER_BYTES_PER_BYTE,
    BYTES,
    CALL,
    CALL_DEADLINE,
    CALL_KEYWORDS,
    CALL_WITH,
    CANCEL,
    CREDIT,
    DESCRIBE,
    END,
    FAILURE,
    ITEM,
    MEMORYVIEW,
    ON_BELL,
    ON_SEMAPHORE,
    OVERHEAD,
    RESULT,
    RESULT_WITH,
    STOP,
    WINDOW,
    Control,
    Failed,
    Gone,
    Parcel,
    WireClient,
    extension,
    unpacked,
)
from tests.helpers.wire_memory import HERE, PAGE, PARCEL, RECEIVER, RELEASE, SENDER, Entry, here, parcel, release

#: A body of so many bytes is the largest that goes in the ring, if there is memory: with its header it is half of it.
IN_THE_RING = (32 << 10) - 16
MIB = 1 << 20
SHARED_SERVER = True
NIL = msgpack.packb(None)


@pytest.fixture
def poor() -> Iterator[WireClient]:
    """Yield a client of a server that has hardly any memory to lend."""
    with ServerProcess("tests.helpers.services:service", "--max-memory", str(MIB)), WireClient("tested") as client:
        yield client


@pytest.fixture
def large(shared_servers: SharedServers, monkeypatch: pytest.MonkeyPatch) -> Iterator[WireClient]:
    """Yield a client of the service of large data, whose handlers wait until another call lets them go on."""
    with shared_servers.use("tests.helpers.array_service:service", monkeypatch), WireClient("tested.large") as client:
        yield client


@pytest.fixture
def flows(shared_servers: SharedServers, monkeypatch: pytest.MonkeyPatch) -> Iterator[WireClient]:
    """Yield a client of the service with streams."""
    with shared_servers.use("tests.helpers.stream_service:service", monkeypatch), WireClient("tested.flows") as client:
        yield client


def text(length: int, seed: int = 0) -> str:
    """Return a value that is no buffer, with a body five bytes longer."""
    return random.Random(seed).randbytes(length // 2 + 1).hex()[:length]


def ask(wire: WireClient, endpoint: str, entries: list[Entry], body: bytes | None, data: bytes = b"") -> Any:
    """Make a call with a parcel, and return its result."""
    return wire.answer(wire.send(CALL | PARCEL | wire.number(endpoint) << 8, parcel(entries, body, data)))


def came_back(wire: WireClient, *leases: Entry) -> bool:
    """Return True once the server has returned exactly these blocks, in any order, while it goes on answering."""
    expected = sorted((lease.extent, lease.block) for lease in leases)

    def all_came() -> bool:
        assert wire.call("add", 1, 2) == 3  # The releases arrive meanwhile.
        return len(wire.given_back) >= len(expected)

    eventually(all_came)
    found, wire.given_back = sorted(wire.given_back), []
    return found == expected


def lent(body: bytes) -> list[Entry]:
    """Return the entries of the blocks that the server lent with a body."""
    return [entry for entry in body.entries if entry.whose == SENDER] if isinstance(body, Parcel) else []


def received(wire: WireClient, endpoint: str, *args: Any) -> Parcel:
    """Make a call, and return the body of its result, which is a parcel."""
    call_id = wire.request(endpoint, *args)
    opcode, answered, body = wire.receive()
    assert (opcode, answered) == (RESULT, call_id)
    assert isinstance(body, Parcel)
    return body


def test_the_numbers_are_the_documented_ones() -> None:
    page = (Path(__file__).parents[2] / "docs" / "wire.md").read_text()
    for name in ("PARCEL", "RELEASE", "HERE", "SENDER", "RECEIVER", "NEW", "GONE"):
        found = re.search(rf"^\| {name} \| (0x[0-9A-F]+|\d+) \|", page, re.MULTILINE)
        assert found is not None, name
        assert int(found[1], 0) == getattr(wire_memory, name), name


# Parcels of the server.


@pytest.mark.parametrize("how", [ON_BELL, ON_SEMAPHORE])
def test_a_large_body_comes_by_reference(how: int, server: ServerProcess) -> None:
    with WireClient("tested", how=how) as wire:
        for length in (IN_THE_RING - 2, 300_000, 5_000_000):
            value = text(length)
            body = received(wire, "echo", value)
            assert unpacked(body) == value
            (entry,) = body.entries
            assert (entry.whose, entry.length, body.buffers) == (SENDER, len(body), [])


def test_a_body_up_to_the_bound_comes_in_the_ring(wire: WireClient) -> None:
    for length in (20_000, IN_THE_RING - 3):
        call_id = wire.request("echo", text(length))
        opcode, answered, body = wire.receive()
        assert (opcode, answered, unpacked(body)) == (RESULT, call_id, text(length))
        assert not isinstance(body, Parcel)


def test_large_bytes_come_beside_the_body(wire: WireClient) -> None:
    values = [random.Random(size).randbytes(size) for size in (240_000, 300_000)]
    body = received(wire, "echo", values)
    assert unpacked(body) == values
    assert body.buffers == values
    assert len(body) < 20
    assert [entry.whose for entry in body.entries] == [SENDER, SENDER]


def test_a_body_by_reference_may_have_buffers_and_they_count_without_it(wire: WireClient) -> None:
    value = [text(200_000), bytes(250_000), b"\1" * 260_000]
    body = received(wire, "echo", value)
    assert unpacked(body) == value
    assert len(body.entries) == 3
    assert body.entries[0].length == len(body) > 200_000
    assert body.buffers == value[1:]


def test_metadata_stands_before_a_result_that_has_buffers(wire: WireClient) -> None:
    call_id = wire.request_with({}, "echo", bytes(300_000))
    opcode, answered, body = wire.receive()
    assert (opcode, answered) in ((RESULT, call_id), (RESULT_WITH, call_id))
    value = unpacked(body)
    assert (value[1] if opcode == RESULT_WITH else value) == bytes(300_000)


def test_results_of_a_batch_share_the_buffers_of_one_frame(wire: WireClient) -> None:
    results, failures = wire.answer(wire.ask(BATCH, "zeros", [{}, [[250_000], [3], [260_000], ["x"]]]))
    assert (results[:3], list(failures)) == ([bytes(250_000), bytes(3), bytes(260_000)], [3])


def test_a_lent_block_stays_unchanged_until_it_is_returned(wire: WireClient) -> None:
    wire.gives_back = False
    first = received(wire, "echo", b"\1" * 300_000)
    later = [received(wire, "echo", bytes([seed]) * 300_000) for seed in range(2, 12)]
    places = [(entry.extent, entry.block) for body in (first, *later) for entry in lent(body)]
    assert len(set(places)) == len(places) == 11
    assert wire.theirs.read(first.entries[0]) == b"\1" * 300_000
    wire.give_back(first.entries[0])
    again = received(wire, "echo", b"\x0c" * 300_000)
    assert again.entries[0] == first.entries[0], "the same memory is used again"
    assert wire.theirs.read(first.entries[0]) == b"\x0c" * 300_000
    assert [wire.theirs.read(body.entries[0])[0] for body in later] == list(range(2, 12))


def test_leases_end_in_any_order_and_blocks_are_whole_pages(wire: WireClient) -> None:
    wire.gives_back = False
    bodies = [received(wire, "echo", [bytes(240_000 + 100 * place) for place in range(10)]) for _ in range(3)]
    entries = [entry for body in bodies for entry in lent(body)]
    assert all(entry.block % PAGE == 0 for entry in entries)
    ranges = sorted((entry.extent, entry.block, entry.block + entry.length) for entry in entries)
    for (extent, _, end), (other, begin, _) in itertools.pairwise(ranges):
        assert extent != other or end <= begin
    random.Random(1).shuffle(entries)
    for entry in entries:
        wire.give_back(entry)
    assert lent(received(wire, "zeros", 240_000))[0].block == 0, "all of it is free again"


def test_one_block_for_as_many_leases_as_it_is_named(wire: WireClient) -> None:
    wire.gives_back = False
    (source,) = lent(received(wire, "zeros", 250_000))
    # Sent back, it arrives as the server's own memory, and is lent a second time by the answer.
    view = extension(MEMORYVIEW, 0)
    back = Entry(RECEIVER, source.extent, source.block, 0, source.length)
    call_id = wire.send(CALL | PARCEL | wire.number("echo") << 8, parcel([back], msgpack.packb([view])))
    opcode, answered, body = wire.receive()
    assert (opcode, answered) == (RESULT, call_id)
    assert lent(body) == [source]
    wire.give_back(source)
    assert lent(received(wire, "zeros", 250_000)) != [source], "one lease is left"
    wire.give_back(source)
    assert lent(received(wire, "zeros", 250_000)) == [source]


def test_memory_does_not_grow_with_the_number_of_calls(wire: WireClient) -> None:
    for _ in range(200):
        assert wire.call("zeros", 500_000) == bytes(500_000)
    wire.theirs.receive_updates()
    assert sum(map(len, wire.theirs.extents.values())) <= 4 * MIB


def test_an_extent_is_sealed_has_the_announced_size_and_is_known_before_use(wire: WireClient) -> None:
    wire.gives_back = False
    for _ in range(5):
        received(wire, "zeros", 3 * MIB)  # `Theirs` looks at seal and size, and knows no number twice.
    assert len(wire.theirs.extents) >= 3
    assert sorted(wire.theirs.extents) == list(range(len(wire.theirs.extents)))


@pytest.mark.own_server
def test_a_lent_block_outlives_the_server(wire: WireClient, server: ServerProcess) -> None:
    wire.gives_back = False
    seen = received(wire, "echo", b"\7" * 300_000)
    call_id = wire.request("zeros", 300_000)
    assert eventually(lambda: wire.into.available() > 0)
    server.kill()
    opcode, answered, unseen = wire.receive()
    assert (opcode, answered, unpacked(unseen)) == (RESULT, call_id, bytes(300_000)), "answered before the end"
    with pytest.raises(Gone):
        wire.receive()
    assert wire.theirs.read(seen.entries[0]) == b"\7" * 300_000


def test_an_unused_extent_is_removed_after_a_while_and_its_number_with_it(wire: WireClient) -> None:
    wire.gives_back = False
    (kept,) = lent(received(wire, "echo", b"\7" * 240_000))
    (given,) = lent(received(wire, "zeros", 8 * MIB))
    assert kept.extent != given.extent
    wire.give_back(given)

    def heard() -> bool:
        wire.theirs.receive_updates()
        return bool(wire.theirs.gone)

    assert eventually(heard, 60)
    assert wire.theirs.gone == [given.extent]
    assert wire.theirs.read(kept) == b"\7" * 240_000, "an extent with a lent block stays"
    (another,) = lent(received(wire, "zeros", 8 * MIB))
    assert another.extent > given.extent


# In pieces and in the frame: what there is no memory for.


@pytest.mark.parametrize("how", [ON_BELL, ON_SEMAPHORE])
def test_a_large_body_comes_in_pieces_if_there_is_no_memory(how: int) -> None:
    with (
        ServerProcess("tests.helpers.services:service", "--max-memory", str(MIB)),
        WireClient("tested", how=how) as wire,
    ):
        for length in (IN_THE_RING, MIB - 5, MIB, 3_000_000):
            call_id = wire.request("echo", text(length))
            opcode, answered, body = wire.receive()
            assert (opcode, answered, unpacked(body)) == (RESULT, call_id, text(length))
            assert isinstance(body, Parcel) == (length + 5 <= MIB)
        assert wire.theirs.extents.keys() == {0}


def test_memory_that_is_lent_is_missing_until_it_is_given_back(poor: WireClient) -> None:
    poor.gives_back = False
    first = received(poor, "echo", text(800_000))
    call_id = poor.request("echo", text(800_000, seed=1))
    opcode, answered, body = poor.receive()
    assert (opcode, answered, unpacked(body)) == (RESULT, call_id, text(800_000, seed=1))
    assert not isinstance(body, Parcel)
    poor.give_back(first.entries[0])
    assert received(poor, "echo", text(800_000)).entries == first.entries


def test_buffers_come_in_the_frame_if_there_is_no_memory(poor: WireClient) -> None:
    values = [bytes([seed]) * 400_000 for seed in range(4)]
    body = received(poor, "echo", values)
    assert unpacked(body) == values
    assert [entry.whose for entry in body.entries] == [SENDER, SENDER, HERE, HERE]
    large = [text(900_000), *values]
    body = received(poor, "echo", large)
    assert unpacked(body) == large
    assert [entry.whose for entry in body.entries] == [SENDER, HERE, HERE, HERE, HERE]


def test_a_result_without_room_in_a_frame_is_a_failure(server: ServerProcess) -> None:
    with WireClient("tested", max_frame=100_000) as wire:
        assert wire.call("zeros", 500_000) == bytes(500_000), "a buffer that is lent takes no room"
        wire.updates.close()
        assert wire.call("zeros", 400_000) == bytes(400_000), "nor has the server to tell of an extent that it has"
    with WireClient("tested", max_frame=100_000) as wire:
        wire.updates.close()
        for name, args in (("zeros", [500_000]), ("echo", ["x" * 99_990])):
            opcode, _, body = (wire.request(name, *args), wire.receive())[1]
            assert opcode == (FAILURE if name == "zeros" else RESULT), unpacked(body)
        assert wire.call("add", 1, 2) == 3


def test_a_client_that_closes_the_socket_of_extents_gets_all_in_frames(wire: WireClient) -> None:
    wire.updates.close()
    assert wire.call("zeros", 300_000) == bytes(300_000)
    call_id = wire.request("echo", text(300_000))
    opcode, answered, body = wire.receive()
    assert (opcode, answered, unpacked(body)) == (RESULT, call_id, text(300_000))
    assert not isinstance(body, Parcel)


# Parcels of the client.


def test_a_client_without_memory_sends_all_in_frames(wire: WireClient) -> None:
    value = bytes(3_000_000)
    assert wire.call("echo", value) == value
    data = b"\1" * 70_000 + b"\2" * 250_000
    body = msgpack.packb([[extension(BYTES, 1), extension(BYTES, 0), extension(BYTES, 0)]])
    result = ask(wire, "echo", [here(data[:70_000]), here(data[70_000:])], body, data)
    assert result == [data[70_000:], data[:70_000], data[:70_000]]


def test_a_body_that_is_the_first_buffer(wire: WireClient) -> None:
    extent = wire.extent()
    body, raw = msgpack.packb([[1, extension(BYTES, 0)]]), bytes(range(256))
    assert ask(wire, "echo", [here(body), here(raw)], None, body + raw) == [1, raw]
    lines = [extent.lend(body), extent.lend(raw, PAGE)]
    assert ask(wire, "echo", lines, None) == [1, raw]
    assert came_back(wire, *lines)


def test_a_body_may_be_as_large_as_a_frame_and_buffers_larger(server: ServerProcess) -> None:
    with WireClient("tested", max_frame=2048) as wire:
        extent = wire.extent(size=4 * MIB)
        body = msgpack.packb(["x" * 2044])
        assert len(body) == 2048
        arguments = msgpack.packb([extension(BYTES, 0)])
        large = extent.lend(b"\5" * (3 * MIB), PAGE)
        assert ask(wire, "echo", [large], arguments) == b"\5" * (3 * MIB)
        assert came_back(wire, large)
        opcode, _, _ = (
            wire.send(CALL | PARCEL | wire.number("nothing") << 8, parcel([extent.lend(body)], None)),
            wire.receive(),
        )[1]
        assert opcode == FAILURE, "the endpoint takes no arguments"


def test_each_line_of_a_table_is_a_lease_and_each_ends_once(wire: WireClient) -> None:
    extent = wire.extent(7)
    first, second = extent.lend(b"one"), extent.lend(b"two", 5 * PAGE, start=100)
    arguments = msgpack.packb([[extension(BYTES, 0), extension(BYTES, 1), extension(BYTES, 2)]])
    assert ask(wire, "echo", [first, second, second], arguments) == [b"one", b"two", b"two"]
    assert came_back(wire, first, second, second)
    assert ask(wire, "add", [first] * 50, msgpack.packb([1, 2])) == 3, "the call does not refer to the buffers"
    assert came_back(wire, *[first] * 50)


def hold_until_told(wire: WireClient, line: Entry) -> int:
    """Call an endpoint that holds a buffer until another call releases it, and return the call's id."""
    arguments = msgpack.packb([extension(MEMORYVIEW, 0), "go on"])
    return wire.send(CALL | PARCEL | wire.number("echo_when_kept") << 8, parcel([line], arguments))


def test_a_lease_lasts_as_long_as_something_looks_at_it(large: WireClient) -> None:
    extent = large.extent()
    line = extent.lend(bytes(10 * PAGE))
    call_id = hold_until_told(large, line)
    assert large.call("add", 1, 2) == 3
    assert large.given_back == []
    assert large.call("keep", "go on", True) is None
    opcode, answered, body = large.receive()
    assert (opcode, answered) == (RESULT, call_id)
    assert isinstance(body, Parcel)
    assert body.buffers == [bytes(10 * PAGE)]
    assert came_back(large, line)


def test_leases_of_a_call_that_is_cancelled_or_too_late_end_too(wire: WireClient) -> None:
    line = wire.extent().lend(bytes(10 * PAGE))
    number = wire.number("sleep") << 8
    arguments = [60, extension(MEMORYVIEW, 0)]
    cancelled = wire.send(CALL | PARCEL | number, parcel([line], msgpack.packb(arguments)))
    assert wire.call("add", 1, 2) == 3
    wire.part(CANCEL, cancelled)
    assert came_back(wire, line)
    for soon in (0, time.monotonic_ns() + 10**8):
        late = wire.send(CALL_DEADLINE | PARCEL | number, parcel([line], msgpack.packb([soon, *arguments])))
        with pytest.raises(Failed) as caught:
            wire.answer(late)
        assert caught.value.map["kind"] == "deadline"
        assert came_back(wire, line)


def test_leases_of_what_is_refused_cancelled_or_ignored_end_too(wire: WireClient) -> None:
    extent = wire.extent()
    line = extent.lend(b"\xc1")
    unknown = len(wire.welcome["endpoints"])
    refused = [
        CALL | unknown << 8,
        CALL | wire.number("add") << 8,
        CALL_KEYWORDS | wire.number("add") << 8,
        CALL_DEADLINE | wire.number("add") << 8,
        CALL_WITH | wire.number("add") << 8,
        BATCH | wire.number("add") << 8,
        BATCH | ANY << 8,
        STOP,
        100,
    ]
    for opcode in refused:
        for payload in (parcel([line]), parcel([line], None)):
            call_id = wire.send(opcode | PARCEL, payload)
            answer, answered, _ = wire.receive()
            assert (answer, answered) == (FAILURE, call_id)
    assert came_back(wire, *[line] * 2 * len(refused))


def test_leases_of_what_came_too_late_end_too(flows: WireClient) -> None:
    line = flows.extent().lend(b"\xc1")
    late = (CANCEL, END | 1 << 8, ABORT | 1 << 8, ITEM | 1 << 8)
    for opcode in late:
        flows.send(opcode | PARCEL, parcel([line]), 999_999)
    assert came_back(flows, *[line] * len(late))


def test_every_kind_of_request_may_come_as_a_parcel(wire: WireClient) -> None:
    add = wire.number("add") << 8
    soon = time.monotonic_ns() + 10**11
    for opcode, value, expected in (
        (CALL | add, [1, 2], 3),
        (CALL_KEYWORDS | add, [[1], {"b": 2}], 3),
        (CALL_DEADLINE | add, [soon, 1, 2], 3),
        (CALL_WITH | add, [{}, [1, 2], {}], 3),
        (BATCH | add, [{}, [[1, 2]]], [[3], {}]),
    ):
        body = msgpack.packb(value)
        for payload in (parcel([], body), parcel([here(body)], None, body), parcel([here(b"x")], body, b"x")):
            assert wire.answer(wire.send(opcode | PARCEL, payload)) == expected
    description = wire.answer(wire.send(DESCRIBE | PARCEL, parcel([here(b"x")], NIL, b"x")))
    assert description["service"] == "tested"


def test_a_one_way_call_may_lend(wire: WireClient) -> None:
    line = wire.extent().lend(b"x" * 100)
    arguments = msgpack.packb([{"one_way": True}, [0.05, extension(BYTES, 0)], {}])
    wire.send(CALL_WITH | PARCEL | wire.number("sleep") << 8, parcel([line], arguments))
    assert came_back(wire, line)


def test_an_extent_may_be_announced_long_before_use_and_removed_while_a_block_is_lent(large: WireClient) -> None:
    extents = [large.extent(number, MIB) for number in (3, 7, 9000)]
    line = extents[2].lend(b"x" * 10 * PAGE, 9 * PAGE)
    call_id = hold_until_told(large, line)
    assert large.call("add", 1, 2) == 3
    large.updates.send(wire_memory.extent_update(wire_memory.GONE, 9000, 0))
    large.updates.send(wire_memory.extent_update(wire_memory.GONE, 12345, 0))
    other = large.extent(0xFFFF_FFFF)
    assert ask(large, "echo", [other.lend(b"y")], msgpack.packb([extension(BYTES, 0)])) == b"y"
    assert large.call("keep", "go on", True) is None
    opcode, answered, body = large.receive()
    assert (opcode, answered) == (RESULT, call_id)
    assert isinstance(body, Parcel)
    assert body.buffers == [b"x" * 10 * PAGE]


def test_a_server_maps_what_is_named_and_lets_it_go(wire: WireClient) -> None:
    def mapped() -> int:
        with open(f"/proc/{wire.welcome['pid']}/maps") as maps:
            return sum("memfd:extent" in line for line in maps)

    first, second = wire.extent(0), wire.extent(1)
    assert ask(wire, "echo", [first.lend(b"x")], msgpack.packb([extension(BYTES, 0)])) == b"x"
    assert mapped() == 2
    wire.updates.send(wire_memory.extent_update(wire_memory.GONE, 0, 0))
    wire.extent(2)
    line = Entry(SENDER, 2, 0, 0, 1)
    assert ask(wire, "add", [line], msgpack.packb([1, 2])) == 3
    assert mapped() == 2
    second.lend(b"still there")
    assert ask(wire, "echo", [Entry(SENDER, 1, 0, 0, 5)], msgpack.packb([extension(BYTES, 0)])) == b"still"


# Blocks that are sent back.


def test_a_block_of_the_server_may_be_sent_back_by_reference(wire: WireClient) -> None:
    wire.gives_back = False
    value = [text(200_000)]
    (line,) = received(wire, "echo", value).entries
    back = Entry(RECEIVER, line.extent, line.block, line.start, line.length)
    # The body of that result is an array of one value: the same bytes are the arguments of a call.
    assert ask(wire, "echo", [back], None) == value[0]
    assert wire.given_back == [], "that was no lease of the server's"
    part = Entry(RECEIVER, line.extent, line.block, 100, 1000)
    whole = wire.theirs.read(line)
    assert ask(wire, "echo", [part], msgpack.packb([extension(BYTES, 0)])) == whole[100:1100]
    wire.give_back(line)  # Once: sending it back has not ended the lease, nor made another.
    assert wire.call("add", 1, 2) == 3


def test_the_end_of_a_lease_may_follow_the_frame_that_sends_it_back(large: WireClient) -> None:
    large.gives_back = False
    (line,) = lent(received(large, "echo", b"\7" * 300_000))
    back = Entry(RECEIVER, line.extent, line.block, 0, line.length)
    call_id = hold_until_told(large, back)
    large.give_back(line)
    assert lent(received(large, "echo", bytes(300_000))) != [line], "the handler holds it"
    assert large.call("keep", "go on", True) is None
    opcode, answered, body = large.receive()
    assert (opcode, answered, unpacked(body)) == (RESULT, call_id, b"\7" * 300_000)
    assert lent(body) == [line]


def test_the_server_sends_back_by_reference_what_we_lent(wire: WireClient) -> None:
    line = wire.extent().lend(bytes(range(256)) * 400, 3 * PAGE, start=64)
    call_id = wire.send(
        CALL | PARCEL | wire.number("echo") << 8, parcel([line], msgpack.packb([extension(MEMORYVIEW, 0)]))
    )
    opcode, answered, body = wire.receive()
    assert (opcode, answered, unpacked(body)) == (RESULT, call_id, bytes(range(256)) * 400)
    assert isinstance(body, Parcel)
    assert body.entries == [Entry(RECEIVER, 0, 3 * PAGE, 64, 102_400)]
    assert came_back(wire, line)


def test_the_holder_of_a_loan_may_write_if_both_sides_agree(wire: WireClient) -> None:
    wire.gives_back = False
    (line,) = lent(received(wire, "zeros", 250_000))
    # The mapping of `Theirs` is for reading. Its descriptor serves for one to write.
    for number in os.listdir("/proc/self/map_files"):
        path = f"/proc/self/map_files/{number}"
        is_extent = os.readlink(path).startswith("/memfd:shmrpc-extent")  # Perhaps one that another test has left.
        if is_extent and os.stat(path).st_ino == wire.theirs.inodes[line.extent]:
            descriptor = os.open(path, os.O_RDWR)
            break
    with mmap.mmap(descriptor, 0) as writable:
        writable[line.block : line.block + 5] = b"hello"
    os.close(descriptor)
    back = Entry(RECEIVER, line.extent, line.block, 0, 5)
    assert ask(wire, "echo", [back], msgpack.packb([extension(BYTES, 0)])) == b"hello"


# RELEASE is no request.


@pytest.mark.own_server
def test_release_is_not_answered_and_counts_for_nothing(wire: WireClient, server: ServerProcess) -> None:
    wire.gives_back = False
    call_id = wire.request("zeros", 300_000)
    _, _, body = wire.receive()
    wire.send(RELEASE, release(lent(body)[0].extent, lent(body)[0].block), 0)
    assert eventually(lambda: wire.out.flag(0 + 256) == ON_BELL)
    assert not wire.into.available()
    server.stop()
    with pytest.raises(Gone) as caught:
        wire.receive()
    assert caught.value.message is not None
    assert caught.value.message["reached"] == call_id


def test_releases_come_while_a_server_drains() -> None:
    with (
        ServerProcess("tests.helpers.stream_service:service", "--grace", "60") as server,
        WireClient("tested.flows") as wire,
    ):
        line = wire.extent().lend(bytes(PAGE))
        under_way = wire.request("first", 1, None)
        wire.expect(CREDIT, under_way, stream=1)
        server.process.terminate()
        assert wire.control.receive()[0] == {"type": "goaway"}
        refused = wire.send(CALL | PARCEL | wire.number("add") << 8, parcel([line], NIL))
        opcode, answered, body = wire.receive()
        assert (opcode, answered, unpacked(body)["kind"]) == (FAILURE, refused, "draining")
        wire.part(ITEM, under_way, 7, stream=1)
        assert wire.expect(STOP, under_way, stream=1) is None
        assert wire.answer(under_way) == [7]
        with pytest.raises(Gone):
            wire.receive()
        assert wire.given_back == [(0, 0)]


# Credit.


def test_a_buffer_costs_a_part_of_its_bytes(flows: WireClient) -> None:
    call_id = flows.request("zipped", None, None)  # The endpoint reads from the right only after the left.
    for stream in (1, 2):
        flows.expect(CREDIT, call_id, stream=stream)
    flows.extent()
    body = msgpack.packb("x")

    def send(length: int, buffers: int = 1) -> None:
        lines = [Entry(SENDER, 0, 0, 0, length)] * buffers
        flows.send(ITEM | PARCEL | 2 << 8, parcel(lines, body), call_id)

    credit = WINDOW
    send(MIB // 2, 3)
    credit -= len(body) + 3 * MIB // 2 // BUFFER_BYTES_PER_BYTE + OVERHEAD
    send(BUFFER_BYTES_PER_BYTE - 1, 2)  # Of the sum, not of each: the two cost one byte.
    credit -= len(body) + 1 + OVERHEAD
    room = credit - len(body) - OVERHEAD - 1
    send((room + 1) * BUFFER_BYTES_PER_BYTE - 1)
    assert flows.call("add", 1, 2) == 3, "one byte of credit is left"
    send(1)
    assert flows.call("add", 1, 2) == 3
    send(1)
    goodbye, _ = flows.control.receive()
    assert (goodbye["fault"], "credit" in goodbye["reason"]) == (True, True)


def test_a_body_by_reference_costs_its_length(flows: WireClient) -> None:
    call_id = flows.request("zipped", None, None)
    for stream in (1, 2):
        flows.expect(CREDIT, call_id, stream=stream)
    body = msgpack.packb("x" * (WINDOW - OVERHEAD - 5 - 1))
    line = flows.extent().lend(body)
    flows.send(ITEM | PARCEL | 2 << 8, parcel([line], None), call_id)
    flows.send(ITEM | 2 << 8, b"\xa0", call_id)
    assert flows.call("add", 1, 2) == 3
    flows.send(ITEM | 2 << 8, b"\xa0", call_id)
    goodbye, _ = flows.control.receive()
    assert (goodbye["fault"], "credit" in goodbye["reason"]) == (True, True)


def test_items_of_both_kinds_come_in_order(flows: WireClient) -> None:
    call_id = flows.request("doubled", None)
    flows.expect(CREDIT, call_id, stream=1)
    line = flows.extent().lend(msgpack.packb(7))
    for number in range(20):
        if number % 3:
            flows.part(ITEM, call_id, number, stream=1)
        else:
            flows.send(ITEM | PARCEL | 1 << 8, parcel([line], None), call_id)
        assert flows.expect(ITEM, call_id) == 2 * (number if number % 3 else 7)
    flows.part(END, call_id, stream=1)
    assert flows.expect(RESULT, call_id) is None


# Meeting.


@pytest.mark.parametrize(("codec", "ours"), [("pickle", False), ("pickle", None), ("msgspec", True)])
def test_pickles_are_for_both_sides_or_for_none(codec: str, ours: bool | None) -> None:
    with ServerProcess("tests.helpers.services:service", "--codec", codec):
        control = Control("tested")
        with control.socket:
            control.send("hello", version=5, max_frame=MIB, **({} if ours is None else {"pickle": ours}))
            refuse, descriptors = control.expect("refuse")
            assert "pickle" in refuse["reason"]
            assert not refuse.get("try_again", False)
            assert descriptors == []


def test_the_third_descriptor_is_a_socket_of_packets_and_nothing_comes_before_it_is_needed(wire: WireClient) -> None:
    assert (wire.updates.family, wire.updates.type) == (socket.AF_UNIX, socket.SOCK_SEQPACKET)
    assert wire.call("echo", bytes(20_000)) == bytes(20_000)
    wire.theirs.receive_updates()
    assert wire.theirs.extents == {}
