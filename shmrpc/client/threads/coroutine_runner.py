"""Coroutines in a thread. Where they would wait in a loop the thread itself waits, so that they never suspend.

There is one exception: :func:`sent`. It is where a request is on its way, and others may follow before its answer.

What is run is given as a function that makes the coroutine, and a coroutine is awaited by a call without ``*``: between
its making and its first step no handler of a signal comes then. One that raised there would leave it never awaited, of
which Python warns.
"""

from __future__ import annotations

import types
from collections.abc import Awaitable, Callable, Generator
from contextlib import AbstractAsyncContextManager
from types import TracebackType
from typing import Any, Generic, TypeVar, cast

_T = TypeVar("_T")
_Make = Callable[[], Awaitable[_T]]


@types.coroutine
def sent() -> Generator[None, None, None]:
    """Suspends a coroutine whose request is on its way: it is :class:`Begun`."""
    yield


@types.coroutine
def _keep(make: _Make[_T], results: list[_T]) -> Generator[Any, Any, None]:
    # Not out of a StopIteration, which would keep the result with the exception that a signal's handler raises then.
    results.append((yield from make()))  # type: ignore[misc]


def steps(make: _Make[_T], results: list[_T]) -> Generator[None, None, None]:
    """The steps of a coroutine, from one suspension to the next; what it returns is the one result."""
    return cast("Generator[None, None, None]", _keep(make, results))


def run(make: _Make[_T]) -> _T:
    """Runs a coroutine; what it returns."""
    results: list[_T] = []
    for _ in steps(make, results):
        pass
    return results[0]


class Begun(Generic[_T]):
    """A coroutine that was run until its request is on its way."""

    def __init__(self, make: _Make[_T]) -> None:
        self._results: list[_T] = []
        self._steps = steps(make, self._results)
        next(self._steps)

    def finish(self) -> _T:
        """Runs the rest; what the coroutine returns."""
        for _ in self._steps:
            pass
        return self._results[0]

    def close(self) -> None:
        """Ends it: nobody wants the answer."""
        self._steps.close()


class Block(Generic[_T]):
    """An asynchronous context manager as a plain one."""

    def __init__(self, manager: AbstractAsyncContextManager[_T, bool | None]) -> None:
        self._manager = manager

    def __enter__(self) -> _T:
        return run(lambda: self._manager.__aenter__())

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool | None:
        return run(lambda: self._manager.__aexit__(kind, error, trace))
