"""Functions that run coroutines in a thread without an event loop.

Where a coroutine would wait in an event loop, the thread blocks, so that the coroutine never suspends. The one
exception is :func:`suspend_after_send`, which suspends while a request is in flight, so that more can be sent.

Callers pass a function that makes the coroutine, without arguments for it. No signal handler can then run between the
creation of the coroutine and its first step. If a handler raised there, the coroutine would never be awaited, for which
Python emits a RuntimeWarning.
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
def suspend_after_send() -> Generator[None, None, None]:
    """Suspend the calling coroutine, whose request is in flight; see :class:`StartedCoroutine`."""
    yield


@types.coroutine
def _store_result(make: _Make[_T], results: list[_T]) -> Generator[Any, Any, None]:
    """Await the coroutine, and append its return value to ``results``.

    The value is no StopIteration's, which would keep it alive if a signal handler raises there.
    """
    results.append((yield from make()))  # type: ignore[misc]


def iter_steps(make: _Make[_T], results: list[_T]) -> Generator[None, None, None]:
    """Return a generator that runs a coroutine from one suspension to the next.

    Appends the return value of the coroutine to ``results``.
    """
    return cast("Generator[None, None, None]", _store_result(make, results))


def run(make: _Make[_T]) -> _T:
    """Run a coroutine to its end, ignoring suspensions; return its result or raise its exception."""
    results: list[_T] = []
    for _ in iter_steps(make, results):
        pass
    return results[0]


class StartedCoroutine(Generic[_T]):
    """A coroutine that has run until its request is in flight.

    Creation runs the coroutine up to its first suspension, and raises its errors. The coroutine must suspend.
    """

    def __init__(self, make: _Make[_T]) -> None:
        self._results: list[_T] = []
        self._steps = iter_steps(make, self._results)
        next(self._steps)

    def finish(self) -> _T:
        """Run the coroutine to its end; return its result or raise its exception. Call once."""
        for _ in self._steps:
            pass
        return self._results[0]

    def close(self) -> None:
        """Close the coroutine of a call whose reply is not needed."""
        self._steps.close()


class SyncContext(Generic[_T]):
    """An asynchronous context manager as a plain one."""

    def __init__(self, manager: AbstractAsyncContextManager[_T, bool | None]) -> None:
        self._manager = manager

    def __enter__(self) -> _T:
        return run(lambda: self._manager.__aenter__())

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool | None:
        return run(lambda: self._manager.__aexit__(kind, error, trace))
