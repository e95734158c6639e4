"""A service that records its calls and resources, and helpers for peers that are stopped."""

from __future__ import annotations

import asyncio
import contextlib
import os
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import shmrpc
from tests.helpers.server_process import ServerProcess, eventually

service = shmrpc.Service("tested.watched")

_marks: list[int] = []
_produced = 0
_hoard: list[int] = []
_gates: dict[str, asyncio.Event] = {}
#: Descriptors of a server before its first client, by process.
_resting: dict[int, int] = {}


@service.endpoint
def add(a: int, b: int) -> int:
    return a + b


@service.endpoint
def echo(value: Any) -> Any:
    return value


@service.endpoint
def length(value: bytes) -> int:
    return len(value)


@service.endpoint
def body_of(size: int) -> bytes:
    return bytes(size)


@service.endpoint
async def sleep(seconds: float, result: Any = None) -> Any:
    await asyncio.sleep(seconds)
    return result


@service.endpoint
def hold_loop(began: str, until: str) -> None:
    """Block the server's loop: create the one file, then wait until the other one exists."""
    Path(began).touch()
    end = time.monotonic() + 60
    while not Path(until).exists() and time.monotonic() < end:
        time.sleep(0.005)


@service.endpoint
def mark(n: int, ballast: bytes = b"") -> int:
    """Record a call."""
    _marks.append(n)
    return n


@service.endpoint
def marks() -> list[int]:
    """Return the recorded calls, in order."""
    return _marks


@service.endpoint
def forget() -> None:
    """Forget the recorded calls, and close the gates."""
    _marks.clear()
    _gates.clear()


@service.endpoint
async def flood(size: int) -> AsyncIterator[bytes]:
    """Yield items until the client stops reading."""
    global _produced
    while True:
        _produced += 1
        yield bytes(size)


@service.endpoint
def produced() -> int:
    return _produced


@service.endpoint
async def total(items: AsyncIterator[bytes]) -> int:
    return sum([len(item) async for item in items])


@service.endpoint
def pid() -> int:
    return os.getpid()


@service.endpoint
def holds() -> dict[str, int]:
    """Return this process's resources by kind."""
    return held_by("self")


@service.endpoint
def take_descriptors() -> int:
    """Open files until there is no descriptor left; return their number."""
    with contextlib.suppress(OSError):
        while True:
            _hoard.append(os.open(os.devnull, os.O_RDONLY))
    return len(_hoard)


@service.endpoint
def give_descriptors(count: int) -> None:
    """Close that many of the files."""
    for _ in range(min(count, len(_hoard))):
        os.close(_hoard.pop())


@service.endpoint
async def wait_for(gate: str) -> str:
    """Wait until another caller opens the gate with ``open_gate``."""
    await _gates.setdefault(gate, asyncio.Event()).wait()
    return gate


@service.endpoint
async def items_after(gate: str) -> AsyncIterator[str]:
    """Yield an item, and another one once a caller opens the gate with ``open_gate``."""
    yield "first"
    await _gates.setdefault(gate, asyncio.Event()).wait()
    yield gate


@service.endpoint
async def open_gate(gate: str) -> None:
    _gates.setdefault(gate, asyncio.Event()).set()


def held_by(pid: int | str) -> dict[str, int]:
    """Return the descriptors, mappings, threads and resident kilobytes of a process."""
    process = Path(f"/proc/{pid}")
    resident = int((process / "statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    return {
        "descriptors": len(os.listdir(process / "fd")),
        "mappings": (process / "maps").read_text().count("\n"),
        "threads": len(os.listdir(process / "task")),
        "kilobytes": resident >> 10,
    }


def as_new(server: ServerProcess) -> ServerProcess:
    """Return a server that other tests have used, without their marks and gates, and without clients."""
    resting = _resting.setdefault(server.pid, held_by(server.pid)["descriptors"])
    with shmrpc.sync.connect(server.name, timeout=30) as client:
        client.forget()
    assert eventually(lambda: held_by(server.pid)["descriptors"] == resting, 30), "a client is left, or a descriptor"
    return server
