"""The part of a store that is the same in loops and in threads: the operations that do not wait."""

from __future__ import annotations

import dataclasses
import enum
import functools
import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NoReturn, Self, TypeVar, cast

from shmrpc import _core
from shmrpc.basics.checks import check_bytes, check_flag, check_seconds
from shmrpc.basics.renamed import RenamedMethod
from shmrpc.errors import DecodeError, WaitTimeout
from shmrpc.objects.arguments import check_timeout
from shmrpc.objects.handle import Handle, closes_on_error, open_object
from shmrpc.objects.wait_queue import wait_stopped_error
from shmrpc.stores.records import NewStruct, SharedStruct, struct_class
from shmrpc.stores.shared_dict import DictMethods, SharedDict
from shmrpc.stores.store_context import StoreContext, StoreHandle, open_handle
from shmrpc.stores.transaction import Transaction

_T = TypeVar("_T")

#: Seconds for which a single operation waits for another process that changes the store, by default.
_BUSY_TIMEOUT: Final = 1.0


@dataclasses.dataclass(frozen=True)
class StoreStats:
    """Sizes of a store, and the processes that use it."""

    #: Bytes of memory, including those that are free for new values.
    memory: int
    #: Bytes of memory that are free.
    free: int
    #: The limit of ``memory``.
    max_memory: int
    #: The number of lists, dicts, sets, objects and buffers that were ever made.
    made: int
    #: The number of processes that have the store open.
    members: int
    #: The id of the process that changes the store now, or is within a transaction; None if there is none.
    holder: int | None
    #: The id of the owner of a store opened with ``single_writer=True``; None if there is none.
    owner: int | None


def open_store(name: str, max_memory: int | str, single_writer: bool) -> _core.SharedObject:
    """Open a store, and make it if no process has it open. The caller closes the object.

    Raises TypeError and ValueError for invalid options, and the errors of :func:`open_object`.
    """
    check_flag(f"store {name!r}: single_writer", single_writer)
    size = check_bytes(f"store {name!r}: max_memory", max_memory)
    return open_object(name, "store", size, (int(single_writer), 0))


class StoreBase(_core.Store, StoreHandle, DictMethods):
    """The part of a store that is the same in loops and in threads.

    Operations raise StoreBusy, StoreFull, EncodeError and LocalProtocolError as those of its containers do: see
    :class:`SharedContainer`.
    """

    #: The state of this store in this process.
    _store_context: StoreContext  # pyright: ignore[reportIncompatibleMethodOverride]
    #: The values of the store.
    _root_dict: SharedDict

    @classmethod
    @closes_on_error
    def _wrap(
        cls, shared_object: _core.SharedObject, busy_timeout: float = _BUSY_TIMEOUT, pickle: bool = False
    ) -> Self:
        """Make a handle of a store that this process has opened, and close the object after an error.

        ``busy_timeout`` is in seconds, 0 or more, or ``math.inf``. Raises TypeError or ValueError for a bad option.
        """
        check_seconds("busy_timeout", busy_timeout)
        check_flag("pickle", pickle)
        return open_handle(
            shared_object, float(busy_timeout), pickle, functools.partial(cls._make, shared_object, float(busy_timeout))
        )

    @classmethod
    def _make(cls, shared_object: _core.SharedObject, busy_timeout: float, context: StoreContext) -> Self:
        """Make a handle with this context, and let the context use the StoreRef of the handle."""
        store = _core.Store.__new__(cls, shared_object, context, busy_timeout)
        context._store_ref = context.converter.store_ref = store._store_ref
        store._bind(shared_object)
        store._store_context = context
        at, identity = store._root_place
        store._root_dict = SharedDict(store._store_ref, at, identity)
        return store

    def close(self) -> None:
        """Close the handle. Idempotent.

        Proxies stay usable as long as another handle of the store is open in this process. When a process closes its
        last handle, the process leaves the store. When the last process leaves, the store is deleted. Waits end with
        LocalProtocolError.
        """
        super().close()
        self._store_context.remove(self)

    def stop(self) -> None:
        """End all waits of this handle, and all waits of this process for objects of the store, with WaitStopped.

        Waits that begin before :meth:`resume`, or before the handle is closed, end as well.
        """
        super().stop()
        self._store_context.stop_for(self, True)

    def resume(self) -> None:
        """Let this handle wait again after :meth:`stop`.

        Waits for objects of the store go on once no other handle of this process is stopped.
        """
        super().resume()
        self._store_context.stop_for(self, False)

    if not TYPE_CHECKING:  # A type checker knows that these are no attributes.
        replace = RenamedMethod("fail_over()")

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
        return self._object.name

    def __repr__(self) -> str:
        return Handle.__repr__(self)

    def _reference(self) -> NoReturn:
        """Raise the TypeError for a store that is sent, which has no reference."""
        what, remedy = self._copy_remedy()
        raise TypeError(f"{what} cannot be sent: {remedy}; or send an object of it")

    # --- as a mapping ---

    def copy(self) -> dict[Any, Any]:
        """Return a plain dict of all values, with plain copies of all containers, at one moment.

        Processes that change the store continuously wait while a large copy is made.
        """
        return cast(dict[Any, Any], self._root.copy())

    def _copy(self) -> Any:
        return self._root._copy()

    def _copy_to_put(self) -> Any:
        return self._root._copy()

    async def changed(self, timeout: float | None = None) -> None:
        """Wait at most ``timeout`` seconds until any value changes. Raises WaitTimeout and WaitStopped.

        If another task of this loop is within a transaction, wait for the end of the transaction instead, which may
        have changed values. Raises LocalProtocolError within a transaction of this task.
        """
        await self._root.changed(timeout)

    def wait_changed(self, timeout: float | None = None) -> None:
        """Block this thread until any value changes: see :meth:`changed`. Raises WaitTimeout and WaitStopped.

        Raises LocalProtocolError within a transaction.
        """
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
    def _root(self) -> SharedDict:
        """The dict of all values. Raises LocalProtocolError if the handle is closed."""
        self._check()
        return self._root_dict

    # --- transactions, structs, files ---

    def transaction(self, timeout: float | None = None) -> Transaction:
        """Make the operations of a block atomic: ``with store.transaction():``, in loops ``async with``.

        Others see all changes of the block or none, even if this process is killed. If the block raises, or is
        cancelled, nothing changes. Others that change the store wait meanwhile, so keep the block short; readers do
        not wait. Waits up to ``timeout`` seconds (None: no limit) for a transaction of another process, thread or task.
        The call itself does not wait; the beginning of the block raises WaitTimeout, whose text names that process,
        WaitStopped, and LocalProtocolError where ``with`` would block an event loop, or within a transaction of this
        task or thread. An object is for one block at a time.
        """
        return Transaction.of(self, check_timeout(timeout))

    def struct(self, fields: type[enum.IntEnum], values: Mapping[Any, Any] | None = None) -> SharedStruct:
        """Return the struct whose fields are numbered by the members of an enumeration.

        The key of the struct in the store is the name of the enumeration. The first call makes the struct with
        ``values``, by member, and with 0 for all other fields; all ``values`` of a later call are ignored. Raises
        ValueError for a key of ``values`` that is no member, and TypeError if the key has another value, or ``fields``
        is no IntEnum whose members are 0, 1, 2 and so on.
        """
        shared_class = struct_class(fields)
        given, members = dict(values or {}), set(fields)
        for each in given:
            if each not in members:
                raise ValueError(f"struct: expected values by member of {fields.__qualname__}, got the key {each!r}")
        key = fields.__name__
        if key not in self:
            with self._store_context.transaction():
                if key not in self:
                    self[key] = NewStruct(shared_class, [given.get(member, 0) for member in sorted(fields)])
        value = self[key]
        if not isinstance(value, SharedStruct) or value._shared_class is not shared_class:
            raise TypeError(f"struct: the store has something else for the key {key!r}, of type {type(value).__name__}")
        return value

    def _save(self, path: str | os.PathLike[str]) -> None:
        """Save a snapshot as :meth:`shmrpc.Store.save` does, with its errors, and block this thread meanwhile.

        The snapshot has the changes of a transaction of this thread, too.
        """
        from shmrpc.stores import files  # Few programs save a store, and this imports hashlib and json.

        classes, values = self._saved()
        files.write(Path(path), classes, values)

    def _load_from(self, path: str | os.PathLike[str]) -> None:
        """Load a file as :meth:`shmrpc.Store.load` does, with its errors, and block this thread meanwhile."""
        from shmrpc.stores import files

        classes, values = files.read(Path(path))
        with self._store_context.transaction():
            numbers = [self._store_ref.class_number(name, fields) for name, fields in classes.items()]
            known = self._store_ref.classes()
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
        """Return the sizes of the store, and the processes that use it. Raises StoreBusy and LocalProtocolError."""
        memory, free, most, made = self._usage()
        members = len(self._object.report()["members"])
        return StoreStats(memory, free, most, made, members, self._holder() or None, self._store_ref.owner() or None)

    @property
    def is_writable(self) -> bool:
        """True if this process can change the store; False if another process is, or was, its owner."""
        return self._store_ref.may_write()

    def _holder(self) -> int:
        """Return the id of the process that changes the store now, or is within a transaction; 0 if there is none."""
        return self._store_ref.holder()

    def _is_closed(self) -> bool:
        """Return True if this handle is closed."""
        return self._object.is_closed

    def _raise_no_message(self, waited: bool | None, timeout: float | None) -> NoReturn:
        """Raise the error for a failed wait for a message: WaitStopped if ``waited`` is None, else WaitTimeout.

        ``timeout`` is in seconds, and not None for WaitTimeout.
        """
        if waited is None:
            raise wait_stopped_error(self._object)
        raise WaitTimeout(f"store {self.name!r}: no message came within {timeout:g} s")
