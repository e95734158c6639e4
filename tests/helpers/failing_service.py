"""A service that fails in every way, and passes on the errors of its own calls."""

from __future__ import annotations

import dataclasses
import decimal
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import shmrpc

service = shmrpc.Service("failing")


class OutOfStock(Exception):
    """A registered exception with its own constructor, and a field beyond its arguments."""

    def __init__(self, item: str, left: int) -> None:
        super().__init__(f"{item}: {left} left")
        self.item, self.left = item, left
        self.tags = ("a", decimal.Decimal("1.50"))


@dataclasses.dataclass(frozen=True)
class Refused(Exception):
    """A registered exception that is a frozen dataclass."""

    reason: str
    codes: frozenset[int] = frozenset({7})


class LostFile(FileNotFoundError):
    """A registered exception whose base OSError keeps fields beyond its arguments."""


class Slotted(ValueError):
    """A registered exception with a field in a slot."""

    __slots__ = ("place",)

    def __init__(self, place: int) -> None:
        super().__init__("slotted")
        self.place = place


class Coded(shmrpc.ApplicationError):
    """A registered application error of the program."""

    def __init__(self, order: int) -> None:
        super().__init__("not_found", f"no order {order}", order=order)


class ByFunctions(Exception):
    """An exception that is registered with functions."""

    def __init__(self, *, temperature: float) -> None:
        super().__init__(f"{temperature} degrees")
        self.temperature = temperature


class Derived(shmrpc.ApplicationError):
    """An application error that is not registered."""

    def __init__(self) -> None:
        super().__init__("derived", size=3)


class Unsendable:
    """A value that cannot be sent."""

    def __repr__(self) -> str:
        return "<unsendable>"


class UnknownKey(KeyError):
    """An exception that is not registered."""


for registered in (OutOfStock, Refused, LostFile, Slotted, Coded):
    shmrpc.register(registered)
shmrpc.register(ByFunctions, lambda error: error.temperature, lambda value: ByFunctions(temperature=value))

MAKERS: dict[str, Callable[[], BaseException]] = {
    "stock": lambda: OutOfStock("ball", 0),
    "refused": lambda: Refused("no", frozenset({1, 2})),
    "file": lambda: LostFile(2, "No such file", "/nowhere"),
    "slotted": lambda: Slotted(5),
    "coded": lambda: Coded(7),
    "functions": lambda: ByFunctions(temperature=1.5),
    "derived": Derived,
    "application": lambda: shmrpc.ApplicationError("exhausted", "no more", left={1, 2}, at=(1, 2)),
    "unsendable detail": lambda: shmrpc.ApplicationError("odd", "", good=1, bad=Unsendable()),
    "large detail": lambda: shmrpc.ApplicationError("large", data=bytes(100_000)),
    "unsendable field": lambda: OutOfStock("ball", Unsendable()),  # type: ignore[arg-type]
    "key": lambda: KeyError("k"),
    "tuple key": lambda: KeyError((1, 2)),
    "derived key": lambda: UnknownKey("k"),
    "lookup": lambda: LookupError("here", 5),
    "os": lambda: FileNotFoundError(2, "No such file", "/nowhere"),
    "rename": lambda: OSError(18, "Cross-device link", "/a", None, "/b"),
    "unicode": lambda: UnicodeDecodeError("utf-8", b"\xff", 0, 1, "invalid start byte"),
    "import": lambda: ModuleNotFoundError("No module named 'absent'", name="absent", path="/here"),
    "name": lambda: NameError("name 'x' is not defined", name="x"),
    "attribute": lambda: AttributeError("no x", name="x", obj=object()),
    "group": lambda: ExceptionGroup("several", [ValueError(1), KeyError("k")]),
    "unencodable": lambda: ValueError(Unsendable()),
    "custom": lambda: type("Custom", (Exception,), {"__module__": "elsewhere"})("text", 7),
    "overloaded": lambda: shmrpc.Overloaded("full"),
    "deadline": lambda: shmrpc.DeadlineExceeded("late"),
    "lost": lambda: shmrpc.ConnectionLost("gone"),
    "unavailable": lambda: shmrpc.ServiceUnavailable("nobody"),
    "endpoint": lambda: shmrpc.EndpointNotFound("none such"),
    "arguments": lambda: shmrpc.InvalidArguments("of another call"),
    "long": lambda: ValueError("x" * 50_000),
}


def make(kind: str) -> BaseException:
    """Return a new exception of this kind."""
    return MAKERS[kind]()


@service.endpoint
def fail(kind: str) -> None:
    raise make(kind)


@service.endpoint(run_in="thread")
def fail_in_thread(kind: str) -> None:
    raise make(kind)


@service.endpoint(run_in="process")
def fail_in_process(kind: str) -> None:
    raise make(kind)


@service.endpoint
async def pass_on(kind: str, hops: int) -> None:
    """Fail in a call that is that many calls away."""
    async with shmrpc.connect(service.name) as client:
        if hops == 1:
            await client.fail(kind)
        await client.pass_on(kind, hops - 1)


@service.endpoint(run_in="thread")
def pass_on_in_thread(kind: str) -> None:
    with shmrpc.sync.connect(service.name) as client:
        client.fail(kind)


@service.endpoint
async def pass_on_noted(kind: str) -> None:
    """Re-raise the exception of another call with a cause and a note."""
    async with shmrpc.connect(service.name) as client:
        try:
            await client.fail(kind)
        except shmrpc.RemoteError as error:
            error.add_note("a note of the relay's")
            raise error from ValueError("why it was passed on")


@service.endpoint
async def stream(kind: str) -> AsyncIterator[int]:
    yield 1
    raise make(kind)


@service.endpoint
def plain_stream(kind: str) -> Iterator[int]:
    yield 1
    raise make(kind)


@service.endpoint
async def pass_stream(kind: str) -> AsyncIterator[int]:
    async with shmrpc.connect(service.name) as client:
        async for item in client.stream(kind):
            yield item


@service.endpoint
async def caught(items: AsyncIterator[Any]) -> list[Any]:
    """Return how the failure of the caller's source appears in the handler."""
    try:
        async for _ in items:
            pass
    except shmrpc.RemoteError as error:
        own = {n: v for n, v in vars(error).items() if n in ("item", "left", "code", "details", "tags")}
        return [type(error).__name__, isinstance(error, OutOfStock), own]
    return []


@service.endpoint
def give_back(kind: str) -> list[Any]:
    """Return the exception as a value."""
    return [make(kind)]
