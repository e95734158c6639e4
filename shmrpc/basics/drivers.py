"""Base classes of objects for event loops and for threads, which refuse the other's statements with a hint."""

from __future__ import annotations

from collections.abc import Generator
from typing import TYPE_CHECKING, Any, NoReturn, Protocol, Self


class OpenOnAwait:
    """Object that is open already, and can still be awaited as a client is."""

    def __await__(self) -> Generator[Any, None, Self]:
        """Return the object itself: ``q = await shmrpc.queue("jobs")``; its user closes it."""
        return self._await_open().__await__()

    async def _await_open(self) -> Self:
        return self


class _Named(Protocol):
    def _kind_and_factory(self) -> tuple[str, str]:
        """Return a description of the object, and the name of the function of ``shmrpc`` that makes it."""
        raise NotImplementedError


def _for_asyncio(subject: _Named, right: str, wrong: str) -> NoReturn:
    what, maker = subject._kind_and_factory()
    raise TypeError(f"{what} is for asyncio: `{right}` in place of `{wrong}`; or shmrpc.sync.{maker}()")


def _for_threads(subject: _Named, right: str, wrong: str) -> NoReturn:
    what, maker = subject._kind_and_factory()
    raise TypeError(f"{what} is for threads: `{right}` in place of `{wrong}`; or shmrpc.{maker}()")


class NotForWith:
    """Object for event loops, which ``with`` cannot enter."""

    if not TYPE_CHECKING:  # A type checker refuses `with` by itself.

        def __enter__(self) -> NoReturn:
            _for_asyncio(self, "async with", "with")

        def __exit__(self, *exception: object) -> None: ...


class AsyncioOnly(OpenOnAwait, NotForWith):
    """Handle for event loops: ``with`` is refused, and the handle can be awaited."""


class AsyncIterableOnly(AsyncioOnly):
    """Iterable handle for event loops: ``with`` and ``for`` are refused."""

    if not TYPE_CHECKING:

        def __iter__(self) -> NoReturn:
            _for_asyncio(self, "async for", "for")


class ThreadsOnly:
    """Object for threads, which ``async with`` cannot enter."""

    if not TYPE_CHECKING:

        async def __aenter__(self) -> NoReturn:
            _for_threads(self, "with", "async with")

        async def __aexit__(self, *exception: object) -> None: ...


class IterableOnly(ThreadsOnly):
    """Iterable object for threads: ``async with`` and ``async for`` are refused."""

    if not TYPE_CHECKING:

        def __aiter__(self) -> NoReturn:
            _for_threads(self, "for", "async for")
