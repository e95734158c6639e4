"""Dicts of a store."""

from __future__ import annotations

from collections.abc import ItemsView, Iterable, Iterator, KeysView, MutableMapping, ValuesView
from typing import TYPE_CHECKING, Any, Final, Self

from shmrpc import _core
from shmrpc.stores.shared_container import DICT_TYPE, SharedContainer, plain_copy

#: The default of ``pop()`` if the caller gives none.
_MISSING: Final = object()


class DictMethods(SharedContainer, MutableMapping[Any, Any]):
    """The methods of a dict of a store, and of the store itself. An iterator yields the keys as of its creation.

    Values that are containers come out as proxies, except from ``pop()``, ``popitem()`` and ``copy()``.
    """

    __slots__ = ()

    if TYPE_CHECKING:

        def _get(self, key: Any, default: Any, /) -> Any: ...
        def _pop(self, key: Any, default: Any, /) -> Any: ...
        def _keys(self) -> list[Any]: ...
        def _items(self) -> list[tuple[Any, Any]]: ...
        def _clear(self) -> None: ...

    def __iter__(self) -> Iterator[Any]:
        return iter(self._keys())

    def __reversed__(self) -> Iterator[Any]:
        return iter(self._keys()[::-1])

    @staticmethod
    def fromkeys(keys: Iterable[Any], value: Any = None) -> dict[Any, Any]:
        """Return a plain dict in which all keys have the same value."""
        return dict.fromkeys(keys, value)

    def _ipython_key_completions_(self) -> list[Any]:
        return self._keys()

    def get(self, key: Any, default: Any = None) -> Any:
        """Return the value of a key, or ``default`` if there is no such key."""
        return self._get(key, default)

    def pop(self, key: Any, default: Any = _MISSING) -> Any:
        """Remove a key and return its value, as a plain copy.

        Returns ``default`` if there is no such key, and raises KeyError if none is given.
        """
        value = self._pop(key, default)
        if value is _MISSING:
            raise KeyError(key)
        return value

    def popitem(self) -> tuple[Any, Any]:
        """Remove the last key; return the key and its value, as a plain copy. Raises KeyError if the dict is empty."""
        with self._store_context.transaction():
            keys = self._keys()
            if not keys:
                raise KeyError("the dict is empty")
            return keys[-1], self.pop(keys[-1])

    def setdefault(self, key: Any, default: Any = None) -> Any:
        """Return the value of a key; if there is no such key, add it with a copy of ``default`` first. Atomic."""
        with self._store_context.transaction():
            if key not in self:
                self[key] = default
            return self[key]

    def update(self, *others: Any, **names: Any) -> None:
        """Set the items of one mapping, or of pairs, and keyword arguments, in one transaction.

        Raises TypeError for more than one mapping.
        """
        items = dict(*map(plain_copy, others), **names)
        with self._store_context.transaction():
            for key, value in items.items():
                self[key] = value

    def clear(self) -> None:
        """Remove all keys."""
        self._clear()

    def keys(self) -> KeysView[Any]:
        """Return the present keys: a view of a copy, which later changes do not reach."""
        return dict.fromkeys(self._keys()).keys()

    def items(self) -> ItemsView[Any, Any]:
        """Return the present keys and their values: a view of a copy, which later changes of the dict do not reach."""
        return dict(self._items()).items()

    def values(self) -> ValuesView[Any]:
        """Return the present values: a view of a copy, which later changes of the dict do not reach."""
        return dict(self._items()).values()

    def __or__(self, other: Any) -> dict[Any, Any]:
        return {**self.copy(), **plain_copy(other)}

    def __ror__(self, other: Any) -> dict[Any, Any]:
        return {**other, **self.copy()}

    def __ior__(self, other: Any) -> Self:
        self.update(other)
        return self


class SharedDict(_core.DictProxy, DictMethods):
    """A dict of a store. Keys are in the order of their insertion."""

    __slots__ = ()

    def _address(self) -> tuple[int, int, int, int]:
        return DICT_TYPE, 0, *self._place
