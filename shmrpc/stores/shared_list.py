"""Lists of a store."""

from __future__ import annotations

import itertools
import operator
from collections.abc import Callable, Iterable, Iterator, MutableSequence
from typing import Any, Final, Self, SupportsIndex, cast

from shmrpc import _core
from shmrpc.stores.shared_container import LIST_TYPE, SharedContainer, on_copy, on_copy_reflected

#: An index behind the end of any list.
_END: Final = (1 << 63) - 1


class SharedList(SharedContainer, _core.ListProxy, MutableSequence[Any]):
    """A list of a store. An iterator yields the items as of its creation. Containers in it come out as proxies."""

    __slots__ = ()

    def _address(self) -> tuple[int, int, int, int]:
        return LIST_TYPE, 0, *self._place

    def __iter__(self) -> Iterator[Any]:
        return iter(self._range(0, _END))

    def __reversed__(self) -> Iterator[Any]:
        return iter(self._range(0, _END)[::-1])

    def __contains__(self, value: object) -> bool:
        return value in self._range(0, _END)

    def append(self, value: Any) -> None:
        """Add a value at the end."""
        self._splice(_END, _END, [value])

    def extend(self, values: Iterable[Any]) -> None:
        """Add values at the end, in one operation."""
        # chain() hides the length that an iterator claims to have: list.extend() does not trust it either.
        self._splice(_END, _END, list(itertools.chain(values)))

    def __iadd__(self, values: Iterable[Any]) -> Self:  # type: ignore[misc]
        self.extend(values)
        return self

    def __imul__(self, times: Any) -> Self:
        count = operator.index(times)

        def repeated(items: list[Any]) -> list[Any]:
            return items * count

        self._rewrite(repeated)
        return self

    __add__, __radd__ = on_copy(operator.add), on_copy_reflected(operator.add)
    __mul__ = __rmul__ = on_copy(operator.mul)
    __lt__, __le__, __gt__, __ge__ = map(on_copy, (operator.lt, operator.le, operator.gt, operator.ge))

    def insert(self, index: SupportsIndex, value: Any) -> None:
        """Insert a value before an index, as ``list.insert`` does: beyond the ends, at the beginning or the end."""
        number = operator.index(index)
        if number < 0:
            with self._store_context.transaction():
                number = max(0, number + len(self))
                self._splice(number, number, [value])
        else:
            self._splice(number, number, [value])

    def pop(self, index: SupportsIndex = -1) -> Any:
        """Remove an item and return it, as a plain copy. Raises IndexError if there is no such item."""
        return self._remove(operator.index(index))

    def remove(self, value: Any) -> None:
        """Remove the first item that equals a value. Raises ValueError if none does."""
        with self._store_context.transaction():
            del self[self.index(value)]

    def index(self, value: Any, start: int = 0, stop: int = _END) -> int:
        """Return the index of the first item that equals a value. Raises ValueError if none does."""
        return self._range(0, _END).index(value, start, stop)

    def count(self, value: Any) -> int:
        """Return the number of items that equal a value."""
        return self._range(0, _END).count(value)

    def clear(self) -> None:
        """Remove all items."""
        self._clear()

    def reverse(self) -> None:
        """Reverse the order of the items."""
        self._reorder(lambda items: range(len(items) - 1, -1, -1))

    def sort(self, *, key: Callable[[Any], Any] | None = None, reverse: bool = False) -> None:
        """Sort the items, as ``list.sort`` does, in a transaction. Proxies of containers in the list stay valid.

        If ``key`` or a comparison raises, the order is unchanged. Raises ValueError if they change the list's length.
        """

        def order(items: list[Any]) -> Iterable[int]:
            keys = items if key is None else [key(item) for item in items]
            return sorted(range(len(items)), key=keys.__getitem__, reverse=reverse)

        self._reorder(order)

    def _reorder(self, order: Callable[[list[Any]], Iterable[int]]) -> None:
        """Move the items into the order of the indices that ``order(items)`` returns.

        Raises ValueError if ``order`` has changed the length of the list. Other processes wait while ``order`` runs.
        """
        with self._store_context.transaction():
            if not self._permute(list(order(self._range(0, _END)))):
                raise ValueError("list modified during sort")

    def _rewrite(self, make: Callable[[list[Any]], list[Any]]) -> None:
        """Replace all items by those that ``make(copy of the list)`` returns, in one transaction.

        Proxies of containers that were in the list raise ObjectDeleted afterwards.
        """
        with self._store_context.transaction():
            self._splice(0, _END, make(self.copy()))

    def _slice(self, index: Any) -> list[Any]:
        """Return the items of a slice, as of one moment.

        Raises TypeError for any other index, IndexError for an integer.
        """
        _check_slice(index)
        return cast(list[Any], self._range(0, _END)[index])

    def _set_slice(self, index: Any, values: Iterable[Any]) -> None:
        """Replace the items of a slice in one transaction.

        Raises ValueError if an extended slice has another length, and the errors of :func:`_check_slice`.
        """
        _check_slice(index)
        values = list(values)
        with self._store_context.transaction():
            start, stop, step = index.indices(len(self))
            if step == 1:
                self._splice(start, max(start, stop), values)
                return
            positions = range(start, stop, step)
            if len(positions) != len(values):
                raise ValueError(
                    f"attempt to assign sequence of size {len(values)} to extended slice of size {len(positions)}"
                )
            for position, value in zip(positions, values, strict=True):
                self[position] = value

    def _delete_slice(self, index: Any) -> None:
        """Delete the items of a slice in one transaction. Raises the errors of :func:`_check_slice`."""
        _check_slice(index)
        with self._store_context.transaction():
            start, stop, step = index.indices(len(self))
            if step == 1:
                self._splice(start, max(start, stop), [])
                return
            for position in sorted(range(start, stop, step), reverse=True):
                del self[position]


def _check_slice(index: Any) -> None:
    """Raise TypeError for a value that is no slice, and IndexError for an integer, which is beyond any list."""
    if not isinstance(index, slice):
        if hasattr(index, "__index__"):
            raise IndexError(f"cannot fit '{type(index).__name__}' into an index-sized integer")
        raise TypeError(f"list indices must be integers or slices, not {type(index).__name__}")
