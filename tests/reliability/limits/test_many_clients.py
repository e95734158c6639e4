"""A thousand connections, a storm of them, and thousands that come and go: all are served, and no resource grows."""

from __future__ import annotations

import contextlib
import json
import os
import resource
import subprocess
import sys
import time
from collections.abc import Iterator
from typing import Any

import pytest

import shmrpc
from tests.helpers.scale import scaled
from tests.helpers.server_process import ServerProcess, eventually
from tests.helpers.time_bound import bounded
from tests.reliability import figures
from tests.reliability.watched_service import held_by

pytestmark = pytest.mark.slow

TARGET = "tests.reliability.watched_service:service"

#: Descriptors of a connection on each side, and some more.
DESCRIPTORS = 8
PROCESSES = 4


@pytest.fixture(autouse=True)
def in_time() -> Iterator[None]:
    with bounded():
        yield


class Crowd:
    """A process of many clients; see tests/reliability/limits/client_crowd.py."""

    def __init__(self, how: str, count: int) -> None:
        command = [sys.executable, "-m", "tests.reliability.limits.client_crowd", how, str(count)]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def go(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write("\n")
        self.process.stdin.flush()

    def report(self) -> dict[str, Any]:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line, "the process died"
        return json.loads(line)  # type: ignore[no-any-return]

    def end(self) -> None:
        """End the input, so that the process closes its clients."""
        try:
            self.process.communicate(timeout=60)
        finally:
            self.process.kill()
        assert self.process.returncode == 0


@contextlib.contextmanager
def crowds(how: str, count: int) -> Iterator[list[Crowd]]:
    """Start processes with that many clients in all; end them after the block."""
    made = [Crowd(how, count // PROCESSES) for _ in range(PROCESSES)]
    try:
        yield made
        for crowd in made:
            crowd.end()
    finally:
        for crowd in made:
            crowd.process.kill()
            crowd.process.communicate()


@pytest.fixture
def open_server(server: ServerProcess) -> ServerProcess:
    """Raise the server's limit of descriptors to its maximum."""
    _, most = resource.prlimit(server.pid, resource.RLIMIT_NOFILE)
    resource.prlimit(server.pid, resource.RLIMIT_NOFILE, (most, most))
    return server


def possible(server: ServerProcess, count: int) -> int:
    """Return the count, or less if the host's limit of descriptors allows less."""
    most = resource.prlimit(server.pid, resource.RLIMIT_NOFILE)[0]
    return min(count, most // DESCRIPTORS // PROCESSES * PROCESSES)


def as_before(server: ServerProcess, base: dict[str, int]) -> bool:
    """Return True if the server has no resources of its clients left."""
    here = held_by(server.pid)
    return here["descriptors"] == base["descriptors"] and here["mappings"] <= base["mappings"] + 8


def test_a_thousand_connections_are_served(open_server: ServerProcess) -> None:
    server, count = open_server, possible(open_server, 1000)
    with shmrpc.sync.connect("tested.watched") as first:
        assert first.add(1, 2) == 3
        base, start = held_by(server.pid), time.monotonic()
        with crowds("stay", count) as all_of_them:
            assert sum(crowd.report()["connected"] for crowd in all_of_them) == count
            connected = time.monotonic() - start
            there = held_by(server.pid)
            assert first.add(1, 2) == 3
            rounds = scaled(2, 20)
            start = time.monotonic()
            for _ in range(rounds):
                for crowd in all_of_them:
                    crowd.go()
                assert sum(crowd.report()["called"] for crowd in all_of_them) == count
            called = (time.monotonic() - start) / rounds
        assert eventually(lambda: as_before(server, base), 30)
        assert first.add(1, 2) == 3
    each = {name: f"{(there[name] - base[name]) / count:.1f}" for name in ("descriptors", "mappings", "kilobytes")}
    figures.note(
        "many connections", connections=count, connected_in=f"{connected:.1f} s", a_call_of_each=f"{called:.2f} s",
        of_the_server_each_takes=each,
    )  # fmt: skip


def test_a_storm_of_connections_is_served(open_server: ServerProcess) -> None:
    server, count = open_server, possible(open_server, scaled(200, 1000))
    with shmrpc.sync.connect("tested.watched") as first:
        assert first.add(1, 2) == 3
        base = held_by(server.pid)
        with crowds("storm", count) as all_of_them:
            for crowd in all_of_them:
                crowd.report()
            for crowd in all_of_them:
                crowd.go()
            times = [seconds for crowd in all_of_them for seconds in crowd.report()["times"]]
        assert len(times) == count
        assert first.add(1, 2) == 3
        assert eventually(lambda: as_before(server, base), 30)
    figures.note("a storm of connections", clients=count, until_the_first_answer=figures.times(times))


def test_clients_that_come_and_go_leave_nothing_behind(open_server: ServerProcess) -> None:
    server, count = open_server, scaled(150, 10_000)
    holds: list[dict[str, int]] = []
    with shmrpc.sync.connect("tested.watched") as first:
        assert first.add(1, 2) == 3
        base = held_by(server.pid)
        for part in (count // 10, count - count // 10):
            passing = Crowd("pass", part)
            assert passing.report() == {"passed": part}
            passing.end()
            assert eventually(lambda: as_before(server, base), 30)
            holds.append(held_by(server.pid))
        assert first.add(1, 2) == 3
    early, late = holds
    assert late["descriptors"] == early["descriptors"]
    assert late["threads"] == early["threads"]
    assert late["kilobytes"] - early["kilobytes"] < 4096, (
        "a leak of half a kilobyte per client would be seen in the long"
    )
    figures.note("clients that come and go", clients=count, a_few_at_a_time=4, after_a_tenth=early, at_the_end=late)


def test_processes_that_come_and_go_leave_nothing_behind(open_server: ServerProcess) -> None:
    """Each client has a process of its own; half of them exit without closing."""
    server, count = open_server, scaled(8, 100)
    source = "import os, sys, shmrpc\nclient = shmrpc.sync.connect('tested.watched').__enter__()\nclient.add(1, 2)\n"
    with shmrpc.sync.connect("tested.watched") as first:
        assert first.add(1, 2) == 3
        base = held_by(server.pid)
        for i in range(0, count, 2):
            ends = "client.close()", "os._exit(0)"
            both = [subprocess.Popen([sys.executable, "-c", source + end], env=os.environ) for end in ends]
            assert [process.wait(60) for process in both] == [0, 0], i
        assert eventually(lambda: as_before(server, base), 30)
        assert first.add(1, 2) == 3
