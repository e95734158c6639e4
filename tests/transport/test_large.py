"""Arrays and large bytes come back as they went, by whatever way they travel."""

from __future__ import annotations

import array
import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import shmrpc
import shmrpc.testing
from shmrpc.values.blocks import LARGE
from tests.helpers import array_service
from tests.helpers.array_service import Scene, numbered, sum_of
from tests.helpers.loops import one_loop
from tests.helpers.server_process import ServerProcess

TARGET = "tests.helpers.array_service:service"
SHARED_SERVER = True

#: More than goes beside a body, and more than fits into the ring.
SIZE = 300_000


_PIXELS = numbered(1, SIZE).reshape(300, 1000)
_RECORDS = np.zeros(5000, [("at", "<M8[us]"), ("name", "S4"), ("place", ">f8", (2,))])
_RECORDS["at"], _RECORDS["name"], _RECORDS["place"] = np.datetime64("2026-01-02"), b"ab", [[1.5, -0.0]]
_TABLE = pa.table({"number": range(20_000), "text": [str(n) for n in range(20_000)]})

KINDS: dict[str, Any] = {
    "array": _PIXELS,
    "small array": np.arange(10, dtype="int16"),
    "0-d array": np.array(2.5),
    "empty array": np.empty((0, 5), "float32"),
    "array in Fortran order": np.asfortranarray(_PIXELS),
    "transposed array": np.arange(60_000.0).reshape(30, 40, 50).transpose(2, 0, 1),
    "array with gaps": _PIXELS[::3, 5::2],
    "array backwards": _PIXELS[::-1, ::-1],
    "array repeated by a stride of 0": np.broadcast_to(np.arange(1000), (100, 1000)),
    "structured array": _RECORDS,
    "big-endian array": np.arange(50_000, dtype=">i4"),
    "array of bools": _PIXELS > 100,
    "array of text": np.array([str(n) for n in range(10_000)]),
    "array of complex": np.arange(20_000) * 1j,
    "bytes": _PIXELS.tobytes(),
    "bytes that are just small": bytes(LARGE - 1),
    "bytes that are just large": bytes(LARGE),
    "bytes before what only Python reads": [_PIXELS.tobytes(), np.ones(900), (1, 2)],
    "bytearray": bytearray(_PIXELS),
    "memoryview": memoryview(_PIXELS.tobytes()),
    "memoryview of doubles": memoryview(array.array("d", range(20_000))),
    "array.array": array.array("i", range(50_000)),
    "Arrow buffer": pa.py_buffer(_PIXELS.tobytes()),
    "Arrow table": _TABLE,
    "Arrow record batch": _TABLE.to_batches()[0],
    "several, nested": {"a": [_PIXELS, (_PIXELS.tobytes(), None)], 1: {"deep": [[np.ones(9), _PIXELS[5]]]}},
}


def same(one: Any, other: Any) -> bool:
    """Return True if two values are of one type and equal, at any depth."""
    if type(one) is not type(other):
        return False
    if isinstance(one, np.ndarray):
        return bool(one.dtype == other.dtype and one.shape == other.shape and one.tobytes() == other.tobytes())
    if isinstance(one, dict):
        return list(one) == list(other) and all(same(one[key], other[key]) for key in one)
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(map(same, one, other))
    if isinstance(one, memoryview):
        return (one.format, one.shape, one.tobytes()) == (other.format, other.shape, other.tobytes())
    equals = getattr(one, "equals", None)
    return bool(equals(other)) if equals else bool(one == other)


def test_the_comparison_sees_differences() -> None:
    for value in KINDS.values():
        assert same(value, value)
        assert not same(value, None)
    changed = _PIXELS.copy()
    changed[-1, -1] += 1
    for other in (changed, _PIXELS.reshape(-1), _PIXELS.view("int8")):
        assert not same([_PIXELS], [other])


#: Ways of a value to an endpoint that sends it back.
WAYS: dict[str, Callable[[Any, Any], Any]] = {
    "positional": lambda client, value: client.echo(value),
    "keyword": lambda client, value: client.echo(value=value),
    "suspended": lambda client, value: client.echo_later(value),
    "in a thread": lambda client, value: client.echo_in_thread(value),
    "by name": lambda client, value: client.call("echo", value),
    "by function": lambda client, value: client.call(array_service.echo_later, value),
    "under a deadline": lambda client, value: client.with_options(timeout=30).echo(value),
    "under a deadline, suspended": lambda client, value: client.with_options(timeout=30).echo_later(value),
    "under a deadline, by keyword": lambda client, value: client.with_options(timeout=30).echo(value=value),
    "with metadata": lambda client, value: client.with_options(metadata={"sent": "this"}).echo(value),
    "with metadata both ways": lambda client, value: client.with_options(
        metadata={"sent": "this"}, reply_metadata={}
    ).echo_with_metadata(value),
}


async def check_all(client: shmrpc.Client) -> None:
    """Each kind by each way."""
    for way, send in WAYS.items():
        for kind, value in KINDS.items():
            assert same(await send(client, value), value), f"{kind}, {way}"
    parts, others = await client.whole(*KINDS.values(), **KINDS)
    assert same(parts, [*KINDS.values()])
    assert same(others, KINDS)
    replied: dict[str, str | bytes] = {}
    views = client.with_options(metadata={"sent": "this"}, reply_metadata=replied)
    assert same(await views.echo_with_metadata(KINDS), KINDS)
    assert replied == {"got": "this"}


async def test_each_kind_by_each_way(client: shmrpc.Client) -> None:
    await check_all(client)


@one_loop
async def test_each_kind_by_each_way_within_one_loop() -> None:
    async with shmrpc.testing.connect(array_service.service) as client:
        await check_all(client)


@one_loop
async def test_each_kind_by_the_reference_codec(server: ServerProcess) -> None:
    async with shmrpc.connect(server.name, codec="msgpack") as client:
        assert same(await client.echo(KINDS), KINDS)
        assert same(await client.echo_later([*KINDS.values()]), [*KINDS.values()])


def test_each_kind_by_each_way_without_a_loop(sync_client: shmrpc.sync.Client) -> None:
    for way, send in WAYS.items():
        for kind, value in KINDS.items():
            assert same(send(sync_client, value), value), f"{kind}, {way}"
    parts, others = sync_client.whole(*KINDS.values(), **KINDS)
    assert same(parts, [*KINDS.values()])
    assert same(others, KINDS)
    # A memoryview cannot be pickled, and NumPy pickles what is big-endian as the machine's own.
    pickled = {k: v for k, v in KINDS.items() if not isinstance(v, memoryview) and k != "big-endian array"}
    assert same(sync_client.echo_in_process(pickled), pickled), "through another process yet"


async def check_many(client: shmrpc.Client) -> None:
    """Each kind in a batch, in a map, and one way."""
    async with client.batch() as batch:
        mixed = [batch.echo(value) for value in KINDS.values()]
        mixed += [batch.call(array_service.inverted, _PIXELS), batch.checksum(value=_PIXELS)]
    results = [await future for future in mixed]
    assert same(results[:-2], [*KINDS.values()])
    assert same(results[-2:], [~_PIXELS, sum_of(_PIXELS)])
    mapped = [value async for value in client.map("echo", KINDS.values(), chunk=4)]
    assert same(mapped, [*KINDS.values()])
    sums = [value async for value in client.map(array_service.checksum, [_PIXELS[n:] for n in range(50)], chunk=7)]
    assert sums == [sum_of(_PIXELS[n:]) for n in range(50)]
    for kind, value in KINDS.items():
        await client.notify("keep", kind, value)
        assert same(await client.kept(kind), value), kind
    await client.let_go()


@one_loop
async def test_many_in_one_frame_and_one_way(client: shmrpc.Client) -> None:
    await check_many(client)


@one_loop
async def test_many_in_one_frame_and_one_way_within_one_loop() -> None:
    async with shmrpc.testing.connect(array_service.service) as client:
        await check_many(client)


def test_many_in_one_frame_and_one_way_without_a_loop(sync_client: shmrpc.sync.Client) -> None:
    with sync_client.batch() as batch:
        futures = [batch.echo(value) for value in KINDS.values()]
    assert same([future.result() for future in futures], [*KINDS.values()])
    assert same(list(sync_client.map("echo", KINDS.values(), chunk=4)), [*KINDS.values()])
    for kind, value in KINDS.items():
        sync_client.notify("keep", kind, value)
        assert same(sync_client.kept(kind), value), kind


async def values() -> AsyncIterator[Any]:
    """Each kind, twice."""
    for value in [*KINDS.values()] * 2:
        yield value
        await asyncio.sleep(0)


async def numbered_arrays(n: int, size: int) -> AsyncIterator[Any]:
    for seed in range(n):
        yield numbered(seed, size)


async def check_streams(client: shmrpc.Client) -> None:
    """Each kind as an item, in either direction and in both."""
    assert same([value async for value in client.echo_each(values())], [*KINDS.values()] * 2)
    expected = [numbered(seed, SIZE) for seed in range(20)]
    assert same([value async for value in client.arrays(20, SIZE)], expected)
    assert same([value async for value in client.arrays_in_thread(20, SIZE)], expected)
    assert same([value async for value in client.built_arrays(20, SIZE)], expected)
    assert [value async for value in client.blobs(20, SIZE)] == [value.tobytes() for value in expected]
    assert [value async for value in client.call(array_service.blobs, 3, 100)] == [
        numbered(n, 100).tobytes() for n in range(3)
    ]
    sums = [sum_of(value) for value in expected]
    assert await client.sums(numbered_arrays(20, SIZE)) == sums
    assert await client.sums_of_all(value.tobytes() for value in expected) == sums
    assert await client.with_options(timeout=30).sums(numbered_arrays(20, SIZE)) == sums
    mixed = [numbered(n, size) for n, size in enumerate([10, 5000, 40_000, 1_000_000, 1] * 4)]
    assert same([value async for value in client.echo_each(mixed)], mixed), "small and large ones keep their order"


async def test_items_of_streams(client: shmrpc.Client) -> None:
    await check_streams(client)


async def test_items_of_streams_within_one_loop() -> None:
    async with shmrpc.testing.connect(array_service.service) as client:
        await check_streams(client)


def test_items_of_streams_without_a_loop(sync_client: shmrpc.sync.Client) -> None:
    both = [*KINDS.values()] * 2
    assert same(list(sync_client.echo_each(iter(both))), both)
    expected = [numbered(seed, SIZE) for seed in range(20)]
    assert same(list(sync_client.arrays(20, SIZE)), expected)
    assert same(list(sync_client.built_arrays(20, SIZE)), expected)
    assert list(sync_client.blobs(20, SIZE)) == [value.tobytes() for value in expected]
    assert sync_client.sums(iter(expected)) == [sum_of(value) for value in expected]
    assert sync_client.sums_of_all(value.tobytes() for value in expected) == [sum_of(value) for value in expected]


async def check_types(client: shmrpc.Client) -> None:
    """Check that declared types are honoured, also in containers and in classes."""
    assert same(await client.inverted(_PIXELS), ~_PIXELS)
    assert same(await client.call(array_service.inverted, _PIXELS), ~_PIXELS)
    parts = [_PIXELS, _PIXELS[::2]]
    tail = bytes(100_000)
    expected = b"".join(part.tobytes() for part in parts) + tail
    assert await client.joined(parts, tail) == expected
    assert await client.joined(parts=parts, tail=tail) == expected
    assert await client.call(array_service.joined, parts, tail) == expected
    scene = Scene("abc", _PIXELS, [_PIXELS > 100, _PIXELS > 200], _PIXELS.tobytes())
    flipped = await client.call(array_service.flipped, scene)
    assert isinstance(flipped, Scene)
    assert same(flipped.image, _PIXELS[::-1])
    assert same(flipped.masks, [_PIXELS > 200, _PIXELS > 100])
    assert (flipped.name, flipped.raw) == ("cba", _PIXELS.tobytes()[::-1])
    for wrong in (_PIXELS.astype("float32"), _PIXELS.tobytes(), [1, 2]):
        with pytest.raises(shmrpc.InvalidArguments, match="parameter 'image'"):
            await client.inverted(wrong)
    with pytest.raises(shmrpc.InvalidArguments, match="parameter 'parts'"):
        await client.joined([_PIXELS, 5], tail)
    with pytest.raises(shmrpc.InvalidArguments, match="parameter 'tail'"):
        await client.joined(parts, _PIXELS)


@one_loop
async def test_declared_types(client: shmrpc.Client) -> None:
    await check_types(client)


@one_loop
async def test_declared_types_within_one_loop() -> None:
    async with shmrpc.testing.connect(array_service.service) as client:
        await check_types(client)


@one_loop
async def test_arrays_that_cannot_be_sent_raise_with_the_reason(client: shmrpc.Client) -> None:
    with pytest.raises(shmrpc.EncodeError, match=r"objects.*\.tolist\(\)"):
        await client.echo([_PIXELS, np.array([object()])])
    with pytest.raises(shmrpc.EncodeError, match=r"masked array.*\.filled\(\)"):
        await client.echo(np.ma.masked_less(_PIXELS, 5))
    with pytest.raises(TypeError, match="Python objects"):
        client.empty(3, object)
    with pytest.raises(ValueError, match=r"0 or more, got \(3, -1\)"):
        client.empty((3, -1))
    with pytest.raises(ValueError, match="0 bytes or more, got -1"):
        client.buffer(-1)
    assert same(await client.echo(_PIXELS), _PIXELS)


def test_memory_before_there_is_a_connection() -> None:
    for client in (shmrpc.connect("tested.large"), shmrpc.sync.connect("tested.large")):
        with pytest.raises(shmrpc.LocalProtocolError, match="with"):
            client.empty(3)


def test_one_object_that_comes_twice_travels_once(sync_client: shmrpc.sync.Client) -> None:
    first, (second, third) = sync_client.echo([_PIXELS, [_PIXELS, _PIXELS[:]]])
    assert array_service.address_of(first) == array_service.address_of(second) != array_service.address_of(third)
    assert same([first, second, third], [_PIXELS] * 3)
