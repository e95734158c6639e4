"""What stores are in loops and in threads alike: all that does not wait."""

from __future__ import annotations

import dataclasses
import enum
import functools
import os
import sys
import weakref
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final, Literal, NoReturn, Self, TypeVar, cast

from shmrpc import _core
from shmrpc._core import add_to
from shmrpc.basics.checks import check_bytes, check_flag, check_seconds
from shmrpc.errors import DecodeError, WaitTimeout
from shmrpc.objects.arguments import check_timeout
from shmrpc.objects.handle import Handle, closes_on_error, open_object
from shmrpc.objects.wait_queue import wait_stopped_error
from shmrpc.stores.proxies import SharedDict, SharedList, _Mapping
from shmrpc.stores.records import NewStruct, SharedStruct, struct_class
from shmrpc.stores.store_context import Opened, StoreUse, open_handle
from shmrpc.stores.transaction import Transaction

_T = TypeVar("_T")

#: Seconds for which a single operation waits for another process that changes the store.
_PATIENCE: Final = 1.0
#: Who may change a store.
_WRITABLE: Final = ("all", "owner")


@dataclasses.dataclass(frozen=True)
class StoreStats:
    """What can be seen of a store."""

    #: Bytes of memory that the values take, with what is free for the next ones.
    memory: int
    #: Of these, those that are free.
    free: int
    #: As many bytes as there may be.
    max_memory: int
    #: How many lists, dicts, sets, objects and buffers were ever made.
    made: int
    #: How many processes have it open.
    members: int
    #: The process that changes it just now, or is within a transaction; None if none does.
    holder: int | None
    #: The process that alone changes it, of a store opened with ``writable="owner"``; None if there is none.
    owner: int | None


def open_store(name: str, max_memory: int | str, writable: Literal["all", "owner"]) -> _core.SharedObject:
    """Opens a store, and makes it if nobody else has. Raises TypeError and ValueError for what no store can be."""
    if writable not in _WRITABLE:
        raise ValueError(f"store {name!r}: writable: expected 'all' or 'owner', got {writable!r}")
    size = check_bytes(f"store {name!r}: max_memory", max_memory)
    return open_object(name, "store", size, (_WRITABLE.index(writable), 0))


class StoreBase(_core.Store, StoreUse, _Mapping):
    """What a store is in loops and in threads alike."""

    _shared: Opened
    _all: SharedDict

    @classmethod
    @closes_on_error
    def _wrap(cls, name: _core.SharedObject, patience: float = _PATIENCE, pickle: bool = False) -> Self:
        """Makes a handle of a name that this process has opened."""
        check_seconds("patience", patience)
        check_flag("pickle", pickle)
        return open_handle(name, float(patience), pickle, functools.partial(cls._made, name, float(patience)))

    @classmethod
    def _made(cls, name: _core.SharedObject, patience: float, opened: Opened) -> Self:
        store = _core.Store.__new__(cls, name, opened, patience)
        opened._carrier = opened.values.carrier = store._carrier
        store._name = name
        store._wait_queues = weakref.WeakKeyDictionary()
        store._shared = opened
        at, identity = store._root_place
        store._all = SharedDict(store._carrier, at, identity)
        return store

    def close(self) -> None:
        """Closes it. Again: nothing.

        Objects that came out of it can be used as long as another handle of the store is open in this process. With the
        last one this process leaves it, and with the last process the store is gone. Waits end with LocalProtocolError.
        """
        super().close()
        self._shared.remove(self)

    def stop(self) -> None:
        """Ends all waits of this handle, and those for objects of the store in this process, with WaitStopped.

        So do those that begin before :meth:`resume`, or before it is closed.
        """
        super().stop()
        self._shared.stop_for(self, True)

    def resume(self) -> None:
        """Lets this handle wait again after :meth:`stop`."""
        super().resume()
        self._shared.stop_for(self, False)

    __hash__ = object.__hash__  # type: ignore[assignment]

    def __eq__(self, other: object) -> bool:
        return self is other or self._root == (other._root if isinstance(other, StoreBase) else other)

    def __setattr__(self, name: str, value: Any) -> None:
        if not name.startswith("_"):
            raise AttributeError(
                f"{type(self).__name__!r} object has no attribute {name!r} that can be set; a key of the store is set "
                f"by store[{name!r}] = ..."
            )
        super().__setattr__(name, value)

    @property
    def _place(self) -> tuple[int, int]:
        return self._root._place

    @property
    def _store_name(self) -> str:
        return self._name.name

    def __repr__(self) -> str:
        return Handle.__repr__(self)

    def _reference(self) -> NoReturn:
        what, instead = self._copy_remedy()
        raise TypeError(f"{what} cannot be sent: {instead}; or send an object of it")

    # --- as a mapping ---

    def copy(self) -> dict[Any, Any]:
        """Returns a plain dict of all that is in it, as it was at one moment.

        Others that change the store without a pause wait while much is copied.
        """
        return cast(dict[Any, Any], self._root.copy())

    def _copy(self) -> Any:
        return self._root._copy()

    def _copy_to_put(self) -> Any:
        return self._root._copy()

    async def changed(self, timeout: float | None = None) -> None:
        """Waits until somebody changes anything in it, for ``timeout`` seconds at most. Raises WaitTimeout.

        While another task of this loop is within a transaction it waits for the end of that, which may have changed it.
        """
        await self._root.changed(timeout)

    def wait_changed(self, timeout: float | None = None) -> None:
        """Waits as :meth:`changed` does, and blocks this thread meanwhile."""
        self._root.wait_changed(timeout)

    def _get(self, key: Any, default: Any, /) -> Any:
        return self._root._get(key, default)

    def _pop(self, key: Any, default: Any, /) -> Any:
        return self._root._pop(key, default)

    def _keys(self) -> list[Any]:
        return self._root._keys()

    def _items(self) -> list[tuple[Any, Any]]:
        return self._root._items()

    def _clear(self) -> None:
        self._root._clear()

    @property
    def _opened(self) -> Opened:
        return self._shared

    @property
    def _root(self) -> SharedDict:
        """All that is in it. Raises LocalProtocolError if it is closed."""
        self._check()
        return self._all

    # --- more ---

    def transaction(self, timeout: float | None = None) -> Transaction:
        """Makes the operations of a block one: ``with store.transaction():``, in loops ``async with``.

        Others see all of what they have changed or nothing, also if this process is killed; if the block raises, or is
        cancelled, nothing is changed. All others that change the store wait meanwhile, so a block is to be short; those
        that read do not. Waits up to ``timeout`` seconds for a transaction of another process, thread or task. Raises
        WaitTimeout, which names the process that is within one.
        """
        return Transaction.of(self, check_timeout(timeout))

    def struct(self, fields: type[enum.IntEnum], values: Mapping[Any, Any] | None = None) -> SharedStruct:
        """Opens the struct whose fields have the members of an enumeration as their numbers.

        It is made with ``values``, 0 for what is not among these, if there is none; and found by the name of the
        enumeration, as a key of the store.
        """
        known = struct_class(fields)
        key = fields.__name__
        if key not in self:
            with self._opened.transaction():
                if key not in self:
                    given = dict(values or {})
                    self[key] = NewStruct(known, [given.get(member, 0) for member in sorted(fields)])
        found = self[key]
        if not isinstance(found, SharedStruct) or found._known is not known:
            raise TypeError(f"struct: the store has something else for the key {key!r}, of type {type(found).__name__}")
        return found

    def _save(self, path: str | os.PathLike[str]) -> None:
        from shmrpc.stores import files  # Few stores are saved, and it imports hashlib and json.

        classes, values = self._saved()
        files.write(Path(path), classes, values)

    def _load_from(self, path: str | os.PathLike[str]) -> None:
        from shmrpc.stores import files

        classes, values = files.read(Path(path))
        with self._opened.transaction():
            numbers = [self._carrier.class_number(name, fields) for name, fields in classes.items()]
            known = self._carrier.classes()
            for name, fields in classes.items():
                if tuple(known[name]) != fields:
                    raise DecodeError(
                        f"{path}: the class {name} has the fields {', '.join(fields)} there, and "
                        f"{', '.join(known[name])} in store {self.name!r}"
                    )
            try:
                self._load(values, numbers)
            except (ValueError, TypeError) as error:
                raise DecodeError(f"{path} is damaged: {error}") from None

    def stats(self) -> StoreStats:
        """What can be seen of the store now."""
        memory, free, most, made = self._usage()
        members = len(self._name.report()["members"])
        return StoreStats(memory, free, most, made, members, self._holder() or None, self._carrier.owner() or None)

    @property
    def is_writable(self) -> bool:
        """Whether this process can change it: False of a store that another process owns, or owned."""
        return self._carrier.may_write()

    def _holder(self) -> int:
        return self._carrier.holder()

    def _is_closed(self) -> bool:
        return self._name.is_closed

    def _raise_no_message(self, waited: bool | None, timeout: float | None) -> NoReturn:
        """Raises what a wait for a message ends with that was in vain."""
        if waited is None:
            raise wait_stopped_error(self._name)
        raise WaitTimeout(f"store {self.name!r}: no message came within {timeout:g} s")


def add(container: Any, key: Any, by: float) -> Any:
    """Adds to a number in a store, and returns the sum: one operation, whoever else adds meanwhile.

    ``container``: an object (``key``: the name of a field), a struct (a member of its enumeration), a dict or the store
    itself (a key), or a list (an index). Raises KeyError, IndexError, AttributeError, TypeError and Gone.
    """
    try:
        total = add_to(container, key, by)
    except KeyError:
        raise KeyError(key) from None  # The core says only that there is none.
    except TypeError:
        _transaction("add", container)  # It may be no container at all.
        raise
    if total is None:  # More than the core adds.
        total = update(container, key, lambda value: value + by)
    return total


def compare_and_set(container: Any, key: Any, expected: Any, value: Any) -> bool:
    """Sets an item of a container to a value if it equals what is expected. Whether it did.

    What ``container`` and ``key`` may be: see :func:`shmrpc.add`.
    """
    with _transaction("compare_and_set", container):
        if _read(container, key) != expected:
            return False
        _write(container, key, value)
    return True


def get_buffer(container: Any, key: Any) -> memoryview:
    """Returns the bytes of an item of a container, as a memoryview of bytes.

    What ``container`` and ``key`` may be: see :func:`add`. Of a bytearray, an array or a tensor it is the shared memory
    itself, and writable: it stays where it is as long as the view is there, also if the item is removed. Of bytes, and
    of a str in UTF-8, which never change, it is a copy, and read-only. Raises TypeError for other values, and KeyError,
    IndexError, AttributeError and Gone.
    """
    value = _read(container, key)
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


def update(container: Any, key: Any, function: Callable[[Any], _T]) -> _T:
    """Sets an item of a container to what a function makes of it, and returns that: one operation.

    What ``container`` and ``key`` may be: see :func:`shmrpc.add`. All others that change the store wait while
    ``function`` runs.
    """
    with _transaction("update", container):
        value = function(_read(container, key))
        _write(container, key, value)
    return value


def _transaction(what: str, container: Any) -> Transaction:
    """Makes several operations on a container one. Raises TypeError if it is none."""
    if not isinstance(container, (StoreBase, _core.Proxy)):
        raise TypeError(f"{what}: expected an object of a store or a store, got {type(container).__name__}")
    opened: Opened = container._opened
    return opened.transaction()


def _is_record(container: Any) -> bool:
    return not isinstance(container, (StoreBase, SharedDict, SharedList, SharedStruct))


def _read(container: Any, key: Any) -> Any:
    return getattr(container, key) if _is_record(container) else container[key]


def _write(container: Any, key: Any, value: Any) -> None:
    if _is_record(container):
        setattr(container, key, value)
    else:
        container[key] = value
