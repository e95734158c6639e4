"""Mutated requests to endpoints that the native path runs: the core and Python give the same answers."""

from __future__ import annotations

import asyncio
import os
import random
import re
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import msgpack
import numpy as np
import numpy.typing as npt
import pytest

import shmrpc
from shmrpc import _core
from shmrpc.server.native_path import native_handlers
from tests.helpers.corrupt_arrays import ARRAY
from tests.helpers.scale import scaled
from tests.helpers.server_process import eventually
from tests.helpers.wire_client import (
    BYTES,
    CALL,
    CALL_DEADLINE,
    CALL_KEYWORDS,
    FAILURE,
    Frame,
    Parcel,
    WireClient,
    unpacked,
)
from tests.helpers.wire_memory import PARCEL, here, parcel
from tests.reliability import figures
from tests.reliability.hostile.hostile_peers import mutated

LOOP = "uvloop"
#: Requests in flight at a time.
TOGETHER: Final = 20
#: A deadline in the far future, and one long past.
LATER, PAST = time.monotonic_ns() + 10**13, 1
#: Contents of each array.
DATA: Final = np.arange(3.0).tobytes()
#: Counts of the handlers' calls by the calling module: the native path, or Python's fast path.
called: Counter[str] = Counter()

service = shmrpc.Service("tested")


def _count_call(*values: Any) -> str:
    """Count the call; return the arguments as text."""
    called[sys._getframe(2).f_globals["__name__"]] += 1
    return repr(values)


@service.endpoint
def add(a: int, b: int) -> str:
    return _count_call(a, b)


@service.endpoint
def mixed(number: int, real: float = 0.5, text: str = "", raw: bytes = b"", *, flag: bool | None = None) -> str:
    return _count_call(number, real, text, raw, flag)


@service.endpoint
def nested(items: list[list[int]], mapping: dict[str, float], pair: tuple[int, str] = (0, "")) -> str:
    return _count_call(items, mapping, pair)


@service.endpoint
def anything(value: Any, other: Any = None) -> Any:
    _count_call(value)
    return value


@service.endpoint
async def at_once(value: Any) -> Any:
    return value


@service.endpoint
async def soon(value: Any) -> Any:
    await asyncio.sleep(0)
    return value


@service.endpoint
def fail(text: str) -> None:
    raise ValueError(text)


@service.endpoint
def image(pixels: np.ndarray, name: str = "") -> str:
    return _count_call(_described(pixels), name)


@service.endpoint
def real(pixels: npt.NDArray[np.floating], raw: bytes = b"") -> np.ndarray:
    _count_call(pixels, raw)
    return pixels


def _described(array: Any) -> tuple[Any, ...]:
    return str(array.dtype), array.shape, array.strides, array.flags.writeable, array.tobytes()


def array(dtype: str, shape: list[int], data: int | bytes) -> msgpack.ExtType:
    return msgpack.ExtType(ARRAY, msgpack.packb([dtype, shape, data]))


def templates(wire: WireClient) -> list[tuple[int, bytes]]:
    """Return opcodes and bodies of valid requests. Those with PARCEL need the buffers that `Sender` adds."""
    calls: list[tuple[str, list[Any], dict[str, Any]]] = [
        ("add", [1, -2], {}),
        ("add", [], {"b": 300, "a": 70_000}),
        ("mixed", [1, 2.5, "text", b"raw"], {}),
        ("mixed", [2**40], {"flag": True, "text": "é" * 40}),
        ("nested", [[[1, 2], [], [3]], {"a": 1.5, "b": 2}, [1, "x"]], {}),
        ("nested", [[[]]], {"mapping": {}, "pair": [-1, ""]}),
        ("anything", [[None, True, {"a": [b"b", {1: "c"}]}, 1.5, 2**63]], {}),
        ("anything", [1], {"other": [1]}),
        ("at_once", [{"a": [1, 2]}], {}),
        ("soon", [[1, "2"]], {}),
        ("fail", ["so"], {}),
        ("image", [array("<f8", [3], DATA)], {}),
        ("image", [array("|u1", [2, 3, 4], DATA)], {"name": "a"}),
        ("real", [array("<f4", [6], DATA)], {}),
        ("anything", [[array("<i2", [12], DATA)]], {}),
    ]
    beside: list[tuple[str, list[Any], dict[str, Any]]] = [
        ("image", [array("<f8", [3], 0)], {}),
        ("image", [array("|u1", [2, 3, 4], 1)], {"name": "a"}),
        ("real", [array("<f4", [6], 1), msgpack.ExtType(BYTES, b"\0")], {}),
        ("anything", [[array("<i2", [12], 0), array("<i2", [6, 2], 0), array("<i2", [2, 6], 1)]], {}),
        ("at_once", [array("<f8", [3], 0)], {}),
    ]
    found = []
    for name, args, kwargs in [*calls, *beside]:
        number = wire.number(name) << 8 | (PARCEL if (name, args, kwargs) in beside else 0)
        found.append((CALL_KEYWORDS | number, msgpack.packb([args, kwargs])))
        if not kwargs:
            found.append((CALL | number, msgpack.packb(args)))
            found.extend((CALL_DEADLINE | number, msgpack.packb([until, *args])) for until in (LATER, PAST))
    return found


@contextmanager
def other_rendezvous_directory() -> Iterator[None]:
    """Use another rendezvous directory during the block, so that two servers can have one name."""
    before = os.environ["XDG_RUNTIME_DIR"]
    with tempfile.TemporaryDirectory(prefix="t-", dir=Path(before).parent) as directory:
        os.environ["XDG_RUNTIME_DIR"] = directory
        try:
            yield
        finally:
            os.environ["XDG_RUNTIME_DIR"] = before


class Sender:
    """A client that sends the same requests as another one to another server."""

    def __init__(self, wire: WireClient) -> None:
        self._wire = wire
        #: The two buffers of a parcel: one in the frame, and one in a block.
        self._beside = here(DATA), wire.extent().lend(DATA)
        self._lent = 0

    def answers(self, requests: list[tuple[int, bytes]]) -> list[Any]:
        """Send the requests; return their answers in the same order."""
        ids = [self._wire.send(code, self._payload(code, body)) for code, body in requests]
        came: dict[int, Frame] = {}
        while len(came) < len(ids):
            frame = self._wire.receive()
            assert frame[1] in ids and frame[1] not in came, frame
            came[frame[1]] = frame
        return [_comparable(*came[each]) for each in ids]

    def _payload(self, code: int, body: bytes) -> bytes:
        if not code & PARCEL:
            return body
        self._lent += 1
        return parcel(self._beside, body, DATA)

    def has_all_loans(self) -> bool:
        """Return True if the server has returned each loan."""
        assert self._wire.call("add", 1, 2)  # Returned loans arrive with the answer.
        return len(self._wire.given_back) == self._lent


def _comparable(opcode: int, call_id: int, body: bytes) -> Any:
    """Return a result's bytes, or a failure without its traceback and addresses of objects."""
    if opcode != FAILURE:
        return opcode, body, body.buffers if isinstance(body, Parcel) else None
    failure = unpacked(body)
    failure.pop("traceback", None)
    return opcode, re.sub("0x[0-9a-f]+", "0x", repr(failure))


@pytest.mark.slow
async def test_the_core_answers_mutated_requests_as_python_does(monkeypatch: pytest.MonkeyPatch) -> None:
    dice, outcomes, frames = random.Random(16), Counter[str](), scaled(2_000, 100_000)
    called.clear()

    def no_native_handlers(endpoints: Any, runner: Any) -> _core.HandlerTable:
        return native_handlers([], runner)

    def send_all(core: WireClient, python: WireClient) -> None:
        right, sides = templates(core), (Sender(core), Sender(python))
        for _ in range(frames // TOGETHER):
            requests = []
            for _ in range(TOGETHER):
                code, body = dice.choice(right)
                requests.append((code, mutated(dice, body) if dice.random() < 0.7 else body))
            for request, one, other in zip(requests, *[side.answers(requests) for side in sides], strict=True):
                assert one == other, request
                outcomes["failures" if one[0] == FAILURE else "results"] += 1
        assert all(eventually(side.has_all_loans) for side in sides)

    async with shmrpc.serve(service):
        core = await asyncio.to_thread(WireClient, "tested")
        with other_rendezvous_directory():
            monkeypatch.setattr("shmrpc.server.dispatch.native_handlers", no_native_handlers)
            async with shmrpc.serve(service):
                python = await asyncio.to_thread(WireClient, "tested")
                began = time.monotonic()
                await asyncio.to_thread(send_all, core, python)
                seconds = time.monotonic() - began
                python.close()
        core.close()
    assert outcomes["results"] > frames // 10 and outcomes["failures"] > frames // 10
    by_python = called.pop("shmrpc.server.fast_path")
    assert sum(called.values()) > by_python // 2, called  # The native path has run most of the calls that it could.
    figures.note(
        "hostile peer: requests to the core",
        mutated=frames,
        run_by_the_core=sum(called.values()),
        run_by_python=by_python,
        per_second=f"{2 * frames / seconds:.0f}",
        **outcomes,
    )
