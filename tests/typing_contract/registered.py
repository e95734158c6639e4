"""A service whose classes are registered. Only a server's process may import it: a client there has none of them."""

from __future__ import annotations

import dataclasses
import enum
import uuid
from collections.abc import AsyncIterator
from typing import NamedTuple

import msgspec

import shmrpc

registered = shmrpc.Service("registered")


@shmrpc.register
class Colour(enum.Enum):
    RED = "red"
    BLUE = "blue"


@shmrpc.register
@dataclasses.dataclass(frozen=True)
class Spot:
    """Its fields travel as what they are, and those that have the class's own value too."""

    id: uuid.UUID
    tags: frozenset[str] = frozenset()


@shmrpc.register
class Label(msgspec.Struct, rename="camel", omit_defaults=True, tag="label"):
    """Arrives with other fields than it may be sent with."""

    the_text: str
    the_sizes: set[int] = set()
    the_note: str | msgspec.UnsetType = msgspec.UNSET


@shmrpc.register
class Vector(msgspec.Struct, array_like=True):
    x: complex
    y: complex


@shmrpc.register
class Pair(NamedTuple):
    left: int
    right: set[int]


class Weight:
    def __init__(self, grams: float) -> None:
        self.grams = grams


@dataclasses.dataclass
class Coded:
    number: int


shmrpc.register(Weight, lambda weight: weight.grams, Weight)
shmrpc.register(Coded, lambda coded: coded.number, Coded)


@dataclasses.dataclass
class Holder:
    """Is not registered. What it holds is."""

    spot: Spot
    colours: list[Colour]
    ids: set[uuid.UUID]


@registered.endpoint
def colour(colour: Colour) -> dict[Colour, int]:
    return {colour: 1}


@registered.endpoint
def spot(spot: Spot) -> Spot:
    return spot


@registered.endpoint
def spots(spots: list[Spot]) -> set[Spot]:
    return set(spots)


@registered.endpoint
def label(label: Label) -> Label:
    return label


@registered.endpoint
def vector(vector: Vector, pair: Pair) -> tuple[Vector, Pair]:
    return vector, pair


@registered.endpoint
def holder(holder: Holder) -> Holder:
    return holder


@registered.endpoint
def weights(grams: list[float], coded: Coded) -> dict[str, Weight | None]:
    return dict.fromkeys(map(str, grams))


@registered.endpoint
def coded(coded: Coded) -> Coded | None:
    return None


@registered.endpoint
async def labels(texts: AsyncIterator[str]) -> AsyncIterator[Label]:
    async for text in texts:
        yield Label(text, {len(text)})
