"""Sets of a store."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Iterator, MutableSet, Set
from typing import Any, cast

from shmrpc import _core
from shmrpc.stores.shared_container import SET_TYPE, SharedContainer, on_copy, on_copy_reflected


def _in_place(update: Callable[[Any, Any], None]) -> Callable[[Any, Any], Any]:
    """Return a method for an in-place operator: ``update(self, other)`` for a set, NotImplemented for other values."""

    def apply(self: SharedSet, other: Any) -> Any:
        if not isinstance(other, Set):
            return NotImplemented
        update(self, other)
        return self

    return apply


class SharedSet(SharedContainer, _core.Proxy, MutableSet[Any]):
    """A set of a store."""

    __slots__ = ()

    def _address(self) -> tuple[int, int, int, int]:
        return SET_TYPE, 0, *self._place

    @classmethod
    def _from_iterable(cls, members: Iterable[Any]) -> Any:
        return set(members)

    def __contains__(self, member: object) -> bool:
        return self._contains(_hashable(member))

    def __iter__(self) -> Iterator[Any]:
        return iter(self._keys())

    def add(self, member: Any) -> None:
        """Add a member."""
        self._insert(member)

    def discard(self, member: Any) -> None:
        """Remove a member, if it is there."""
        self._discard(_hashable(member))

    def remove(self, member: Any) -> None:
        """Remove a member. Raises KeyError if it is not there."""
        if not self._discard(_hashable(member)):
            raise KeyError(member)

    def pop(self) -> Any:
        """Remove any member and return it. Raises KeyError if there is none."""
        with self._store_context.transaction():
            for member in self._keys():
                self._discard(member)
                return member
        raise KeyError("the set is empty")

    def clear(self) -> None:
        """Remove all members."""
        self._clear()

    def update(self, *others: Iterable[Any]) -> None:
        """Add the members of all others, in one transaction."""
        members = set().union(*others)
        with self._store_context.transaction():
            for member in members:
                self._insert(member)

    def difference_update(self, *others: Iterable[Any]) -> None:
        """Remove the members of all others, in one transaction."""
        members = set().union(*others)
        with self._store_context.transaction():
            for member in members:
                self._discard(member)

    def intersection_update(self, *others: Iterable[Any]) -> None:
        """Keep only the members that are in all others, in one transaction."""
        with self._store_context.transaction():
            self.difference_update(self.copy() - self.copy().intersection(*others))

    def symmetric_difference_update(self, other: Iterable[Any]) -> None:
        """Keep the members that are not in the other, and add those of the other that were not here. Atomic."""
        with self._store_context.transaction():
            members = set(other)
            common = self.copy() & members
            self.update(members)
            self.difference_update(common)

    __ior__ = _in_place(update)
    __iand__ = _in_place(intersection_update)
    __isub__ = _in_place(difference_update)
    __ixor__ = _in_place(symmetric_difference_update)

    __or__, __and__, __sub__, __xor__ = map(on_copy, (operator.or_, operator.and_, operator.sub, operator.xor))
    __ror__, __rand__, __rsub__, __rxor__ = map(
        on_copy_reflected, (operator.or_, operator.and_, operator.sub, operator.xor)
    )
    __lt__, __le__, __gt__, __ge__ = map(on_copy, (operator.lt, operator.le, operator.gt, operator.ge))

    def isdisjoint(self, other: Iterable[Any]) -> bool:
        """Return True if no member is in the other."""
        return cast(set[Any], self.copy()).isdisjoint(other)

    def union(self, *others: Iterable[Any]) -> set[Any]:
        """Return a plain set of the members of all."""
        return cast(set[Any], self.copy()).union(*others)

    def intersection(self, *others: Iterable[Any]) -> set[Any]:
        """Return a plain set of the members that are in all."""
        return cast(set[Any], self.copy()).intersection(*others)

    def difference(self, *others: Iterable[Any]) -> set[Any]:
        """Return a plain set of the members that are in no other."""
        return cast(set[Any], self.copy()).difference(*others)

    def symmetric_difference(self, other: Iterable[Any]) -> set[Any]:
        """Return a plain set of the members that are in either, but not in both."""
        return cast(set[Any], self.copy()).symmetric_difference(other)

    def issubset(self, other: Iterable[Any]) -> bool:
        """Return True if all members are in the other."""
        return cast(set[Any], self.copy()).issubset(other)

    def issuperset(self, other: Iterable[Any]) -> bool:
        """Return True if all members of the other are in this one."""
        return cast(set[Any], self.copy()).issuperset(other)


def _hashable(member: Any) -> Any:
    """Return the frozenset that equals a set, because sets find a set so; return any other value itself."""
    return frozenset(member) if isinstance(member, (set, SharedSet)) else member
