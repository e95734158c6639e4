"""The containers of a store, as a program sees them: what is read and written goes to the shared memory."""

from __future__ import annotations

import itertools
import operator
from collections.abc import (
    Callable,
    ItemsView,
    Iterable,
    Iterator,
    KeysView,
    MutableMapping,
    MutableSequence,
    MutableSet,
    Sequence,
    Set,
    ValuesView,
)
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, Final, Protocol, Self, SupportsIndex, cast

from shmrpc import _core
from shmrpc.values.references import StoredObject

_MISSING: Final = object()
#: As many items as any list may have.
_ALL: Final = (1 << 63) - 1


class Opened(Protocol):
    """What a container asks of its store, as this process has it."""

    @property
    def find(self) -> Callable[[str, int, int, int, int], Any]:
        """Finds a container again by the name of its store, its type, its class and its place."""
        raise NotImplementedError

    def transaction(self) -> AbstractContextManager[None]:
        """Makes several operations one."""
        raise NotImplementedError

    async def wait_for_change(self, proxy: _core.Proxy, timeout: float | None) -> None:
        """Waits until a container has changed."""

    def block_for_change(self, proxy: _core.Proxy, timeout: float | None) -> None:
        """Blocks until a container has changed."""


class Shared(StoredObject):
    """What all containers of a store have in common."""

    __slots__ = ()

    if TYPE_CHECKING:  # What the native classes have.

        @property
        def _opened(self) -> Opened: ...
        @property
        def _place(self) -> tuple[int, int]: ...
        @property
        def _store_name(self) -> str: ...
        def _copy(self) -> Any: ...
        def _copy_to_put(self) -> Any: ...
        def __len__(self) -> int: ...

    def copy(self) -> Any:
        """Returns a plain copy of it and all that is in it, as it was at one moment. Raises Gone if it was removed.

        Others that change the store without a pause wait while much is copied.
        """
        return self._copy()

    def __copy__(self) -> Any:
        return self._copy()

    def __deepcopy__(self, memo: object) -> Any:
        return self._copy()

    async def changed(self, timeout: float | None = None) -> None:
        """Waits until somebody changes it, or something in it, or removes it; for ``timeout`` seconds at most.

        While another task of this loop is within a transaction it waits for the end of that, which may have changed it.
        Raises WaitTimeout, and Gone if it was removed before.
        """
        await self._opened.wait_for_change(cast(_core.Proxy, self), timeout)

    def wait_changed(self, timeout: float | None = None) -> None:
        """Waits as :meth:`changed` does, and blocks this thread meanwhile."""
        self._opened.block_for_change(cast(_core.Proxy, self), timeout)

    def __eq__(self, other: object) -> bool:
        if isinstance(other, Shared):
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
        return self._opened.find, self._reference()

    @property
    def __pydantic_serializer__(self) -> Any:
        from shmrpc.stores.serializers import pydantic_serializer  # Few programs need it.

        return pydantic_serializer()

    def _reference(self) -> tuple[str, int, int, int, int]:
        return self._store_name, *self._address()

    def _address(self) -> tuple[int, int, int, int]:
        """Its type, its class, and where it lies."""
        raise NotImplementedError


class SharedList(Shared, _core.ListProxy, MutableSequence[Any]):
    """A list of a store. Iterating goes over what was there when that began."""

    __slots__ = ()

    def _address(self) -> tuple[int, int, int, int]:
        return 16, 0, *self._place

    def __iter__(self) -> Iterator[Any]:
        return iter(self._range(0, _ALL))

    def __reversed__(self) -> Iterator[Any]:
        return iter(self._range(0, _ALL)[::-1])

    def __contains__(self, value: object) -> bool:
        return value in self._range(0, _ALL)

    def append(self, value: Any) -> None:
        """Adds a value at the end."""
        self._splice(_ALL, _ALL, [value])

    def extend(self, values: Iterable[Any]) -> None:
        """Adds values at the end, all at once."""
        # Without the length that an iterator may claim to have, as list.extend() does not believe it.
        self._splice(_ALL, _ALL, list(itertools.chain(values)))

    def __iadd__(self, values: Iterable[Any]) -> Self:  # type: ignore[misc]
        self.extend(values)
        return self

    def __imul__(self, times: SupportsIndex) -> Self:
        count = operator.index(times)

        def repeated(items: list[Any]) -> list[Any]:
            return items * count

        self._rewrite(repeated)
        return self

    def __add__(self, other: Any) -> list[Any]:
        return cast(list[Any], self.copy() + _plain(other))

    def __radd__(self, other: Any) -> list[Any]:
        return cast(list[Any], other + self.copy())

    def __mul__(self, times: SupportsIndex) -> list[Any]:
        return cast(list[Any], self.copy() * times)

    __rmul__ = __mul__

    def insert(self, index: SupportsIndex, value: Any) -> None:
        """Inserts a value before an index."""
        number = operator.index(index)
        if number < 0:
            with self._opened.transaction():
                number = max(0, number + len(self))
                self._splice(number, number, [value])
        else:
            self._splice(number, number, [value])

    def pop(self, index: SupportsIndex = -1) -> Any:
        """Removes an item and returns it, as a plain copy. Raises IndexError."""
        return self._remove(operator.index(index))

    def remove(self, value: Any) -> None:
        """Removes the first item that equals a value. Raises ValueError if none does."""
        with self._opened.transaction():
            del self[self.index(value)]

    def index(self, value: Any, start: int = 0, stop: int = _ALL) -> int:
        """Returns the index of the first item that equals a value. Raises ValueError if none does."""
        return self._range(0, _ALL).index(value, start, stop)

    def count(self, value: Any) -> int:
        """Returns how many items equal a value."""
        return self._range(0, _ALL).count(value)

    def clear(self) -> None:
        """Removes all items."""
        self._clear()

    def reverse(self) -> None:
        """Puts the items into the opposite order."""
        self._reorder(lambda items: range(len(items) - 1, -1, -1))

    def sort(self, *, key: Callable[[Any], Any] | None = None, reverse: bool = False) -> None:
        """Sorts the items, as ``list.sort`` does. Containers in it are moved, and stay what they are."""

        def order(items: list[Any]) -> Iterable[int]:
            keys = items if key is None else [key(item) for item in items]
            return sorted(range(len(items)), key=keys.__getitem__, reverse=reverse)

        self._reorder(order)

    def _reorder(self, order: Callable[[list[Any]], Iterable[int]]) -> None:
        with self._opened.transaction():
            if not self._permute(list(order(self._range(0, _ALL)))):
                raise ValueError("list modified during sort")

    def _rewrite(self, made: Callable[[list[Any]], list[Any]]) -> None:
        with self._opened.transaction():
            self._splice(0, _ALL, made(self.copy()))

    def _slice(self, index: Any) -> list[Any]:
        _check_slice(index)
        return cast(list[Any], self._range(0, _ALL)[index])

    def _set_slice(self, index: Any, values: Iterable[Any]) -> None:
        _check_slice(index)
        values = list(values)
        with self._opened.transaction():
            start, stop, step = index.indices(len(self))
            if step == 1:
                self._splice(start, max(start, stop), values)
                return
            places = range(start, stop, step)
            if len(places) != len(values):
                raise ValueError(
                    f"attempt to assign sequence of size {len(values)} to extended slice of size {len(places)}"
                )
            for place, value in zip(places, values, strict=True):
                self[place] = value

    def _delete_slice(self, index: Any) -> None:
        _check_slice(index)
        with self._opened.transaction():
            start, stop, step = index.indices(len(self))
            if step == 1:
                self._splice(start, max(start, stop), [])
                return
            for place in sorted(range(start, stop, step), reverse=True):
                del self[place]

    def __lt__(self, other: Sequence[Any]) -> bool:
        return bool(self.copy() < _plain(other))

    def __le__(self, other: Sequence[Any]) -> bool:
        return bool(self.copy() <= _plain(other))

    def __gt__(self, other: Sequence[Any]) -> bool:
        return bool(self.copy() > _plain(other))

    def __ge__(self, other: Sequence[Any]) -> bool:
        return bool(self.copy() >= _plain(other))


def _plain(value: Any) -> Any:
    return value._copy() if isinstance(value, Shared) else value


def _check_slice(index: Any) -> None:
    """Raises for what is no slice, and no index that any list may have."""
    if not isinstance(index, slice):
        if hasattr(index, "__index__"):
            raise IndexError(f"cannot fit '{type(index).__name__}' into an index-sized integer")
        raise TypeError(f"list indices must be integers or slices, not {type(index).__name__}")


def _hashable(member: Any) -> Any:
    """Returns the frozenset that equals a set, as Python looks for one in a set."""
    return frozenset(member) if isinstance(member, (set, SharedSet)) else member


class _Mapping(Shared, MutableMapping[Any, Any]):
    """What a dict of a store and the store itself have in common. Iterating goes over what was there when it began."""

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
        """Returns a plain dict of keys that all have the same value."""
        return dict.fromkeys(keys, value)

    def _ipython_key_completions_(self) -> list[Any]:
        return self._keys()

    def get(self, key: Any, default: Any = None) -> Any:
        """Returns the value of a key, or ``default``."""
        return self._get(key, default)

    def pop(self, key: Any, default: Any = _MISSING) -> Any:
        """Removes a key and returns its value, as a plain copy. Raises KeyError without a ``default``."""
        found = self._pop(key, default)
        if found is _MISSING:
            raise KeyError(key)
        return found

    def popitem(self) -> tuple[Any, Any]:
        """Removes the key that came last, and returns it with its value, as a plain copy. Raises KeyError."""
        with self._opened.transaction():
            keys = self._keys()
            if not keys:
                raise KeyError("the dict is empty")
            return keys[-1], self.pop(keys[-1])

    def setdefault(self, key: Any, default: Any = None) -> Any:
        """Returns the value of a key, which is ``default`` if there was none."""
        with self._opened.transaction():
            if key not in self:
                self[key] = default
            return self[key]

    def update(self, *others: Any, **names: Any) -> None:
        """Sets keys, all at once."""
        items = dict(*map(_plain, others), **names)
        with self._opened.transaction():
            for key, value in items.items():
                self[key] = value

    def clear(self) -> None:
        """Removes all keys."""
        self._clear()

    def keys(self) -> KeysView[Any]:
        """Returns the keys that there are now."""
        return dict.fromkeys(self._keys()).keys()

    def items(self) -> ItemsView[Any, Any]:
        """Returns the keys that there are now, with their values."""
        return dict(self._items()).items()

    def values(self) -> ValuesView[Any]:
        """Returns the values that there are now."""
        return dict(self._items()).values()

    def __or__(self, other: Any) -> dict[Any, Any]:
        return {**self.copy(), **_plain(other)}

    def __ror__(self, other: Any) -> dict[Any, Any]:
        return {**other, **self.copy()}

    def __ior__(self, other: Any) -> Self:
        self.update(other)
        return self


class SharedDict(_core.DictProxy, _Mapping):
    """A dict of a store. Keys are in the order in which they came."""

    __slots__ = ()

    def _address(self) -> tuple[int, int, int, int]:
        return 17, 0, *self._place


class SharedSet(Shared, _core.Proxy, MutableSet[Any]):
    """A set of a store."""

    __slots__ = ()

    def _address(self) -> tuple[int, int, int, int]:
        return 18, 0, *self._place

    @classmethod
    def _from_iterable(cls, members: Iterable[Any]) -> Any:
        return set(members)

    def __contains__(self, member: object) -> bool:
        return self._contains(_hashable(member))

    def __iter__(self) -> Iterator[Any]:
        return iter(self._keys())

    def add(self, member: Any) -> None:
        """Adds a member."""
        self._insert(member)

    def discard(self, member: Any) -> None:
        """Removes a member, if it is there."""
        self._discard(_hashable(member))

    def remove(self, member: Any) -> None:
        """Removes a member. Raises KeyError if it is not there."""
        if not self._discard(_hashable(member)):
            raise KeyError(member)

    def pop(self) -> Any:
        """Removes a member and returns it. Raises KeyError if there is none."""
        with self._opened.transaction():
            for member in self._keys():
                self._discard(member)
                return member
        raise KeyError("the set is empty")

    def clear(self) -> None:
        """Removes all members."""
        self._clear()

    def update(self, *others: Iterable[Any]) -> None:
        """Adds members, all at once."""
        members = set().union(*others)
        with self._opened.transaction():
            for member in members:
                self._insert(member)

    def difference_update(self, *others: Iterable[Any]) -> None:
        """Removes members, all at once."""
        members = set().union(*others)
        with self._opened.transaction():
            for member in members:
                self._discard(member)

    def intersection_update(self, *others: Iterable[Any]) -> None:
        """Keeps the members alone that are in all others."""
        with self._opened.transaction():
            self.difference_update(self.copy() - self.copy().intersection(*others))

    def symmetric_difference_update(self, other: Iterable[Any]) -> None:
        """Keeps the members that are in one of both alone."""
        with self._opened.transaction():
            members = set(other)
            common = self.copy() & members
            self.update(members)
            self.difference_update(common)

    def __ior__(self, other: Any) -> Self:
        if not isinstance(other, Set):
            return NotImplemented
        self.update(other)
        return self

    def __iand__(self, other: Any) -> Self:
        if not isinstance(other, Set):
            return NotImplemented
        self.intersection_update(other)
        return self

    def __isub__(self, other: Any) -> Self:
        if not isinstance(other, Set):
            return NotImplemented
        self.difference_update(other)
        return self

    def __ixor__(self, other: Any) -> Self:
        if not isinstance(other, Set):
            return NotImplemented
        self.symmetric_difference_update(other)
        return self

    def __or__(self, other: Any) -> set[Any]:
        return cast(set[Any], self.copy() | _plain(other))

    def __and__(self, other: Any) -> set[Any]:
        return cast(set[Any], self.copy() & _plain(other))

    def __sub__(self, other: Any) -> set[Any]:
        return cast(set[Any], self.copy() - _plain(other))

    def __xor__(self, other: Any) -> set[Any]:
        return cast(set[Any], self.copy() ^ _plain(other))

    def __ror__(self, other: Any) -> Any:
        return other | self.copy()

    def __rand__(self, other: Any) -> Any:
        return other & self.copy()

    def __rsub__(self, other: Any) -> Any:
        return other - self.copy()

    def __rxor__(self, other: Any) -> Any:
        return other ^ self.copy()

    def __lt__(self, other: Any) -> bool:
        return bool(self.copy() < _plain(other))

    def __le__(self, other: Any) -> bool:
        return bool(self.copy() <= _plain(other))

    def __gt__(self, other: Any) -> bool:
        return bool(self.copy() > _plain(other))

    def __ge__(self, other: Any) -> bool:
        return bool(self.copy() >= _plain(other))

    def isdisjoint(self, other: Iterable[Any]) -> bool:
        """Whether none of its members is in another."""
        return cast(set[Any], self.copy()).isdisjoint(other)

    def union(self, *others: Iterable[Any]) -> set[Any]:
        """Returns a plain set of the members of all."""
        return cast(set[Any], self.copy()).union(*others)

    def intersection(self, *others: Iterable[Any]) -> set[Any]:
        """Returns a plain set of the members that all have."""
        return cast(set[Any], self.copy()).intersection(*others)

    def difference(self, *others: Iterable[Any]) -> set[Any]:
        """Returns a plain set of the members that no other has."""
        return cast(set[Any], self.copy()).difference(*others)

    def symmetric_difference(self, other: Iterable[Any]) -> set[Any]:
        """Returns a plain set of the members that one of both has."""
        return cast(set[Any], self.copy()).symmetric_difference(other)

    def issubset(self, other: Iterable[Any]) -> bool:
        """Whether all its members are in another."""
        return cast(set[Any], self.copy()).issubset(other)

    def issuperset(self, other: Iterable[Any]) -> bool:
        """Whether all members of another are in it."""
        return cast(set[Any], self.copy()).issuperset(other)
