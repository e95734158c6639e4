"""A service with each kind of endpoint, and interceptors that log the order of events around its calls."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any, Final

import shmrpc
from shmrpc.service.interceptors import Interceptor

user: contextvars.ContextVar[str] = contextvars.ContextVar("user", default="nobody")


class Log:
    """A log of events in order, and interceptors that write to it."""

    def __init__(self) -> None:
        self.steps: list[str] = []

    def plain(self, name: str) -> Callable[[shmrpc.Call], contextlib.AbstractContextManager[None]]:
        """Return an interceptor that logs its entry and its exit with the exception."""

        @contextlib.contextmanager
        def intercept(call: shmrpc.Call) -> Iterator[None]:
            self.steps.append(f"{name} in")
            try:
                yield
            except BaseException as error:
                self.steps.append(f"{name} {type(error).__name__}")
                raise
            self.steps.append(f"{name} out")

        return intercept

    def suspending(self, name: str) -> Interceptor:
        """Return the same as an interceptor that awaits on entry and exit."""

        @contextlib.asynccontextmanager
        async def intercept(call: shmrpc.Call) -> AsyncIterator[None]:
            await asyncio.sleep(0)
            with self.plain(name)(call):
                yield
            await asyncio.sleep(0)

        return intercept


def make_service(steps: list[str] | None = None) -> shmrpc.Service:
    """Return a service with endpoints of each kind, which log their executions."""
    service = shmrpc.Service("tested")
    ran = steps if steps is not None else []

    @service.endpoint
    def plain() -> str:
        ran.append("handler")
        return user.get()

    @service.endpoint
    async def coroutine() -> str:
        ran.append("handler")
        await asyncio.sleep(0)
        return user.get()

    @service.endpoint(run_in="thread")
    def threaded() -> str:
        ran.append("handler")
        return user.get()

    @service.endpoint
    def generated() -> Iterator[str]:
        ran.append("handler")
        yield user.get()
        yield user.get()

    @service.endpoint
    async def async_generated() -> AsyncIterator[str]:
        ran.append("handler")
        yield user.get()
        await asyncio.sleep(0)
        yield user.get()

    @service.endpoint(run_in="thread")
    def thread_generated() -> Iterator[str]:
        ran.append("handler")
        yield user.get()
        yield user.get()

    @service.endpoint
    async def fails() -> None:
        raise KeyError("missing")

    @service.endpoint
    async def fails_midway() -> AsyncIterator[int]:
        yield 1
        raise KeyError("missing")

    @service.endpoint
    async def forever() -> None:
        ran.append("handler")
        await asyncio.Event().wait()

    @service.endpoint
    async def endless() -> AsyncIterator[int]:
        ran.append("handler")
        while True:
            yield 1
            await asyncio.sleep(0)

    @service.endpoint
    async def total(numbers: AsyncIterator[int]) -> int:
        ran.append("handler")
        return sum([number async for number in numbers])

    @service.endpoint
    def exchange_metadata() -> str:
        call = shmrpc.current_call()
        call.reply_metadata["answer"] = b"\x00"
        return str(call.metadata.get("question"))

    return service


#: Endpoints that answer with one result, and those that answer with a stream.
ONE_RESULT: Final = ["plain", "coroutine", "threaded"]
STREAMS: Final = ["generated", "async_generated", "thread_generated"]


async def call(client: Any, endpoint: str) -> Any:
    """Call an endpoint; return the result, or the list of a stream's items."""
    if endpoint in STREAMS:
        return [item async for item in client.call(endpoint)]
    return await client.call(endpoint)


@contextlib.contextmanager
def refuse(call: shmrpc.Call) -> Iterator[None]:
    """Reject every call."""
    raise PermissionError(f"{call.endpoint} is not for process {call.pid}")
    yield


def no_manager(call: shmrpc.Call) -> Any:
    """Return None, as an interceptor does whose author forgot the decorator."""


@contextlib.asynccontextmanager
async def as_ada_later(call: shmrpc.Call) -> AsyncIterator[None]:
    """Set the user for the call after a suspension."""
    await asyncio.sleep(0)
    with as_ada(call):
        yield


@contextlib.contextmanager
def as_ada(call: shmrpc.Call) -> Iterator[None]:
    """Set the user for the call."""
    token = user.set("Ada")
    try:
        yield
    finally:
        user.reset(token)
