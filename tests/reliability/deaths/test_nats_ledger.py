"""Servers, NATS and clients are killed under load: the outcomes of calls match the ledger of executions."""

from __future__ import annotations

import asyncio
import random
from pathlib import Path
from typing import Any

import shmrpc
from tests.helpers.nats_servers import NatsServer
from tests.helpers.scale import scaled
from tests.helpers.server_process import PATIENCE, Script, ServerProcess
from tests.reliability.deaths.recorded_calls import LEDGER, CallOutcomes, call_on, check, service


async def test_calls_over_nats_are_executed_at_most_once_and_their_outcomes_are_true(
    tmp_path: Path, monkeypatch: Any, caplog: Any
) -> None:
    caplog.set_level("CRITICAL", "shmrpc")
    monkeypatch.setenv(LEDGER, str(tmp_path / "ledger"))
    chance = random.Random(7)
    nats = NatsServer()
    servers = [_server(nats), _server(nats)]
    try:
        stop = asyncio.Event()
        clients = [
            shmrpc.connect(service.name, at=f"{nats.url}?heartbeat=1", timeout=PATIENCE, reconnect=True)
            for _ in range(4)
        ]
        for client in clients:
            await client.__aenter__()
        outcomes = CallOutcomes()
        running = [
            asyncio.create_task(call_on(clients[place], f"{place}.{number}", stop, outcomes, 4 * place + number))
            for place in range(4)
            for number in range(4)
        ]
        for _ in range(scaled(8, 300)):
            await asyncio.sleep(chance.uniform(0.05, 0.3))
            match chance.choice(["server", "server", "client", "nats"]):
                case "server":
                    place = chance.randrange(2)
                    servers[place].kill()
                    servers[place].__exit__(None, None, None)
                    servers[place] = await asyncio.to_thread(_server, nats)
                case "client":
                    await asyncio.to_thread(_client_that_dies, nats)
                case "nats":
                    nats.kill()
                    await asyncio.sleep(chance.uniform(0, 0.2))
                    await asyncio.to_thread(nats.start)
        stop.set()
        await asyncio.wait_for(asyncio.gather(*running), PATIENCE)
        for client in clients:
            await client.close()
        for server in servers:
            await asyncio.to_thread(server.stop)
    finally:
        for server in servers:
            server.__exit__(None, None, None)
        nats.close()
    assert len(check(tmp_path / "ledger", [outcomes]).answered) > 100


def _server(nats: NatsServer) -> ServerProcess:
    return ServerProcess("tests.reliability.deaths.recorded_calls:service", "--at", nats.url)


def _client_that_dies(nats: NatsServer) -> None:
    source = f"""
    import asyncio, os, shmrpc
    async def main():
        async with shmrpc.connect({service.name!r}, at={nats.url!r}, timeout={PATIENCE}) as client:
            calls = [asyncio.ensure_future(client.note(f"{{os.getpid()}}.{{n}}", 0.01)) for n in range(20)]
            await calls[0]
            print("called", flush=True)
            await asyncio.sleep(60)
    asyncio.run(main())
    """
    with Script(source) as client:
        client.line()
        client.kill()
