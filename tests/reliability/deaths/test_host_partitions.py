"""Two hosts, each with its own network and /dev/shm: partitioned, and all processes killed, under load."""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.helpers.hosts import Host, two_hosts
from tests.helpers.nats_servers import NatsServer
from tests.helpers.scale import scaled
from tests.helpers.server_process import PATIENCE, Script, ServerProcess
from tests.reliability.deaths.recorded_calls import LEDGER, CallOutcomes, check, service

#: Processes on the hosts have loops of their own.
LOOP = "asyncio"
TARGET = "tests.reliability.deaths.recorded_calls:service"
#: Seconds; short, because each partition has to be longer.
HEARTBEAT = 0.8


@pytest.fixture
def hosts(tmp_path: Path, runtime: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Host, Host, NatsServer]]:
    """Set up the near host, on which NATS runs, the far host, and NATS."""
    monkeypatch.setenv(LEDGER, str(tmp_path / "ledger"))
    (tmp_path / "ledger").touch()
    with two_hosts(runtime.parent) as (near, far):
        nats = NatsServer(host=near)
        yield near, far, nats
        nats.close()


def serve(host: Host, *at: str) -> ServerProcess:
    return ServerProcess(TARGET, *(part for each in at for part in ("--at", each)), under=host.under)


def end(servers: list[ServerProcess]) -> None:
    """End the current servers, which may have replaced earlier ones."""
    for server in servers:
        server.__exit__(None, None, None)


class Callers:
    """A client on a host, and its callers."""

    def __init__(self, host: Host, url: str, name: str) -> None:
        command = [*host.under, sys.executable, "-m", "tests.reliability.deaths.recorded_calls", url, name]
        pipe = subprocess.PIPE
        self.process = subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True)
        assert self.process.stdout is not None
        assert self.process.stdout.readline() == "calling\n"

    def stop(self) -> CallOutcomes:
        """End the input of the callers; return the outcomes of their calls."""
        output, _ = self.process.communicate(timeout=3 * PATIENCE)
        outcomes: dict[str, list[str]] = json.loads(output)
        return CallOutcomes(
            {*outcomes["answered"]},
            {*outcomes["not_executed"]},
            {*outcomes["maybe_executed"]},
            outcomes["other"],
        )

    def close(self) -> None:
        self.process.kill()
        self.process.communicate()


async def test_outcomes_on_two_hosts_match_the_ledger_despite_partitions_and_kills(
    hosts: tuple[Host, Host, NatsServer], tmp_path: Path
) -> None:
    near, far, nats = hosts
    url = f"{nats.url}?heartbeat={HEARTBEAT}"
    chance = random.Random(11)
    with contextlib.ExitStack() as stack:
        servers = [serve(near, url), serve(far, url)]
        stack.callback(end, servers)
        callers = [Callers(host, url, host.name) for host in (near, far)]
        for each in callers:
            stack.callback(each.close)
        # Each kind once, and then any of them.
        kinds = ["cut", "server", "nats", "client"]
        events = [*kinds, *(chance.choice(kinds) for _ in range(scaled(1, 120)))]
        for number, event in enumerate(events):
            await asyncio.sleep(chance.uniform(0.1, 0.4))
            match event:
                case "cut":
                    far.unplug()
                    await asyncio.sleep(chance.choice([0.1, 2 * HEARTBEAT, 4 * HEARTBEAT]))
                    far.plug()
                case "server":
                    place = chance.randrange(2)
                    servers[place].kill()
                    servers[place].__exit__(None, None, None)
                    servers[place] = await asyncio.to_thread(serve, (near, far)[place], url)
                case "client":
                    dying = await asyncio.to_thread(Callers, far, url, f"dying.{number}")
                    stack.callback(dying.close)
                    await asyncio.sleep(chance.uniform(0, 0.1))
                    dying.process.kill()
                case "nats":
                    nats.kill()
                    await asyncio.sleep(chance.uniform(0, 0.2))
                    await asyncio.to_thread(nats.start)
        told = await asyncio.gather(*(asyncio.to_thread(each.stop) for each in callers))
        for server in servers:
            await asyncio.to_thread(server.stop)
    together = check(tmp_path / "ledger", told)
    assert len(together.answered) > 100
    assert together.maybe_executed  # The hosts were partitioned during calls.


#: A client that prints its transport, and the error of a call in flight when its host is cut off.
CLIENT = """
    import asyncio, sys, shmrpc
    async def main(name, *places):
        async with shmrpc.connect(name, at=places, timeout=30, reconnect=True) as client:
            async def place():
                await client.note("a", 0)
                return client.address.partition(":")[0]
            print(await place(), flush=True)
            sys.stdin.readline()
            while await place() != "shm":
                await asyncio.sleep(0.01)
            print("shm", flush=True)
            sys.stdin.readline()
            while True:
                try:
                    if await place() == "nats":
                        break
                except shmrpc.ConnectionLost:
                    pass
            print("nats", flush=True)
            call = asyncio.ensure_future(client.note("b", 60))
            await client.note("c", 0)
            print("calling", flush=True)
            try:
                await call
            except shmrpc.ConnectionLost as error:
                print(error.maybe_executed, error, flush=True)
            sys.stdin.readline()
            print(await place(), flush=True)
    asyncio.run(main(*sys.argv[1:]))
"""


def test_a_client_prefers_its_own_host_and_raises_when_the_other_is_cut_off(
    hosts: tuple[Host, Host, NatsServer],
) -> None:
    near, far, nats = hosts
    url = f"{nats.url}?heartbeat={HEARTBEAT}"

    def go_on(client: Script) -> None:
        process: Any = client.process
        process.stdin.write("\n")
        process.stdin.flush()

    with serve(near, "shm", url), Script(CLIENT, service.name, "shm", url, under=far.under, has_input=True) as client:
        assert client.line() == "nats"  # The names of the near host are not visible here.
        with serve(far, "shm") as own:
            go_on(client)
            assert client.line() == "shm"
            own.kill()
            go_on(client)
            assert client.line() == "nats"
        assert client.line() == "calling"
        far.unplug()
        words = client.line()
        assert words.startswith("True ") and ("has said nothing for" in words or "broke" in words)
        far.plug()
        go_on(client)
        assert client.line() == "nats"
