"""Objects for event loops and objects for threads: each refuses the statements of the other, and says what to write."""

from __future__ import annotations

from collections.abc import Generator
from typing import TYPE_CHECKING, Any, NoReturn, Protocol, Self


class AwaitedToOpen:
    """An object that can be awaited, as a client is, though it is open already."""

    def __await__(self) -> Generator[Any, None, Self]:
        """Return the object itself: ``q = await shmrpc.queue("jobs")``; close it yourself then."""
        return self._await_open().__await__()

    async def _await_open(self) -> Self:
        return self


class _Named(Protocol):
    def _what_and_maker(self) -> tuple[str, str]:
        """Return what the object is, and the function of ``shmrpc`` and ``shmrpc.sync`` that makes such."""
        raise NotImplementedError


def _for_asyncio(subject: _Named, right: str, wrong: str) -> NoReturn:
    what, maker = subject._what_and_maker()
    raise TypeError(f"{what} is for asyncio: `{right}` in place of `{wrong}`; or shmrpc.sync.{maker}()")


def _for_threads(subject: _Named, right: str, wrong: str) -> NoReturn:
    what, maker = subject._what_and_maker()
    raise TypeError(f"{what} is for threads: `{right}` in place of `{wrong}`; or shmrpc.{maker}()")


class EnteredInLoop:
    """An object that ``with`` cannot enter, because it is for event loops."""

    if not TYPE_CHECKING:  # A type checker refuses `with` by itself.

        def __enter__(self) -> NoReturn:
            _for_asyncio(self, "async with", "with")

        def __exit__(self, *exception: object) -> None: ...


class ForAsyncio(AwaitedToOpen, EnteredInLoop):
    """The same for a handle, which can be awaited too."""


class ItemsForAsyncio(ForAsyncio):
    """The same for an object with items, which ``for`` cannot get."""

    if not TYPE_CHECKING:

        def __iter__(self) -> NoReturn:
            _for_asyncio(self, "async for", "for")


class ForThreads:
    """An object that ``async with`` cannot enter, because it blocks threads."""

    if not TYPE_CHECKING:

        async def __aenter__(self) -> NoReturn:
            _for_threads(self, "with", "async with")

        async def __aexit__(self, *exception: object) -> None: ...


class ItemsForThreads(ForThreads):
    """The same for an object with items, which ``async for`` cannot get."""

    if not TYPE_CHECKING:

        def __aiter__(self) -> NoReturn:
            _for_threads(self, "for", "async for")
