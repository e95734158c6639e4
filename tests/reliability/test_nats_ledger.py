"""Servers, NATS and clients that are killed under load: what each call was told against what was done."""

from __future__ import annotations

import asyncio
import os
import random
from collections import Counter
from pathlib import Path
from typing import Any

import shmrpc
from tests.helpers.nats_servers import NatsServer
from tests.helpers.scale import scaled
from tests.helpers.server_process import PATIENCE, Script, ServerProcess

#: Where a server notes what it executes: a line for each call, written before it is answered.
LEDGER = "SHMRPC_TESTED_NATS_LEDGER"

service = shmrpc.Service("tested.nats.ledger")


@service.endpoint
async def note(call: str, seconds: float) -> str:
    """Notes a call as executed, once for each time."""
    descriptor = os.open(os.environ[LEDGER], os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    try:
        os.write(descriptor, f"{call}\n".encode())
    finally:
        os.close(descriptor)
    await asyncio.sleep(seconds)
    return call


class Caller:
    """Calls one after the other, and keeps what it was told of each."""

    def __init__(self, name: str, client: Any) -> None:
        self._name = name
        self._client = client
        self.answered: set[str] = set()
        self.not_executed: set[str] = set()
        self.maybe_executed: set[str] = set()
        self.other: list[Exception] = []

    async def run(self, stop: asyncio.Event, seed: int) -> None:
        chance = random.Random(seed)
        count = 0
        while not stop.is_set():
            count += 1
            call = f"{self._name}.{count}"
            try:
                assert await self._client.note(call, chance.choice([0, 0, 0.002, 0.02])) == call
                self.answered.add(call)
            except shmrpc.ConnectionLost as error:
                (self.maybe_executed if error.maybe_executed else self.not_executed).add(call)
            except shmrpc.ServiceUnavailable:  # No server came for a while.
                self.not_executed.add(call)
            except Exception as error:
                self.other.append(error)


async def test_calls_are_executed_at_most_once_and_what_is_told_of_them_is_true(
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
        callers = [Caller(f"{place}.{number}", clients[place]) for place in range(4) for number in range(4)]
        running = [asyncio.create_task(caller.run(stop, number)) for number, caller in enumerate(callers)]
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
    done = Counter((tmp_path / "ledger").read_text().split())
    assert [caller.other for caller in callers if caller.other] == []
    assert [call for call, times in done.items() if times > 1] == []
    answered = set().union(*(caller.answered for caller in callers))
    not_executed = set().union(*(caller.not_executed for caller in callers))
    assert answered - done.keys() == set()
    assert not_executed & done.keys() == set()
    assert len(answered) > 100


def _server(nats: NatsServer) -> ServerProcess:
    return ServerProcess("tests.reliability.test_nats_ledger:service", "--at", nats.url)


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
