"""Aliases, ``type Name = ...``: wherever one is used, it means the type that it names."""

from __future__ import annotations

import dataclasses
import sys
import types
import typing
from collections.abc import AsyncIterator
from typing import Annotated, Any, Literal, TypeVar

import numpy as np
import numpy.typing as npt
import pytest

import shmrpc
from shmrpc.introspection.describe import describe_service
from shmrpc.values import WRITABLE, Writable
from shmrpc.values.aliases import without_aliases

if sys.version_info >= (3, 12):
    from typing import TypeAliasType
else:
    from typing_extensions import TypeAliasType

A = TypeVar("A")
B = TypeVar("B")

Point = TypeAliasType("Point", tuple[int, int])
Swapped = TypeAliasType("Swapped", tuple[B, A], type_params=(A, B))
Same = TypeAliasType("Same", A, type_params=(A,))
Ticks = TypeAliasType("Ticks", AsyncIterator[Point])
Pixels = TypeAliasType("Pixels", Writable[npt.NDArray[np.uint8]])

service = shmrpc.Service("aliases")


@service.endpoint
def moved(point: Point, by: Swapped[int, int]) -> Point:
    assert type(point) is tuple
    return point[0] + by[0], point[1] + by[1]


@service.endpoint
async def walk(steps: Ticks) -> Ticks:
    async for step in steps:
        yield step


@service.endpoint
def fill(pixels: Pixels) -> None:
    pixels[:] = 7


@pytest.mark.parametrize(
    ("kind", "meant"),
    [
        (int, int),
        (Any, Any),
        (Point, tuple[int, int]),
        (list[Point], list[tuple[int, int]]),
        (Point | None, tuple[int, int] | None),
        (typing.Union[Point, None], tuple[int, int] | None),  # noqa: UP007 - as an older source has it
        (Annotated[Point, 1], Annotated[tuple[int, int], 1]),
        (Literal["Point"], Literal["Point"]),
        (Swapped[int, str], tuple[str, int]),
        (dict[str, Swapped[Point, Same[str]]], dict[str, tuple[str, tuple[int, int]]]),
        (Pixels, Annotated[without_aliases(npt.NDArray[np.uint8]), WRITABLE]),  # An alias itself, since NumPy 2.4.
    ],
)
def test_an_alias_is_replaced_by_the_type_that_it_names(kind: Any, meant: Any) -> None:
    assert without_aliases(kind) == meant


def test_a_type_without_an_alias_stays_the_same_object() -> None:
    kind = dict[str, list[int | None]]
    assert without_aliases(kind) is kind


async def test_calls_take_what_the_alias_names() -> None:
    async with shmrpc.serve(service), shmrpc.connect("aliases") as client:
        assert await client.moved([1, 2], [10, 20]) == (11, 22)
        with pytest.raises(shmrpc.InvalidArguments, match="parameter 'point'"):
            await client.moved([1, "2"], [10, 20])

        async def steps() -> AsyncIterator[Any]:
            yield [1, 2]
            yield [3, 4]

        assert [step async for step in client.walk(steps())] == [(1, 2), (3, 4)]
        pixels = client.empty(8, "uint8")
        await client.fill(pixels)
        assert (pixels == 7).all()
        with pytest.raises(shmrpc.InvalidArguments, match="uint8"):
            await client.fill(np.zeros(8, np.float32))
        with pytest.raises(shmrpc.InvalidArguments, match=r"aliases\.fill\(.*\) -> None: missing.*'pixels'"):
            await client.fill()


#: In the fields of classes msgspec knows those of this statement.
STATEMENTS = """
type Json = dict[str, Json] | list[Json] | str
type Place = tuple[int, int]

@dataclasses.dataclass
class Box:
    corner: Place

@dataclasses.dataclass
class Tree:
    root: Json

@service.endpoint
def corner(boxes: list[Box]) -> Place:
    assert type(boxes[0].corner) is tuple
    return boxes[0].corner

@service.endpoint
def same(tree: Json) -> Json:
    return tree
"""


@pytest.mark.skipif(sys.version_info < (3, 12), reason="the statement is new in CPython 3.12")
async def test_aliases_in_classes_and_of_themselves() -> None:
    service = shmrpc.Service("statements")
    module = types.ModuleType("statements")
    vars(module).update(dataclasses=dataclasses, service=service)
    sys.modules["statements"] = module
    try:
        exec(STATEMENTS, vars(module))
        description = describe_service(service)
        assert "corner: tuple[int, int]" in description.text
        assert "tree: dict[str, Any] | list[Any] | str" in description.text
        async with shmrpc.serve(service), shmrpc.connect("statements") as client:
            assert await client.corner([{"corner": [1, 2]}]) == (1, 2)
            with pytest.raises(shmrpc.InvalidArguments, match="parameter 'boxes'"):
                await client.corner([{"corner": [1, "2"]}])
            tree = {"a": ["b", {"c": "d"}]}
            assert await client.same(tree) == tree
            with pytest.raises(shmrpc.InvalidArguments, match="parameter 'tree'"):
                await client.same(1)
        with pytest.raises(TypeError, match=r"grown.*parameter 'tree'.*part of itself: declare Any"):
            exec("@service.endpoint\ndef grown(tree: Tree) -> None: ...", vars(module))
    finally:
        del sys.modules["statements"]


def test_descriptions_show_what_an_alias_names() -> None:
    description = describe_service(service)
    said = {endpoint.name: [each.type for each in endpoint.parameters] for endpoint in description.endpoints}
    assert said["moved"] == ["tuple[int, int]", "tuple[int, int]"]
    assert said["fill"] == ["Writable[numpy.typing.NDArray[numpy.uint8]]"]
    assert said["walk"] == ["AsyncIterator[tuple[int, int]]"]
