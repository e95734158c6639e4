"""Limits of one peer, which leave the other peers their share."""

from __future__ import annotations

import asyncio
import os

import msgpack
import pytest

import shmrpc
from shmrpc.transport.shm import handshake_limiter
from tests.calls.test_load import Gate
from tests.helpers.server_process import ServerProcess, eventually, eventually_in_loop
from tests.helpers.services import service
from tests.helpers.stopped_processes import stopped
from tests.helpers.wire_client import CALL, MEMORYVIEW, Control, WireClient, extension
from tests.helpers.wire_memory import GONE, PARCEL, SENDER, Entry, extent_update, parcel
from tests.reliability.figures import note

MIB = 1 << 20
#: Seconds after which a step counts as hung.
HANGS = 30.0


async def waits(server: shmrpc.Server, in_flight: int, waiting: int) -> None:
    assert await eventually_in_loop(lambda: (server.in_flight, server.waiting) == (in_flight, waiting), HANGS)


async def test_a_client_that_fills_the_queue_of_calls_gives_way_to_a_client_with_fewer() -> None:
    gate = Gate()
    async with shmrpc.serve(gate.service, max_in_flight=1, max_waiting=8) as server:
        async with shmrpc.connect("tested.gate") as greedy, shmrpc.connect("tested.gate") as polite:
            many = [asyncio.create_task(greedy.wait(n)) for n in range(9)]
            await waits(server, 1, 8)
            few = [asyncio.create_task(polite.wait(100 + n)) for n in range(4)]
            assert await eventually_in_loop(lambda: sum(call.done() for call in many) == 4, HANGS)
            with pytest.raises(shmrpc.Overloaded, match="1 calls in flight and 8 waiting, of yours 0 .* and 4 "):
                await polite.wait(104)
            with pytest.raises(shmrpc.Overloaded, match="of yours 1 .* and 4 "):
                await greedy.wait(9)
            gate.open.set()
            assert await asyncio.gather(*few) == [100, 101, 102, 103]
            outcomes = await asyncio.gather(*many, return_exceptions=True)
            assert outcomes[:5] == [0, 1, 2, 3, 4]
            assert [type(outcome) for outcome in outcomes[5:]] == [shmrpc.Overloaded] * 4
            assert gate.order[0] == 0 and sorted(gate.order) == [0, 1, 2, 3, 4, 100, 101, 102, 103]
    assert (server.in_flight, server.waiting) == (0, 0)


async def test_waiting_requests_take_no_more_memory_than_the_limit_of_a_connection() -> None:
    gate = Gate("tested.bytes")
    held: list[str] = []

    @gate.service.endpoint
    async def hold(text: str) -> int:
        held.append(text)
        await gate.open.wait()
        return len(text)

    large = "x" * 400_000
    async with shmrpc.serve(gate.service, max_memory=MIB, max_frame=MIB) as server:
        async with shmrpc.connect("tested.bytes") as greedy, shmrpc.connect("tested.bytes") as polite:
            begun = [asyncio.create_task(greedy.hold(large)) for _ in range(3)]
            await waits(server, 3, 0)
            # Three requests use up the connection's memory: the next ones wait.
            line = [asyncio.create_task(greedy.hold(large)) for _ in range(2)]
            await waits(server, 3, 2)
            with pytest.raises(shmrpc.Overloaded, match=r"1,200,\d{3} bytes\) and 2 \(800,\d{3} bytes\)"):
                await greedy.hold(large)
            other = asyncio.create_task(polite.hold(large))
            await waits(server, 4, 2)
            gate.open.set()
            assert await asyncio.gather(*begun, *line, other) == [400_000] * 6
            assert await greedy.hold(large) == 400_000


async def test_a_client_that_does_not_read_its_answers_is_disconnected() -> None:
    """Handlers in flight answer in spite of a full ring, up to a limit."""
    gate = Gate()
    built: list[int] = []

    @gate.service.endpoint
    async def build(size: int) -> str:
        await gate.open.wait()
        built.append(size)
        return "y" * size

    async with (
        shmrpc.serve(gate.service, max_memory=2 * MIB, max_frame=MIB) as server,
        shmrpc.connect("tested.gate") as polite,
    ):
        with await asyncio.to_thread(WireClient, "tested.gate") as greedy:
            greedy.grow(greedy.out.capacity)  # The helper sends all before it checks for room again.
            for _ in range(100):
                greedy.request("build", 100_000)
            await waits(server, 100, 0)
            gate.open.set()
            assert "bytes wait for the peer to read them" in await asyncio.to_thread(fault_of, greedy)
        assert await polite.at_once(3) == 3
        assert await polite.build(100_000) == "y" * 100_000
        await waits(server, 0, 0)


async def test_a_client_buffers_at_most_the_limit_for_a_server_that_does_not_read(server: ServerProcess) -> None:
    async with shmrpc.connect("tested", max_memory=2 * MIB, max_frame=MIB) as client:
        text = "z" * 30_000
        with stopped(server.pid):
            calls = [asyncio.create_task(client.echo(text)) for _ in range(300)]
            assert await eventually_in_loop(lambda: any(call.done() for call in calls), HANGS)
            refused = [call for call in calls if call.done()]
            with pytest.raises(shmrpc.Overloaded, match=r"echo\(\): the server is far behind, .*max_memory"):
                await refused[0]
            small = asyncio.create_task(client.add(1, 2))
            await asyncio.sleep(0)
        assert await small == 3, "a small call is still buffered"
        outcomes = await asyncio.gather(*calls, return_exceptions=True)
        assert {type(outcome) for outcome in outcomes} == {str, shmrpc.Overloaded}
        assert 60 <= sum(outcome == text for outcome in outcomes) <= 75
        assert await client.echo(text) == text


def fault_of(wire: WireClient) -> str:
    wire.control.socket.settimeout(HANGS)
    goodbye, _ = wire.control.receive()
    assert (goodbye["type"], goodbye["fault"]) == ("goodbye", True)
    return str(goodbye["reason"])


async def test_a_client_that_lends_more_memory_than_the_limit_is_disconnected() -> None:
    async with shmrpc.serve(service, max_memory=2 * MIB), shmrpc.connect("tested") as other:

        def lend() -> str:
            with WireClient("tested") as wire:
                assert wire.welcome["max_memory"] == 2 * MIB
                for number in range(3):
                    wire.extent(number, MIB)
                body = parcel([Entry(SENDER, 2, 0, 0, 100)], b"\x91\xc0")
                wire.send(PARCEL | CALL | wire.number("echo") << 8, body)
                return fault_of(wire)

        assert f"extents of {3 * MIB} bytes together are over the limit of {2 * MIB} bytes" in await asyncio.to_thread(
            lend
        )
        assert await other.add(1, 2) == 3


def test_a_removed_extent_counts_while_a_handler_refers_to_it() -> None:
    with ServerProcess("tests.helpers.services:service", "--max-memory", str(2 * MIB)), WireClient("tested") as wire:
        arguments = msgpack.packb([60, extension(MEMORYVIEW, 0)])
        opcode = PARCEL | CALL | wire.number("sleep") << 8
        for number in range(3):
            wire.extent(number, MIB)
            wire.send(opcode, parcel([Entry(SENDER, number, 0, 0, 5000)], arguments))
            if number < 2:
                assert wire.call("add", 1, 2) == 3, "a handler refers to the extent now"
                wire.updates.send(extent_update(GONE, number, 0))
        assert f"extents of {3 * MIB} bytes together are over the limit" in fault_of(wire)


@pytest.mark.slow
async def test_silent_clients_do_not_keep_other_clients_out(server: ServerProcess) -> None:
    before = len(os.listdir(f"/proc/{server.pid}/fd"))
    silent: list[Control] = []

    def connect_silently(count: int) -> None:
        """Connect clients and wait until all are accepted: the backlog is short, and the server may be slow."""
        silent.extend(Control("tested") for _ in range(count))
        assert eventually(lambda: len(os.listdir(f"/proc/{server.pid}/fd")) >= before + len(silent), HANGS)

    try:
        connect_silently(handshake_limiter.MAX_ARRIVING // 2)
        connect_silently(handshake_limiter.MAX_ARRIVING // 2)
        silent += [Control("tested") for _ in range(50)]
        async with asyncio.timeout(2 * HANGS), shmrpc.connect("tested", timeout=2 * HANGS) as client:
            assert await client.add(1, 2) == 3
        descriptors = len(os.listdir(f"/proc/{server.pid}/fd"))
        assert descriptors - before <= handshake_limiter.MAX_ARRIVING + 20
        note("silent clients", clients=len(silent), descriptors=descriptors - before)
    finally:
        for control in silent:
            control.socket.close()
    assert eventually(lambda: len(os.listdir(f"/proc/{server.pid}/fd")) == before, HANGS)


@pytest.mark.slow
async def test_clients_that_stop_after_hello_do_not_keep_other_clients_out(server: ServerProcess) -> None:
    before = len(os.listdir(f"/proc/{server.pid}/fd"))
    silent = [Control("tested") for _ in range(2 * handshake_limiter.MAX_HANDSHAKES)]
    try:
        for control in silent:
            control.send("hello", version=5, max_frame=MIB)
        async with asyncio.timeout(2 * HANGS), shmrpc.connect("tested", timeout=2 * HANGS) as client:
            assert await client.add(1, 2) == 3
            descriptors = len(os.listdir(f"/proc/{server.pid}/fd"))
            assert descriptors - before <= 2 * handshake_limiter.MAX_HANDSHAKES + 12 * handshake_limiter.MAX_HANDSHAKES
        message, kept = silent[0].receive()
        assert message["type"] == "welcome"
        for descriptor in kept:
            os.close(descriptor)
        message, _ = silent[0].receive()
        assert (message["type"], message["reached"]) == ("goodbye", 0)
        assert "others wait" in message["reason"]
    finally:
        for control in silent:
            control.socket.close()
    assert eventually(lambda: len(os.listdir(f"/proc/{server.pid}/fd")) == before, HANGS)
