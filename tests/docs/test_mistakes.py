"""Messages after mistakes of users: the value expected, the value found, and the remedy."""

from __future__ import annotations

import inspect
import re
from pathlib import Path
from typing import Final

import pytest

import shmrpc
import shmrpc.errors
from shmrpc.service.argument_errors import CALL_OPTIONS
from shmrpc.service.service import CLIENT_METHODS
from tests.docs.mistakes import Mistake, read_mistakes, run

MISTAKES: Final = read_mistakes(Path(__file__).with_name("mistakes.md"))
PAGE: Final = (Path(__file__).parents[2] / "docs" / "errors.md").read_text()


@pytest.mark.parametrize("mistake", MISTAKES.values(), ids=MISTAKES)
async def test_a_mistake_ends_with_its_documented_message(mistake: Mistake) -> None:
    read = await run(mistake.program)
    assert mistake.matches(read), read


def test_the_messages_in_the_documents_are_those_that_are_read() -> None:
    quoted = [" ".join(each.split()) for each in re.findall(r"^```text\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)]
    assert len(quoted) > 20
    assert [each for each in quoted if not any(mistake.matches(each) for mistake in MISTAKES.values())] == []


def test_every_exception_has_a_heading_in_the_order_of_the_tree() -> None:
    tree = re.findall(r"^    [\W_]*[├└]── (\w+)", shmrpc.errors.__doc__ or "", re.MULTILINE)
    public = {
        name for name, each in vars(shmrpc).items() if isinstance(each, type) and issubclass(each, shmrpc.ShmrpcError)
    }
    assert set(tree) == public - {"ShmrpcError"}
    headings = re.findall(r"^## (\w+)$", PAGE, re.MULTILINE)
    assert headings == [name for name in tree if name != "CallError"]


def test_the_methods_of_clients_are_those_that_endpoints_are_warned_of() -> None:
    methods = {name for kind in (shmrpc.Client, shmrpc.sync.Client) for name in dir(kind) if not name.startswith("_")}
    assert methods == CLIENT_METHODS, "give them in service.py too"


def test_the_options_of_calls_are_those_that_are_explained_as_keywords() -> None:
    taken = {name for name in inspect.signature(shmrpc.Client.with_options).parameters if name != "self"}
    assert taken == {*CALL_OPTIONS}, "give them in signature.py too"


async def test_unusual_but_correct_declarations_raise_nothing() -> None:
    """Declarations with unsendable defaults, marks above other decorators, callables and optional streams."""
    read = await run(
        """
        MISSING = object()

        class Till:
            open = property(lambda self: 1 / 0)

            @shmrpc.endpoint
            @staticmethod
            def double(x: int) -> int:
                return 2 * x

            @shmrpc.endpoint
            @classmethod
            async def name(cls) -> str:
                return cls.__name__

        class Adder:
            async def __call__(self, a: int, b: int = 2) -> int:
                return a + b

        @dataclasses.dataclass
        class Item:
            name: str = "tea"

        shop.include(Till())
        shop.endpoint(name="add")(Adder())
        shop.endpoint(name="halve")(functools.partial(operator.truediv, b=2) if False else functools.partial(divmod, 7))

        @shop.endpoint
        def price(item: Item = Item(), count: float = 1, tags: set[str] = frozenset(), by: int = MISSING) -> str:
            return f"{item.name} {count} {by is MISSING}"

        @shop.endpoint
        async def total(start: int, prices: AsyncIterator[int] | None = None) -> int:
            return start + sum([price async for price in prices]) if prices is not None else -1

        @shop.endpoint
        def chosen(by: Callable[[int], AsyncIterator[int]] | None = None) -> bool:
            return by is None

        @shop.endpoint(run_in="thread")
        def listed() -> Iterator[int]:
            return [1, 2]

        async with shmrpc.serve(shop), shmrpc.connect("shop") as client:
            assert await client.double(2) == 4
            assert [each async for each in client.listed()] == [1, 2]
            assert await client.chosen() is True
            assert await client.name() == "Till"
            assert await client.add(1) == 3
            assert await client.halve(2) == (3, 1)
            assert await client.price() == "tea 1 True"
            assert await client.total(1, [2, 3]) == 6
            assert await client.total(1) == -1
            assert [each.text for each in (await client.describe()).endpoints][-3] == (
                "total(start: int, prices: AsyncIterator[int] | None = None) -> int"
            )

        @shop.endpoint
        def after() -> None:
            "The service has stopped."
        """
    )
    assert read == ""
