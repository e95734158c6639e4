"""A service of large data that it returns, keeps and passes on; and functions by which both sides check the data."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import gc
import os
import zlib
from collections.abc import AsyncIterator, Iterator
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

import shmrpc

Bytes = NDArray[np.uint8]

service = shmrpc.Service("tested.large")

_kept: dict[str, Any] = {}


@dataclasses.dataclass
class Scene:
    name: str
    image: np.ndarray[Any, Any]
    masks: list[NDArray[np.bool_]]
    raw: bytes


def numbered(seed: int, size: int) -> Bytes:
    """Return that many bytes, which differ for each seed."""
    return ((np.arange(size, dtype=np.uint32) + seed) * 2654435761 >> 11).astype(np.uint8)


def sum_of(value: Any) -> int:
    """Return a checksum of the bytes of an array, in the order of its elements, or of any other buffer."""
    flat: Any = np.ascontiguousarray(value) if isinstance(value, np.ndarray) else value
    return zlib.crc32(flat)


def filled(place: int, size: int) -> Bytes:
    """Return that many copies of the byte that stands for an index in a stream."""
    return np.full(size, place % 251, np.uint8)


def is_filled(array: Bytes, place: int) -> bool:
    """Return True if the array is what :func:`filled` makes for this index."""
    return bool(array.min() == array.max() == place % 251)


def address_of(array: np.ndarray[Any, Any]) -> int:
    """Return the address of the first element in this process."""
    return cast(int, array.__array_interface__["data"][0])


def memory_of(client: shmrpc.Client | shmrpc.sync.Client) -> tuple[int, int]:
    """Return the bytes of a client's own extents, and the bytes in use."""
    reconnector: Any = client._reconnector
    channel = reconnector.session.connection.channel
    channel.has_frame()  # Collects returned loans.
    return cast("tuple[int, int]", channel.memory())


def extents_mapped() -> int:
    """Return the number of mapped extents in this process, its own and those of peers."""
    with open("/proc/self/maps") as maps:
        return sum("/memfd:shmrpc-extent" in line for line in maps)


def _extents() -> Iterator[str]:
    for name in os.listdir("/proc/self/fd"):
        path = f"/proc/self/fd/{name}"
        with contextlib.suppress(FileNotFoundError):  # The descriptor of the directory itself is closed.
            if "/memfd:shmrpc-extent" in os.readlink(path):
                yield path


def extents_open() -> int:
    """Return the number of descriptors of extents in this process."""
    return sum(1 for _ in _extents())


def extents_taken() -> int:
    """Return the bytes of the host's memory that the extents known to this process occupy."""
    return sum(os.stat(path).st_blocks * 512 for path in _extents())


async def _wait_until_kept(name: str) -> None:
    """Wait until a value is kept under this name."""
    while name not in _kept:
        await asyncio.sleep(0.001)


@service.endpoint
def add(a: int, b: int) -> int:
    return a + b


@service.endpoint
def pid() -> int:
    return os.getpid()


@service.endpoint
def echo(value):  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN201 - without annotations
    return value


@service.endpoint
async def echo_later(value: Any, seconds: float = 0.001) -> Any:
    await asyncio.sleep(seconds)
    return value


@service.endpoint
async def echo_when_kept(value: Any, name: str) -> Any:
    """Return the value once another one is kept under this name."""
    await _wait_until_kept(name)
    return value


@service.endpoint(run_in="thread")
def echo_in_thread(value: Any) -> Any:
    return value


@service.endpoint(run_in="process")
def echo_in_process(value: Any) -> Any:
    return value


@service.endpoint
def echo_with_metadata(value: Any) -> Any:
    call = shmrpc.current_call()
    call.reply_metadata["got"] = call.metadata.get("sent", "nothing")
    return value


@service.endpoint
def whole(*values: Any, **others: Any) -> list[Any]:
    return [list(values), others]


@service.endpoint
def inverted(image: NDArray[np.uint8]) -> np.ndarray[Any, Any]:
    return ~image


@service.endpoint
def joined(parts: list[np.ndarray[Any, Any]], tail: bytes) -> bytes:
    return b"".join(part.tobytes() for part in parts) + tail


@service.endpoint
def flipped(scene: Scene) -> Scene:
    assert all(isinstance(part, np.ndarray) for part in [scene.image, *scene.masks])
    return Scene(scene.name[::-1], scene.image[::-1], scene.masks[::-1], scene.raw[::-1])


@service.endpoint
def checksum(value: Any) -> int:
    return sum_of(value)


@service.endpoint
def text(length: int) -> str:
    return "x" * length


@service.endpoint
def numbers(seed: int, size: int) -> Bytes:
    """Return an array of ordinary memory."""
    return numbered(seed, size)


@service.endpoint
def built(seed: int, size: int, name: str | None = None) -> Bytes:
    """Return an array that is built in shared memory; keep it under the name, if any."""
    array: Bytes = shmrpc.current_call().empty(size, "uint8")
    array[:] = numbered(seed, size)
    if name is not None:
        _kept[name] = array
    return array


@service.endpoint(run_in="thread")
def built_in_thread(seed: int, size: int) -> memoryview:
    view = shmrpc.current_call().buffer(size)
    view[:] = numbered(seed, size).tobytes()
    return view


@service.endpoint
def keep(name: str, value: Any) -> None:
    _kept[name] = value


@service.endpoint
def keep_copy(name: str, value: np.ndarray[Any, Any]) -> None:
    _kept[name] = value.copy()


@service.endpoint
def keep_part(name: str, value: np.ndarray[Any, Any]) -> None:
    """Keep a view of a view of the array."""
    _kept[name] = value[10:][::2]


@service.endpoint
def kept(name: str) -> Any:
    return _kept.get(name)


@service.endpoint
def sum_of_kept(name: str) -> int:
    return sum_of(_kept[name])


@service.endpoint
def overwrite(name: str, byte: int) -> None:
    _kept[name][:] = byte


@service.endpoint
def invert(image: shmrpc.Writable[NDArray[np.uint8]], *, fail: bool = False) -> int:
    """Invert the image in place; return its checksum before."""
    before = sum_of(image)
    np.invert(image, out=image)
    if fail:
        raise ValueError("after it was written")
    return before


@service.endpoint
async def invert_later(image: shmrpc.Writable[np.ndarray[Any, Any]], seconds: float = 0.001) -> None:
    """Invert half of the image before a pause, and the other half after it."""
    half = len(image) // 2
    image[:half] = ~image[:half]
    await asyncio.sleep(seconds)
    image[half:] = ~image[half:]


@service.endpoint
async def invert_when_kept(image: shmrpc.Writable[np.ndarray[Any, Any]], name: str) -> None:
    """Invert half of the image at once, and the other half once a value is kept under this name."""
    half = len(image) // 2
    image[:half] = ~image[:half]
    await _wait_until_kept(name)
    image[half:] = ~image[half:]


@service.endpoint(run_in="thread")
def invert_in_thread(image: shmrpc.Writable[np.ndarray[Any, Any]]) -> None:
    np.invert(image, out=image)


@service.endpoint
async def invert_each(image: shmrpc.Writable[NDArray[np.uint8]], bytes_: list[int]) -> AsyncIterator[int]:
    """Write bytes one after the other to the beginning of the image while the caller reads."""
    for place, byte in enumerate(bytes_):
        image[place] = byte
        yield place


@service.endpoint
def put(view: shmrpc.Writable[memoryview], place: int, data: bytes) -> None:
    view[place : place + len(data)] = data


@service.endpoint
def copy_into(source: NDArray[np.uint8], target: shmrpc.Writable[NDArray[np.uint8]] | None = None) -> bool:
    if target is not None:
        target[: len(source)] = source
    return target is not None


@service.endpoint
def invert_and_keep(image: shmrpc.Writable[np.ndarray[Any, Any]]) -> Any:
    np.invert(image, out=image)
    _kept["written"] = image
    return image


@service.endpoint
def unique(values: set[Any]) -> int:
    return len(values)


@service.endpoint
def collect() -> None:
    """Collect reference cycles now."""
    gc.collect()


@service.endpoint
def let_go() -> None:
    _kept.clear()


@service.endpoint
def memory() -> tuple[int, int]:
    """Return the bytes of the server's own extents on this connection, and the bytes in use."""
    party: Any = shmrpc.current_call()._peer
    return cast("tuple[int, int]", party.peer.channel.memory())


@service.endpoint
def kept_by_extents() -> int:
    """Return the bytes of the host's memory that the extents of all connections occupy."""
    return extents_taken()


@service.endpoint
def traces() -> tuple[int, int, int]:
    """Return the server's numbers of descriptors, descriptors of extents, and mappings of extents."""
    return len(os.listdir("/proc/self/fd")), extents_open(), extents_mapped()


@service.endpoint
async def arrays(n: int, size: int) -> AsyncIterator[Bytes]:
    for seed in range(n):
        yield numbered(seed, size)


@service.endpoint(run_in="thread")
def arrays_in_thread(n: int, size: int) -> Iterator[Bytes]:
    for seed in range(n):
        yield numbered(seed, size)


@service.endpoint
async def built_arrays(n: int, size: int) -> AsyncIterator[Bytes]:
    """Yield arrays that are built in shared memory."""
    call = shmrpc.current_call()
    for seed in range(n):
        array: Bytes = call.empty(size, "uint8")
        array[:] = numbered(seed, size)
        yield array


@service.endpoint
async def blobs(n: int, size: int) -> AsyncIterator[bytes]:
    for seed in range(n):
        yield numbered(seed, size).tobytes()


@service.endpoint
async def slow_arrays(size: int) -> AsyncIterator[Bytes]:
    """Yield an array, and the next after a long time."""
    for seed in range(2):
        yield numbered(seed, size)
        await asyncio.sleep(600)


@service.endpoint
async def fills(n: int, size: int) -> AsyncIterator[Bytes]:
    """Yield arrays of one repeated byte, which are faster to make and check than to transfer."""
    for place in range(n):
        yield filled(place, size)


@service.endpoint
async def count_fills(items: AsyncIterator[NDArray[np.uint8]], pause: float = 0) -> int:
    """Return the number of items of ``fills`` that arrived. ``pause`` makes the receiver slower than the sender."""
    count = 0
    async for item in items:
        assert is_filled(item, count)
        count += 1
        await asyncio.sleep(pause)
    return count


@service.endpoint
async def sums(items: AsyncIterator[Any], pause: float = 0) -> list[int]:
    """Return the checksum of each item, and drop each before requesting the next."""
    result = []
    async for item in items:
        result.append(sum_of(item))
        del item
        if pause:
            await asyncio.sleep(pause)
    return result


@service.endpoint
async def sums_of_all(items: AsyncIterator[Any]) -> list[int]:
    """Return the checksum of each item, holding all items at once."""
    return [sum_of(item) for item in [item async for item in items]]


@service.endpoint
async def echo_each(items: AsyncIterator[Any]) -> AsyncIterator[Any]:
    async for item in items:
        yield item
