"""Signal handlers that raise while a side encodes or sends: their exception arrives, not EncodeError."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Awaitable, Callable, Iterator
from types import FrameType
from typing import Any

import pytest

import shmrpc

TARGET = "tests.helpers.stream_service:service"
SHARED_SERVER = True


class Signalling:
    """A signal comes while it is encoded."""


def _encode(value: Signalling) -> int:
    signal.raise_signal(signal.SIGUSR1)
    return 1


shmrpc.register(Signalling, encode=_encode, decode=lambda plain: Signalling(), name="tests.Signalling")


@pytest.fixture(params=[ValueError, TypeError, LookupError])
def raised(request: pytest.FixtureRequest) -> Iterator[type[Exception]]:
    """Yield the class of the exception that the signal handler raises."""
    kind: type[Exception] = request.param

    def handler(number: int, frame: FrameType | None) -> None:
        raise kind("of the handler")

    before = signal.signal(signal.SIGUSR1, handler)
    yield kind
    signal.signal(signal.SIGUSR1, before)


async def _written(client: shmrpc.Client) -> None:
    async with client.open("total") as call:
        await call.write(Signalling())


ENCODING: dict[str, Callable[[shmrpc.Client], Awaitable[object]]] = {
    "plain": lambda client: client.add(Signalling(), 1),
    "by keyword": lambda client: client.add(1, b=Signalling()),
    "under a deadline": lambda client: client.with_options(timeout=60).add(Signalling(), 1),
    "one way": lambda client: client.notify("add", Signalling(), 1),
    "upload": lambda client: client.total([Signalling()]),
    "by hand": _written,
}


def _written_in_threads(client: shmrpc.sync.Client) -> None:
    with client.open("total") as call:
        call.write(Signalling())


IN_THREADS: dict[str, Callable[[shmrpc.sync.Client], object]] = {
    "plain": lambda client: client.add(Signalling(), 1),
    "under a deadline": lambda client: client.with_options(timeout=60).add(Signalling(), 1),
    "upload": lambda client: client.total([Signalling()]),
    "by hand": _written_in_threads,
}


@pytest.mark.parametrize("way", ENCODING)
async def test_a_signal_as_a_loop_encodes(client: shmrpc.Client, raised: type[Exception], way: str) -> None:
    with pytest.raises(raised, match="^'?of the handler'?$") as caught:
        await ENCODING[way](client)
    assert type(caught.value) is raised
    assert await client.add(1, 2) == 3


@pytest.mark.parametrize("way", IN_THREADS)
def test_a_signal_as_a_thread_encodes(sync_client: shmrpc.sync.Client, raised: type[Exception], way: str) -> None:
    with pytest.raises(raised, match="^'?of the handler'?$") as caught:
        IN_THREADS[way](sync_client)
    assert type(caught.value) is raised
    assert sync_client.add(1, 2) == 3


_serving = shmrpc.Service("tested.signalled")


@_serving.endpoint
def plain(number: int) -> Any:
    return Signalling()


@_serving.endpoint
async def coroutine(number: int) -> Any:
    return Signalling()


@_serving.endpoint
async def later(number: int) -> Any:
    await asyncio.sleep(0)
    return Signalling()


@pytest.mark.parametrize("name", ["plain", "coroutine", "later"])
async def test_a_signal_as_a_server_encodes(raised: type[Exception], name: str) -> None:
    async with shmrpc.serve(_serving), shmrpc.connect("tested.signalled") as client:
        for calling in (client, client.with_options(timeout=60), client.with_options(metadata={"for": "the long way"})):
            with pytest.raises(raised, match="of the handler") as caught:
                await calling.call(name, 1)
            assert isinstance(caught.value, shmrpc.RemoteError)
        with pytest.raises(raised, match="of the handler"):
            await anext(client.map(name, [1]))


@pytest.mark.parametrize("timeout", [None, 60.0])
async def test_a_signal_as_a_loop_sends(client: shmrpc.Client, raised: type[Exception], timeout: float | None) -> None:
    session = client._reconnector.session
    assert session is not None
    exchange = session.exchange

    def interrupted(*args: Any) -> Any:
        session.exchange = exchange
        exchange(*args)
        signal.raise_signal(signal.SIGUSR1)

    session.exchange = interrupted
    calling = client if timeout is None else client.with_options(timeout=timeout)
    with pytest.raises(raised) as caught:
        await calling.add((1,), 2)  # A tuple, which the core leaves to Python.
    assert type(caught.value) is raised
