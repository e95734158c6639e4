"""The base of all containers of a store, which read and write the shared memory."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, Protocol, cast

from shmrpc import _core
from shmrpc.values.references import StoredObject


class ContainerContext(Protocol):
    """The context of a store, as a container needs it."""

    @property
    def find_container(self) -> Callable[[str, int, int, int, int], Any]:
        """The function that finds a container by the parts of its reference."""
        raise NotImplementedError

    def transaction(self) -> AbstractContextManager[None]:
        """Return a transaction for several operations."""
        raise NotImplementedError

    async def wait_for_change(self, proxy: _core.Proxy, timeout: float | None) -> None:
        """Wait until a container has changed."""

    def block_for_change(self, proxy: _core.Proxy, timeout: float | None) -> None:
        """Block until a container has changed."""


class SharedContainer(StoredObject):
    """A container of a store: a list, dict, set, struct or object."""

    __slots__ = ()

    if TYPE_CHECKING:  # The native base classes have these.

        @property
        def _store_context(self) -> ContainerContext: ...
        @property
        def _place(self) -> tuple[int, int]: ...
        @property
        def _store_name(self) -> str: ...
        def _copy(self) -> Any: ...
        def _copy_to_put(self) -> Any: ...
        def __len__(self) -> int: ...

    def copy(self) -> Any:
        """Return a plain copy of the container and its contents, as they were at one moment.

        Processes that change the store continuously wait while much is copied. Raises ObjectDeleted if it was removed.
        """
        return self._copy()

    def __copy__(self) -> Any:
        return self._copy()

    def __deepcopy__(self, memo: object) -> Any:
        return self._copy()

    async def changed(self, timeout: float | None = None) -> None:
        """Wait until the container or its contents change, or it is removed; for ``timeout`` seconds at most.

        While another task of this loop is within a transaction, it waits for the end of that, which may have changed
        the container. Raises WaitTimeout, and ObjectDeleted if it was removed before.
        """
        await self._store_context.wait_for_change(cast(_core.Proxy, self), timeout)

    def wait_changed(self, timeout: float | None = None) -> None:
        """Wait as :meth:`changed` does, and block this thread meanwhile."""
        self._store_context.block_for_change(cast(_core.Proxy, self), timeout)

    def __eq__(self, other: object) -> bool:
        if isinstance(other, SharedContainer):
            return (self._place == other._place and self._store_name == other._store_name) or self._equals(
                other._copy()
            )
        return self._equals(other)

    def _equals(self, other: object) -> bool:
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
        return self._store_name, *self._address()

    def _address(self) -> tuple[int, int, int, int]:
        """Return the numbers of its type and its class, its place and its number."""
        raise NotImplementedError


def plain_copy(value: Any) -> Any:
    """Return a plain copy of a container of a store, and any other value itself."""
    return value._copy() if isinstance(value, SharedContainer) else value


def on_copy(operation: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    """Make a method that applies a binary operator to plain copies of the container and the other operand."""

    def apply(self: SharedContainer, other: Any) -> Any:
        return operation(self.copy(), plain_copy(other))

    return apply


def on_copy_reflected(operation: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    """Make a method that applies a binary operator whose right operand is a plain copy of the container."""

    def apply(self: SharedContainer, other: Any) -> Any:
        return operation(other, self.copy())

    return apply
