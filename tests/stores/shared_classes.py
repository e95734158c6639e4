"""Classes whose instances the tests put into stores. Other processes find them here."""

from __future__ import annotations

import abc
import dataclasses
import enum
from dataclasses import field
from typing import Any, ClassVar, Generic, TypeVar

import shmrpc

_T = TypeVar("_T")


class Metrics(enum.IntEnum):
    """The fields of a struct."""

    requests = 0
    errors = 1
    seconds = 2


@shmrpc.shared
class Player:
    """A class with annotations that is no dataclass, and becomes one."""

    name: str
    health: int = 100
    items: list[str] = field(default_factory=list)
    worst: ClassVar[int] = 0

    def hit(self, by: int) -> int:
        """Change a field."""
        self.health -= by
        return self.health

    def give(self, *items: str) -> None:
        self.items.extend(items)

    @property
    def is_alive(self) -> bool:
        return self.health > self.worst

    @property
    def half(self) -> float:
        return self.health / 2

    @half.setter
    def half(self, value: float) -> None:
        self.health = int(value * 2)

    @classmethod
    def of(cls, name: str) -> Player:
        return cls(name, 7)

    @staticmethod
    def twice(value: int) -> int:
        return value * 2

    def __len__(self) -> int:
        return len(self.items)

    def __bool__(self) -> bool:
        return True


@shmrpc.shared
@dataclasses.dataclass
class Mage(Player):
    """A derived class, whose method calls that of its base."""

    mana: int = 10

    def hit(self, by: int) -> int:
        self.mana -= 1
        return super().hit(by // 2)


@shmrpc.shared
@dataclasses.dataclass(frozen=True)
class Point:
    """A frozen class: nothing of an instance can be set, in a store or elsewhere."""

    x: float
    y: float

    def __add__(self, other: Point) -> Point:
        return Point(self.x + other.x, self.y + other.y)


@shmrpc.shared
class Slotted:
    """A class that is no dataclass."""

    __slots__ = ("left", "right")

    def __init__(self, left: Any, right: Any) -> None:
        self.left, self.right = left, right

    def swap(self) -> None:
        self.left, self.right = self.right, self.left


@shmrpc.shared
@dataclasses.dataclass(slots=True)
class SlottedData:
    """A dataclass with slots."""

    value: int
    more: dict[str, int] = field(default_factory=dict)


@shmrpc.shared
class Undecorated:
    """A class that becomes a dataclass."""

    x: int = 0
    y: int = 3


@shmrpc.shared
class Derived(Undecorated):
    """A class with annotations of its own and a dataclass as its base."""

    mana: int = 10


@shmrpc.shared
class WithoutAnnotations(Undecorated):
    """A class with a dataclass as its base and no annotations of its own."""


@shmrpc.shared
class DerivedFromSlots(SlottedData):
    """A class with annotations of its own and a dataclass with slots as its base."""

    z: int = 0


@shmrpc.shared
class DerivedFromFrozen(Point):  # type: ignore[misc]
    """A class with annotations of its own and a frozen dataclass as its base."""

    z: float = 0.0


@shmrpc.shared(open=True)
class Open:
    """A class that takes new attributes."""

    known: int = 1

    def note(self, text: str) -> None:
        self.noted = text

    @property
    def double(self) -> int:
        return self.known * 2

    @double.setter
    def double(self, value: int) -> None:
        self.known = value // 2


@shmrpc.shared
class Checked:
    """A class that does something once its fields are set."""

    low: int
    high: int
    width: int = field(init=False)

    def __post_init__(self) -> None:
        if self.low > self.high:
            raise ValueError("low is above high")
        self.width = self.high - self.low


@shmrpc.shared
class Clashing:
    """A class whose fields have the names of what proxies have."""

    copy: str
    changed: int
    wait_changed: list[int]


@shmrpc.shared
@dataclasses.dataclass
class Box(Generic[_T]):
    """A generic class."""

    content: _T

    def replace(self, content: _T) -> _T:
        old, self.content = self.content, content
        return old


class Shape(abc.ABC):
    """An abstract class that is not shared itself."""

    @abc.abstractmethod
    def area(self) -> float:
        """Return the area."""

    def is_larger(self, than: Shape) -> bool:
        return self.area() > than.area()


@shmrpc.shared
@dataclasses.dataclass
class Square(Shape):
    """A class that is derived from an abstract one."""

    side: float

    def area(self) -> float:
        return self.side**2


@shmrpc.shared
@dataclasses.dataclass
class Node:
    """A tree."""

    value: int
    children: list[Node] = field(default_factory=list)
    by_name: dict[str, Node] = field(default_factory=dict)

    def total(self) -> int:
        return self.value + sum(child.total() for child in self.children)


@shmrpc.shared
@dataclasses.dataclass(order=True)
class Ordered:
    """Instances have an order."""

    rank: int
    name: str


@shmrpc.shared
class Called:
    """A class whose instances can be called, indexed, iterated and entered."""

    steps: list[str]

    def __call__(self, step: str) -> int:
        self.steps.append(step)
        return len(self.steps)

    def __getitem__(self, index: int) -> str:
        return str(self.steps[index])

    def __iter__(self) -> Any:
        return iter(self.steps)

    def __contains__(self, step: object) -> bool:
        return step in self.steps

    def __enter__(self) -> Called:
        self.steps.append("entered")
        return self

    def __exit__(self, *error: object) -> None:
        self.steps.append("left")


@dataclasses.dataclass
class Unmarked:
    """A dataclass that is not shared."""

    value: int
