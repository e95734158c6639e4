"""Rings that begin small and grow: what docs/wire.md says of that, to a server and by one."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.helpers.server_process import eventually
from tests.helpers.wire_client import GROW, WireClient

SHARED_SERVER = True

pytestmark = pytest.mark.usefixtures("server")


@pytest.fixture
def wire() -> Iterator[WireClient]:
    with WireClient("tested") as client:
        if client.into.used == client.into.capacity:
            pytest.skip("a kernel before Linux 5.14: rings do not grow here")
        yield client


def memory(wire: WireClient) -> int:
    """Return the bytes of memory that the segment has."""
    return Path(f"/proc/self/fd/{wire._segment}").stat().st_blocks * 512


def test_a_connection_with_small_calls_stays_small(wire: WireClient) -> None:
    before = memory(wire)
    for number in range(2000):
        assert wire.call("add", number, 1) == number + 1
    assert memory(wire) == before == 2 * 4096
    assert wire.into.used == wire.out.used == 2048


def test_the_server_grows_its_ring_for_what_has_no_room(wire: WireClient) -> None:
    for size, used in ((1500, 2048), (10_000, 32_768), (30_000, 32_768)):
        assert wire.call("zeros", size) == bytes(size)
        assert wire.into.used == used
    assert wire.out.used == 2048, "one ring at a time"
    assert memory(wire) == (2 + 8) * 4096


def test_unread_replies_make_a_ring_grow_and_arrive_in_order(wire: WireClient) -> None:
    calls = [wire.request("zeros", 100 + number) for number in range(500)]

    def has_grown() -> bool:
        wire.push()
        return memory(wire) == (2 + 16) * 4096

    assert eventually(has_grown), "no reply is read before that"
    for number, call_id in enumerate(calls):
        assert wire.answer(call_id) == bytes(100 + number)
    assert wire.into.used == 65536


def test_the_server_follows_a_ring_that_grows_step_by_step(wire: WireClient) -> None:
    for used in (8192, 16384, 65536):
        wire.grow(used)
        for size in (0, used // 2 - 100, 5, used - 200):
            value = bytes([used >> 12]) * size
            assert wire.call("echo", value) == value


def test_frames_in_a_ring_that_grows_are_read_first(wire: WireClient) -> None:
    calls = [wire.request("add", number, 1) for number in range(60)]
    wire.grow(16384)
    calls += [wire.request("add", number, 1) for number in range(60, 300)]
    assert [wire.answer(call_id) for call_id in calls] == list(range(1, 301))


@pytest.mark.parametrize("used", [0, 1, 1024, 2048, 12288, 131_072, 1 << 63])
def test_a_growth_that_cannot_be_ends_the_connection(wire: WireClient, used: int) -> None:
    wire.out.put(memoryview(struct.pack("=QQ", GROW << 32, used)))
    wire.wake_server()
    goodbye, _ = wire.control.receive()
    assert goodbye["fault"] is True
    assert goodbye["reason"] == f"a ring of 2048 bytes cannot grow to {used}: its limit is 65536 bytes"
    with WireClient("tested") as other:
        assert other.call("add", 1, 2) == 3


def test_a_growth_with_a_body_ends_the_connection(wire: WireClient) -> None:
    wire.out.put(memoryview(struct.pack("=QQ", 8 | GROW << 32, 8192)))
    wire.wake_server()
    goodbye, _ = wire.control.receive()
    assert goodbye["fault"] is True
    assert "frame of 8 bytes is over the limit of 0 bytes" in goodbye["reason"]
