"""What an object of a store is now, and again whenever it has changed."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from typing import Any, Generic, TypeVar, cast, overload

from shmrpc import _core
from shmrpc.basics.checks import public_class
from shmrpc.errors import Gone
from shmrpc.objects.arguments import check_timeout
from shmrpc.stores.proxies import Shared, SharedDict, SharedList
from shmrpc.stores.records import SharedStruct
from shmrpc.stores.store_base import StoreBase
from shmrpc.stores.store_context import Opened

_T = TypeVar("_T")


@public_class("shmrpc.Changes", "shmrpc.changes(store)", Opened)
class Changes(Generic[_T]):
    """What :func:`changes` returns: ``for`` in threads, ``async for`` in loops.

    Each copy is made after the wait for the next change has begun, so that no change comes between the two.
    """

    __slots__ = ("_opened", "_proxy", "_timeout")

    def __init__(self, opened: Opened, proxy: _core.Proxy, timeout: float | None) -> None:
        self._opened = opened
        self._proxy = proxy
        self._timeout = timeout

    def __iter__(self) -> Iterator[_T]:
        while True:
            try:
                with self._opened.watch(self._proxy) as watch:
                    yield self._proxy._copy()
                    self._opened.block_for(self._proxy, watch, self._timeout)
            except Gone:
                return

    async def __aiter__(self) -> AsyncIterator[_T]:
        while True:
            await self._opened.apart(self._timeout)
            try:
                with self._opened.watch(self._proxy) as watch:
                    yield self._proxy._copy()
                    await self._opened.wait_for(self._proxy, watch, self._timeout)
            except Gone:
                return


@overload
def changes(
    container: StoreBase | SharedDict | SharedStruct, timeout: float | None = None
) -> Changes[dict[Any, Any]]: ...
@overload
def changes(container: SharedList, timeout: float | None = None) -> Changes[list[Any]]: ...
@overload
def changes(container: _T, timeout: float | None = None) -> Changes[_T]: ...


def changes(container: Any, timeout: float | None = None) -> Changes[Any]:
    """Yields a plain copy of a container of a store now, and again whenever it, or something in it, has changed.

    ``container``: an object, a struct, a dict, a list, a set or the store itself; ``for`` in threads, ``async for`` in
    loops. What changes several times before it is looked at again comes once, as it is then; the last change always
    comes, and a state may come twice. It ends once the container is removed. Raises WaitTimeout if nothing changes for
    ``timeout`` seconds.
    """
    proxy = container._root if isinstance(container, StoreBase) else container
    if not isinstance(proxy, Shared):
        raise TypeError(f"changes: expected an object of a store or a store, got {type(container).__name__}")
    opened = cast(Opened, proxy._opened)
    return Changes(opened, cast(_core.Proxy, proxy), check_timeout(timeout))
