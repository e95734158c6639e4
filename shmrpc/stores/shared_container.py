"""The base of all containers of a store, which read and write the shared memory."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, Final, Protocol, cast

from shmrpc import _core
from shmrpc.values.references import StoredObject

#: The types of containers, as in the core.
LIST_TYPE: Final = 16
DICT_TYPE: Final = 17
SET_TYPE: Final = 18
RECORD_TYPE: Final = 19


class ContainerContext(Protocol):
    """The context of a store, as a container needs it."""

    @property
    def find_container(self) -> Callable[[str, int, int, int, int], Any]:
        """The function that returns a proxy of a container for the parts of its reference."""
        raise NotImplementedError

    def transaction(self) -> AbstractContextManager[None]:
        """Return a transaction for several operations, to enter with ``with``."""
        raise NotImplementedError

    async def wait_for_change(self, proxy: _core.Proxy, timeout: float | None) -> None:
        """Wait until a container has changed. Raises WaitTimeout, WaitStopped and ObjectDeleted."""

    def block_for_change(self, proxy: _core.Proxy, timeout: float | None) -> None:
        """Block until a container has changed. Raises WaitTimeout, WaitStopped and ObjectDeleted."""


class SharedContainer(StoredObject):
    """A container of a store: a list, dict, set, struct or object.

    Each operation is atomic. It raises ObjectDeleted if the container was removed; StoreBusy if another process holds
    the store for longer than ``busy_timeout``; DecodeError for a value that this process cannot read; and
    LocalProtocolError if the store is closed. A change also raises StoreFull, EncodeError for a value that the store
    cannot hold, RecursionError for one that is nested too deep, TypeError for an invalid key, and LocalProtocolError in
    a process that may not change the store, or while another task of this thread is within a transaction. Nothing has
    changed then.
    """

    __slots__ = ()

    if TYPE_CHECKING:  # The native base classes have these.

        @property
        def _store_context(self) -> ContainerContext: ...
        @property
        def _place(self) -> tuple[int, int]: ...
        @property
        def _store_name(self) -> str: ...
        def _copy(self) -> Any: ...
        def _copy_to_put(self) -> Any:
            """Return a copy to put elsewhere; of a container that this process has removed, the last contents."""

        def __len__(self) -> int: ...

    def copy(self) -> Any:
        """Return a plain copy of the container and its contents at one moment.

        Processes that change the store continuously wait while a large copy is made. Raises ObjectDeleted if the
        container was removed.
        """
        return self._copy()

    def __copy__(self) -> Any:
        return self._copy()

    def __deepcopy__(self, memo: object) -> Any:
        return self._copy()

    async def changed(self, timeout: float | None = None) -> None:
        """Wait at most ``timeout`` seconds until the container or its contents change, or the container is removed.

        If another task of this loop is within a transaction, wait for the end of the transaction instead, which may
        have changed the container. Raises WaitTimeout, WaitStopped, ObjectDeleted if the container was removed before,
        and LocalProtocolError within a transaction of this task.
        """
        await self._store_context.wait_for_change(cast(_core.Proxy, self), timeout)

    def wait_changed(self, timeout: float | None = None) -> None:
        """Block this thread until the container changes: see :meth:`changed`, which raises the same errors."""
        self._store_context.block_for_change(cast(_core.Proxy, self), timeout)

    def __eq__(self, other: object) -> bool:
        if isinstance(other, SharedContainer):
            return (self._place == other._place and self._store_name == other._store_name) or self._equals(
                other._copy()
            )
        return self._equals(other)

    def _equals(self, other: object) -> bool:
        """Return True if a plain copy of this container equals a plain value. Raises ObjectDeleted."""
        return bool(self._copy() == other)

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return repr(self._copy())

    def __reduce__(self) -> Any:
        return self._store_context.find_container, self._reference()

    @property
    def __pydantic_serializer__(self) -> Any:
        from shmrpc.stores.serializers import pydantic_serializer  # Few programs need it.

        return pydantic_serializer()

    def _reference(self) -> tuple[str, int, int, int, int]:
        """Return the arguments with which ``find_container()`` finds this container."""
        return self._store_name, *self._address()

    def _address(self) -> tuple[int, int, int, int]:
        """Return the container's type, class number (0 without a class), place and identity."""
        raise NotImplementedError


def plain_copy(value: Any) -> Any:
    """Return a plain copy of a container of a store; return any other value itself."""
    return value._copy() if isinstance(value, SharedContainer) else value


def on_copy(operation: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    """Return a method that applies a binary operator to plain copies of the container and the other operand."""

    def apply(self: SharedContainer, other: Any) -> Any:
        return operation(self.copy(), plain_copy(other))

    return apply


def on_copy_reflected(operation: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    """Return a method for a reflected operator, whose right operand is a plain copy of the container."""

    def apply(self: SharedContainer, other: Any) -> Any:
        return operation(other, self.copy())

    return apply
