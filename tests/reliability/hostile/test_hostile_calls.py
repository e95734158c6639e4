"""A client that misuses identifiers of calls, deadlines, credit and names of exceptions."""

from __future__ import annotations

import asyncio
import gc
from typing import Any

import msgpack
import pytest

import shmrpc
from shmrpc import errors
from shmrpc.wire import remote_errors
from shmrpc.wire.frames import MAX_MAX_FRAME
from tests.helpers.server_process import eventually_in_loop
from tests.helpers.services import service
from tests.helpers.stream_service import service as flows
from tests.helpers.wire_client import (
    ABORT,
    BATCH,
    CALL,
    CALL_DEADLINE,
    CALL_WITH,
    CREDIT,
    DESCRIBE,
    FAILURE,
    RESULT,
    Gone,
    WireClient,
    extension,
    unpacked,
)

#: Whole numbers that a hostile client chooses.
NUMBERS = [0, 1, -1, 2**31, 2**32, 2**53 + 1, 2**63 - 1, 2**63, 2**64 - 1, -(2**63)]


def repeated(wire: WireClient, times: int) -> str:
    """Send calls with one id while the first is in flight; return the server's reason for ending the connection."""
    code = CALL | wire.number("sleep") << 8
    for _ in range(times):
        wire.send(code, msgpack.packb([60]), 7)
    return fault_of(wire)


def fault_of(wire: WireClient) -> str:
    """Return the reason with which the server ends the connection."""
    with pytest.raises(Gone) as gone:
        while True:
            wire.receive()
    message = gone.value.message
    assert message is not None and (message["type"], message["fault"]) == ("goodbye", True)
    return str(message["reason"])


async def test_an_id_that_is_in_use_ends_the_connection_and_is_counted_once() -> None:
    def attack() -> str:
        with WireClient("tested") as wire:
            return repeated(wire, 3)

    async with shmrpc.serve(service, max_in_flight=10) as server, shmrpc.connect("tested") as other:
        for _ in range(12):
            assert "7" in await asyncio.to_thread(attack)
        assert await eventually_in_loop(lambda: server.in_flight == 0, 30)
        assert await other.sleep(0, "others are served") == "others are served"


async def test_an_id_of_a_waiting_call_ends_the_connection_and_releases_its_slot() -> None:
    def attack() -> str:
        with WireClient("tested") as wire:
            wire.send(CALL | wire.number("sleep") << 8, msgpack.packb([60]), 1)
            return repeated(wire, 3)

    serving = shmrpc.serve(service, max_in_flight=2, max_per_connection=1, max_waiting=4)
    async with serving as server, shmrpc.connect("tested") as other:
        for _ in range(6):
            assert "7" in await asyncio.to_thread(attack)
        assert await eventually_in_loop(lambda: server.in_flight == server.waiting == 0, 30)
        results = await asyncio.gather(*(other.sleep(0, n) for n in range(4)))
        assert results == list(range(4))


@pytest.mark.parametrize("again", ["plain", "coroutine", "batch", "describe", "one way", "absent"])
@pytest.mark.parametrize("parked", [False, True], ids=["under way", "waiting"])
async def test_an_id_of_a_call_in_flight_is_refused_for_another_call(again: str, parked: bool) -> None:
    """Otherwise the caller would take the other call's result for its own."""

    def attack() -> str:
        with WireClient("tested") as holds, WireClient("tested") as wire:
            if parked:  # Another client has the only slot.
                holds.request("sleep", 60)
                assert holds.call("add", 1, 2) == 3
            wire.send(CALL | wire.number("sleep") << 8, msgpack.packb([60]), 7)
            match again:
                case "plain":
                    wire.send(CALL | wire.number("add") << 8, msgpack.packb([1, 2]), 7)
                case "coroutine":
                    wire.send(CALL | wire.number("sleep") << 8, msgpack.packb([0]), 7)
                case "batch":
                    wire.send(BATCH | wire.number("add") << 8, msgpack.packb([{}, [[1, 2]]]), 7)
                case "describe":
                    wire.send(DESCRIBE, msgpack.packb(None), 7)
                case "one way":
                    wire.send(CALL_WITH | wire.number("add") << 8, msgpack.packb([{"one_way": True}, [1, 2], {}]), 7)
                case "absent":
                    wire.send(CALL | 0xFFFF << 8, msgpack.packb([1, 2]), 7)
            return fault_of(wire)

    async with shmrpc.serve(service, max_in_flight=1 if parked else 10) as server, shmrpc.connect("tested") as other:
        assert await asyncio.to_thread(attack) == "it used the id 7 for two calls at once"
        assert await eventually_in_loop(lambda: server.in_flight == server.waiting == 0, 30)
        assert await other.sleep(0, "others are served") == "others are served"


async def test_a_deadline_of_any_size_is_kept_or_refused() -> None:
    huge = [extension(16, (1 << bits).to_bytes(bits // 8 + 1, "big")) for bits in (64, 128, 1024, 4096, 60_000)]
    deadlines: list[Any] = [*NUMBERS, *huge, 1e300, float("inf"), float("nan"), "soon", None, True, [], {}]

    def attack() -> list[int]:
        kinds = []
        with WireClient("tested") as wire:
            sleep = wire.number("sleep") << 8
            for deadline in deadlines:
                for code, body in (
                    (CALL_WITH | sleep, [{"deadline": deadline}, [0.001, 5], {}]),
                    (CALL_DEADLINE | sleep, [deadline, 0.001, 5]),
                ):
                    call = wire.send(code, msgpack.packb(body))
                    opcode, answered, came = wire.receive()
                    assert answered == call
                    kinds.append(opcode)
                    if opcode == FAILURE:
                        assert unpacked(came)["kind"] in ("arguments", "deadline"), (deadline, unpacked(came))
                    else:
                        assert (opcode, unpacked(came)) == (RESULT, 5)
        return kinds

    async with shmrpc.serve(service) as server, shmrpc.connect("tested") as other:
        kinds = await asyncio.to_thread(attack)
        assert {RESULT, FAILURE} == set(kinds)
        assert await eventually_in_loop(lambda: server.in_flight == 0, 30)
        assert await other.sleep(0.001, "on time") == "on time"


async def test_names_of_exceptions_are_not_cached_without_bound() -> None:
    """A server would keep each name of an ABORT for ever, and a client each of a FAILURE."""
    before = count_classes()
    for number in range(2000):
        error = remote_errors.remote_error("x", type_name="", base=f"Error{number}", remote_traceback="")
        assert type(error) is shmrpc.RemoteError
    assert errors._join.cache_info().currsize < 500
    assert count_classes() - before < 500

    def attack() -> Any:
        with WireClient("tested.flows") as wire:
            call = wire.request("total", None)
            wire.expect(CREDIT, call, 1)
            failure = {"kind": "raised", "message": "m", "base": "B" * 100_000, "type_name": "t" * 100_000}
            wire.send(ABORT | 1 << 8, msgpack.packb(failure), call)
            return unpacked(wire.receive()[2])

    async with shmrpc.serve(flows):
        assert (await asyncio.to_thread(attack))["kind"] == "raised"
    assert errors._join.cache_info().currsize < 500


def count_classes() -> int:
    return sum(isinstance(each, type) for each in gc.get_objects())


async def test_credit_of_any_size_does_not_overflow() -> None:
    def attack() -> tuple[str, str]:
        with WireClient("tested.flows") as wire:
            call = wire.request("ticks", 60)
            for _ in range(20_000):
                wire.send(CREDIT, msgpack.packb(MAX_MAX_FRAME), call)
                if wire.into.available():
                    wire.receive()
        faults = []
        for credit in (0, -1, MAX_MAX_FRAME + 1):
            with WireClient("tested.flows") as wire:
                wire.send(CREDIT, msgpack.packb(credit), 1)
                faults.append(fault_of(wire))
        return faults[0], faults[-1]

    async with shmrpc.serve(flows), shmrpc.connect("tested.flows") as other:
        assert all("credit" in fault for fault in await asyncio.to_thread(attack))
        assert await other.add(1, 2) == 3
