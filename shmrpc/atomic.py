"""Atomic operations on an item of a store, during which no other process changes the item."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from shmrpc._core import Proxy, add_to
from shmrpc.stores.container_items import read_item, write_item
from shmrpc.stores.store_base import StoreBase
from shmrpc.stores.store_context import StoreContext
from shmrpc.stores.transaction import Transaction

__all__ = ["add", "compare_and_set", "update"]

_T = TypeVar("_T")


def add(container: Any, key: Any, by: float) -> Any:
    """Add to a number in a store atomically, and return the sum.

    ``container``: an object (``key``: the name of a field), a struct (a member of its enumeration), a dict or the store
    itself (a key), or a list (an index). Waits up to the ``busy_timeout`` of the store for another
    transaction.

    Raises KeyError, IndexError or AttributeError if there is no such item, TypeError if ``by`` cannot be added
    to it or ``container`` is no container, ObjectDeleted, StoreBusy after the wait, StoreFull, and LocalProtocolError
    in a store of another single writer or while another task of this thread is within a transaction.
    """
    try:
        total = add_to(container, key, by)
    except KeyError:
        raise KeyError(key) from None  # The error of the core has no key.
    except TypeError:
        _transaction("add", container)  # Raises a better error if it is no container.
        raise
    if total is None:  # The core adds only numbers of up to 64 bits.
        total = update(container, key, lambda value: value + by)
    return total


def compare_and_set(container: Any, key: Any, expected: Any, value: Any) -> bool:
    """Set an item of a container to a value if the item equals ``expected``, atomically. Returns True if it was set.

    ``container``, ``key`` and errors: see :func:`add`; but the item may be of any type.
    """
    with _transaction("compare_and_set", container):
        if read_item(container, key) != expected:
            return False
        write_item(container, key, value)
    return True


def update(container: Any, key: Any, function: Callable[[Any], _T]) -> _T:
    """Set an item of a container to ``function(item)`` atomically, and return the new value.

    ``container``, ``key`` and errors: see :func:`add`; but the item may be of any type. While ``function`` runs, no
    other member can change the store. If it raises, the item stays unchanged.
    """
    with _transaction("update", container):
        value = function(read_item(container, key))
        write_item(container, key, value)
    return value


def _transaction(what: str, container: Any) -> Transaction:
    """Return a transaction of the store of a container, not begun; within a transaction it becomes a part of that.

    Raises TypeError, naming ``what``, if it is no container.
    """
    if not isinstance(container, (StoreBase, Proxy)):
        raise TypeError(f"{what}: expected an object of a store or a store, got {type(container).__name__}")
    context: StoreContext = container._store_context
    return context.transaction()
