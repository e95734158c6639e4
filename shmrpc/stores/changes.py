"""Iteration over the states of a container of a store."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from typing import Any, Generic, TypeVar, cast, overload

from shmrpc import _core
from shmrpc.basics.checks import public_class
from shmrpc.errors import ObjectDeleted
from shmrpc.objects.arguments import check_timeout
from shmrpc.stores.records import SharedStruct
from shmrpc.stores.shared_container import SharedContainer
from shmrpc.stores.shared_dict import SharedDict
from shmrpc.stores.shared_list import SharedList
from shmrpc.stores.store_base import StoreBase
from shmrpc.stores.store_context import StoreContext

_T = TypeVar("_T")


@public_class("shmrpc.Changes", "shmrpc.watch(store)", StoreContext)
class Changes(Generic[_T]):
    """The states of a container, from :func:`watch`: ``for`` in threads, ``async for`` in loops.

    Each copy is made after the watch for the next change has begun, so that no change in between is missed. Each
    iterator is independent. Ends once the container is removed.
    """

    __slots__ = ("_proxy", "_store_context", "_timeout")

    def __init__(self, context: StoreContext, proxy: _core.Proxy, timeout: float | None) -> None:
        self._store_context = context
        self._proxy = proxy
        self._timeout = timeout

    def __iter__(self) -> Iterator[_T]:
        while True:
            try:
                with self._store_context.watch(self._proxy) as watch:
                    yield self._proxy._copy()
                    self._store_context.block_for_change_since(self._proxy, watch, self._timeout)
            except ObjectDeleted:
                return

    async def __aiter__(self) -> AsyncIterator[_T]:
        while True:
            await self._store_context.wait_for_sibling(self._timeout)
            try:
                with self._store_context.watch(self._proxy) as watch:
                    yield self._proxy._copy()
                    await self._store_context.wait_for_change_since(self._proxy, watch, self._timeout)
            except ObjectDeleted:
                return


@overload
def watch(
    container: StoreBase | SharedDict | SharedStruct, timeout: float | None = None
) -> Changes[dict[Any, Any]]: ...
@overload
def watch(container: SharedList, timeout: float | None = None) -> Changes[list[Any]]: ...
@overload
def watch(container: _T, timeout: float | None = None) -> Changes[_T]: ...


def watch(container: Any, timeout: float | None = None) -> Changes[Any]:
    """Iterate over plain copies of a container of a store: one now, and one after each change, also of its contents.

    ``container``: an object, a struct, a dict, a list, a set or the store itself; ``for`` in threads, ``async for`` in
    loops. Several changes between two steps yield one copy, of the latest state; the last state is always yielded, and
    a state may be yielded twice. The iteration ends once the container is removed. A step raises WaitTimeout if nothing
    changes for ``timeout`` seconds (None: no limit), WaitStopped, and LocalProtocolError if the store is closed or
    within a transaction. An error ends the iteration: iterate again to go on, from the present state. Raises TypeError
    at once for another kind of object.
    """
    proxy = container._root if isinstance(container, StoreBase) else container
    if not isinstance(proxy, SharedContainer):
        raise TypeError(f"watch: expected an object of a store or a store, got {type(container).__name__}")
    context = cast(StoreContext, proxy._store_context)
    return Changes(context, cast(_core.Proxy, proxy), check_timeout(timeout))
