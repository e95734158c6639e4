"""Base classes of objects for event loops and of objects for threads.

A statement that belongs to the other kind, such as ``with`` for an object of a loop, raises TypeError with a hint.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import TYPE_CHECKING, Any, NoReturn, Protocol, Self


class OpenOnAwait:
    """Object that is open from the start; ``await`` returns it at once, as it returns a client once that is open."""

    def __await__(self) -> Generator[Any, None, Self]:
        """Return the object itself, as in ``q = await shmrpc.queue("jobs")``. The caller closes it."""
        return self._await_open().__await__()

    async def _await_open(self) -> Self:
        """Return the object at once. A derived class may wait before."""
        return self


class _Named(Protocol):
    """Object that describes itself for the hints."""

    def _kind_and_factory(self) -> tuple[str, str]:
        """Return a description of the object, and the name of the function of ``shmrpc`` that makes it."""
        raise NotImplementedError


def _raise_for_asyncio(subject: _Named, right: str, wrong: str) -> NoReturn:
    """Raise TypeError, because the statement ``wrong`` was used with an object for event loops."""
    what, maker = subject._kind_and_factory()
    raise TypeError(f"{what} is for asyncio: `{right}` in place of `{wrong}`; or shmrpc.sync.{maker}()")


def _raise_for_threads(subject: _Named, right: str, wrong: str) -> NoReturn:
    """Raise TypeError, because the statement ``wrong`` was used with an object for threads."""
    what, maker = subject._kind_and_factory()
    raise TypeError(f"{what} is for threads: `{right}` in place of `{wrong}`; or shmrpc.{maker}()")


class NotForWith:
    """Object for event loops: ``with`` raises TypeError. Derived classes define ``_kind_and_factory``; see _Named."""

    if not TYPE_CHECKING:  # A type checker refuses `with` by itself.

        def __enter__(self) -> NoReturn:
            _raise_for_asyncio(self, "async with", "with")

        def __exit__(self, *exception: object) -> None: ...


class AsyncioOnly(OpenOnAwait, NotForWith):
    """Handle for event loops: ``with`` raises TypeError, ``await`` returns the handle."""


class AsyncIterableOnly(AsyncioOnly):
    """Iterable handle for event loops: ``with`` and ``for`` raise TypeError."""

    if not TYPE_CHECKING:

        def __iter__(self) -> NoReturn:
            _raise_for_asyncio(self, "async for", "for")


class ThreadsOnly:
    """Object for threads: ``async with`` raises TypeError. Derived classes define ``_kind_and_factory``; see _Named."""

    if not TYPE_CHECKING:

        async def __aenter__(self) -> NoReturn:
            _raise_for_threads(self, "with", "async with")

        async def __aexit__(self, *exception: object) -> None: ...


class IterableOnly(ThreadsOnly):
    """Iterable object for threads: ``async with`` and ``async for`` raise TypeError."""

    if not TYPE_CHECKING:

        def __aiter__(self) -> NoReturn:
            _raise_for_threads(self, "for", "async for")
