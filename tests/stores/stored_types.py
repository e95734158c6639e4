"""Types whose values the tests put into stores as they are. Other processes find them here."""

from __future__ import annotations

import dataclasses
import enum
import functools
from typing import Any, NamedTuple

import shmrpc


class Colour(enum.Enum):
    RED = 1
    BLUE = "blue"


class State(str, enum.Enum):  # noqa: UP042  # Other than a StrEnum it has a text of its own.
    RUNNING = "running"


class Level(enum.IntEnum):
    LOW = 1
    HIGH = 2


class Access(enum.Flag):
    READ = 1
    WRITE = 2


class Name(str):
    """A text that says something else of itself."""

    def __str__(self) -> str:
        return f"<{self.upper()}>"


class Money(int):
    """A number that says something else of itself."""

    def __int__(self) -> int:
        return 99


class Ratio(float):
    """A number that says something else of itself."""

    def __float__(self) -> float:
        return 9.5


class Digest(bytes):
    """Bytes of a class."""


class Position(NamedTuple):
    """A tuple with names."""

    x: int
    name: Any = None


class Noted(str):
    """A text with state beyond it."""

    note: str = ""


class Folded(str):
    """A text that is compared in a way of its own."""

    __slots__ = ()

    def __eq__(self, other: object) -> bool:
        return isinstance(other, str) and self.lower() == other.lower()

    def __hash__(self) -> int:
        return hash(self.lower())


class Frame:
    """A class that is registered with functions of its own, as the message for those that are not advises."""

    def __init__(self, data: bytes) -> None:
        self.data = data

    def __eq__(self, other: object) -> bool:
        return type(other) is Frame and other.data == self.data


@dataclasses.dataclass
class Registered:
    """A dataclass that is registered, and not shared."""

    colour: Colour
    more: list[int] = dataclasses.field(default_factory=list)


class Codes(dict[str, int]):
    """A class derived from dict, which is registered."""


shmrpc.register(Frame, lambda frame: memoryview(frame.data), lambda data: Frame(bytes(data)))
shmrpc.register(Registered)
shmrpc.register(Codes, dict, Codes)


@shmrpc.shared
class Coloured:
    """An object with members of Enums in its fields."""

    colour: Colour = Colour.RED
    level: Level = Level.LOW
    by_state: dict[State, Level] = dataclasses.field(default_factory=dict)


@shmrpc.shared
class Caching:
    """An object that caches what it makes of its fields."""

    value: int

    @functools.cached_property
    def double(self) -> int:
        return self.value * 2


@shmrpc.shared(open=True)
class OpenCaching:
    """The same, with attributes beyond its fields."""

    value: int

    @functools.cached_property
    def double(self) -> int:
        return self.value * 2
