"""The output of help(), inspect and dir() for the endpoints of a client."""

from __future__ import annotations

import asyncio
import inspect
import pydoc
from collections.abc import AsyncIterator

import shmrpc

shop = shmrpc.Service("tested.shop")


@shop.endpoint
def price(item: str, count: int = 1) -> int:
    """Return the price of so many items."""
    return count * len(item)


@shop.endpoint
async def prices(items: AsyncIterator[str]) -> AsyncIterator[int]:
    """Yield the price of each item."""
    async for item in items:
        yield len(item)


@shop.group("stock").endpoint
async def total(items: AsyncIterator[str] | None = None) -> int:
    """Return the number of items in stock."""
    return 0


def _text(function: object) -> str:
    return pydoc.render_doc(function, renderer=pydoc.plaintext)  # type: ignore[attr-defined]


def _check(client: shmrpc.Client | shmrpc.sync.Client) -> None:
    """Check a client that knows the service's functions."""
    for named, known in ((client.price, price), (client.prices, prices), (client.stock.total, total)):
        assert inspect.signature(named) == inspect.signature(known, eval_str=True)
        assert named.__doc__ == known.__doc__
        text = _text(named)
        assert f"{named.__name__}{inspect.signature(named)}" in text
        assert str(known.__doc__) in text
    assert {"price", "prices", "stock"} <= set(dir(client))
    assert "total" in dir(client.stock)


async def test_a_client_that_knows_the_functions_shows_theirs() -> None:
    async with shmrpc.serve(shop), shmrpc.connect(shop) as client:
        _check(client)
        _check(client.with_options(timeout=30))
        _check(client.with_options(metadata={"of": "all"}))
        assert inspect.iscoroutinefunction(client.price)
        assert inspect.iscoroutinefunction(client.stock.total)
        assert inspect.isasyncgenfunction(client.prices)
        assert await client.price("tea", count=2) == 6
        assert [each async for each in client.prices(["tea", "salt"])] == [3, 4]


async def test_a_client_without_a_loop_does_too() -> None:
    def work() -> None:
        with shmrpc.sync.connect(shop) as client:
            _check(client)
            _check(client.with_options(timeout=30))
            assert client.price("tea", count=2) == 6
            assert list(client.prices(["tea", "salt"])) == [3, 4]

    async with shmrpc.serve(shop):
        await asyncio.to_thread(work)


async def test_a_client_that_knows_a_name_refers_to_describe() -> None:
    async with shmrpc.serve(shop), shmrpc.connect("tested.shop") as client:
        for endpoint in (client.price, client.prices, client.stock.total):
            says = "For its parameters see describe(), or use connect(Service)."
            assert endpoint.__doc__ == f"Call the endpoint '{endpoint.__name__}'. {says}"
            assert endpoint.__doc__ in _text(endpoint).replace("\n    ", " ")
        assert {"price", "prices", "stock"} <= set(dir(client))
