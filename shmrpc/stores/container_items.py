"""Items of all kinds of containers: objects, structs, dicts, lists and the store itself."""

from __future__ import annotations

import sys
from typing import Any

from shmrpc.stores.records import SharedStruct
from shmrpc.stores.shared_dict import SharedDict
from shmrpc.stores.shared_list import SharedList
from shmrpc.stores.store_base import StoreBase


def get_buffer(container: Any, key: Any) -> memoryview:
    """Return the bytes of an item of a container, as a memoryview.

    ``container`` and ``key``: see :func:`shmrpc.atomic.add`. For a bytearray, an array or a tensor, the view is the
    shared memory itself, and writable: the memory stays valid as long as the view lives, even if the item is removed.
    In a process that may not change the store, the view is read-only, and of a tensor it is a view of a copy. For
    bytes, and for a str as UTF-8, which never change, the view is a read-only copy. Raises TypeError for other values;
    KeyError, IndexError or AttributeError if there is no such item; ObjectDeleted; and LocalProtocolError for a
    bytearray, array or tensor within a transaction.
    """
    value = read_item(container, key)
    if isinstance(value, str):
        return memoryview(value.encode())
    if isinstance(value, (bytes, memoryview)):
        return memoryview(value)
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(value, torch.Tensor):
        value = value.numpy()
    numpy = sys.modules.get("numpy")
    if numpy is not None and isinstance(value, numpy.ndarray):
        return memoryview(value.reshape(-1).view("u1"))
    raise TypeError(
        f"get_buffer: expected bytes, bytearray, str, an array or a tensor for {key!r}, got {type(value).__name__}"
    )


def read_item(container: Any, key: Any) -> Any:
    """Return an item of a container: a field of an object, or ``container[key]``.

    Raises KeyError, IndexError or AttributeError if there is none, and ObjectDeleted.
    """
    return getattr(container, key) if _is_record(container) else container[key]


def write_item(container: Any, key: Any, value: Any) -> None:
    """Set an item of a container: a field of an object, or ``container[key]``. Raises what the assignment raises."""
    if _is_record(container):
        setattr(container, key, value)
    else:
        container[key] = value


def _is_record(container: Any) -> bool:
    """Return True if the items of a container are attributes: for all values but stores, dicts, lists and structs."""
    return not isinstance(container, (StoreBase, SharedDict, SharedList, SharedStruct))
