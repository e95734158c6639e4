"""Stores for event loops and for threads."""

from __future__ import annotations

import asyncio
import functools
import os

from shmrpc.basics.checks import public_class, public_name
from shmrpc.basics.drivers import AsyncioOnly, ThreadsOnly
from shmrpc.basics.renamed import renamed_options
from shmrpc.objects.handle import AsyncContextHandle, ContextHandle
from shmrpc.stores.inbox import BlockingInbox, Inbox
from shmrpc.stores.store_base import StoreBase, open_store


@public_class("shmrpc.Store", "shmrpc.store(name)")
class Store(AsyncioOnly, AsyncContextHandle, StoreBase):
    """A dict of values that all processes that open its name change in place: see :func:`shmrpc.store`."""

    async def fail_over(self) -> int | None:
        """Replace the store by a copy if a process holds it and makes no progress, as a stopped process does.

        All other processes go on in the copy, with the objects and arrays that they have. The process that held the
        store is fenced off: when it goes on, each use of the store raises LocalProtocolError, and other processes see
        none of its changes. The copy has what that process had committed.

        Returns the id of that process, -1 for a process of another container, or None, without a change, if no process
        holds the store for longer than ``busy_timeout``. Raises SharedMemoryError if there is no room for a copy in
        /dev/shm, and LocalProtocolError within a transaction of this process.
        """
        return await asyncio.to_thread(self._fail_over)

    async def save(self, path: str | os.PathLike[str]) -> None:
        """Save a snapshot of the values to a file; messages are not saved.

        The file is complete or absent: it is written under another name, flushed to the disk, and then renamed, which
        replaces an existing file. Links are followed. A thread writes, while the loop goes on: changes of a transaction
        that has not ended are not saved. Raises OSError if the file cannot be written, or if something but a regular
        file is there; StoreBusy; and LocalProtocolError if the handle is closed.
        """
        await asyncio.to_thread(self._save, path)

    async def load(self, path: str | os.PathLike[str]) -> None:
        """Replace all values by those of a saved file, in one transaction.

        Proxies from before raise ObjectDeleted; messages stay. The old values are freed at the end, so the store needs
        room for both. After an error nothing has changed. Raises OSError if the file cannot be read; DecodeError if it
        is not such a file, is damaged or of another version, or if a class has other fields in the store; StoreFull;
        StoreBusy, also within a transaction of this program; and LocalProtocolError if the handle is closed, or in a
        process that may not change the store.
        """
        await asyncio.to_thread(self._load_from, path)

    @functools.cached_property
    def inbox(self) -> Inbox:
        """The messages of the store."""
        return Inbox(self)


@public_class("shmrpc.sync.Store", "shmrpc.sync.store(name)")
class BlockingStore(ThreadsOnly, ContextHandle, StoreBase):
    """A :class:`shmrpc.Store` whose methods block the thread that calls them. They raise the same errors."""

    def fail_over(self) -> int | None:
        """Replace the store by a copy if a process holds it and makes no progress.

        See :meth:`shmrpc.Store.fail_over`.
        """
        return self._fail_over()

    def save(self, path: str | os.PathLike[str]) -> None:
        """Save a snapshot of the values to a file: see :meth:`shmrpc.Store.save`.

        Within a transaction of this thread, its changes are saved too.
        """
        self._save(path)

    def load(self, path: str | os.PathLike[str]) -> None:
        """Replace all values by those of a saved file: see :meth:`shmrpc.Store.load`.

        Within a transaction of this thread, this is a part of the transaction.
        """
        self._load_from(path)

    @functools.cached_property
    def inbox(self) -> BlockingInbox:
        """The messages of the store."""
        return BlockingInbox(self)


@renamed_options(patience="busy_timeout=", writable="single_writer=True")
def store(
    name: str,
    max_memory: int | str = "64MiB",
    busy_timeout: float = 1.0,
    pickle: bool = False,
    single_writer: bool = False,
) -> Store:
    """Open a store: values in shared memory that all processes that open the name change in place.

    A store is a dict. Values are copied into it: None, bool, int, float, complex, str, bytes, bytearray, Decimal,
    slices and the types of datetime; lists, dicts, sets, tuples and frozensets of these, nested in each other;
    instances of classes that are marked as :func:`shmrpc.shared`; arrays and tensors. Lists, dicts, sets and objects
    come out as proxies, which read and write the shared memory. A proxy of what was removed or replaced raises
    ObjectDeleted. Arrays are views of the memory. Each operation is atomic, even if a process dies within it;
    :meth:`Store.transaction` makes several operations atomic.

    ``max_memory`` limits the values (64 KiB to 16 GiB; memory grows as they need it). A single operation waits
    ``busy_timeout`` seconds for a process that is within a transaction, and then raises StoreBusy, which names that
    process. ``pickle`` lets values of other types be pickled.

    With ``single_writer=True`` only the owner changes the store: the first process that opens the store so while there
    is no owner. All others map the memory read-only, so they cannot change it by any means; operations that would
    change the store raise LocalProtocolError, which names the owner. If the owner ends, the others go on reading the
    committed values, and the next process that opens the store becomes the owner of these values. The owner keeps the
    memory of removed values for new ones.

    Raises NameConflict if the name is open as something else, or with another ``max_memory`` or ``single_writer``,
    SharedMemoryError if there is no room in /dev/shm, LocalProtocolError if the directory of shared objects is not
    safe, WaitTimeout if a stopped process is opening or closing the store, RemoteProtocolError if another version of
    shmrpc has made it, and TypeError or ValueError for an invalid argument.
    """
    return Store._wrap(open_store(name, max_memory, single_writer), busy_timeout, pickle)


@renamed_options(patience="busy_timeout=", writable="single_writer=True")
@public_name("store")
def blocking_store(
    name: str,
    max_memory: int | str = "64MiB",
    busy_timeout: float = 1.0,
    pickle: bool = False,
    single_writer: bool = False,
) -> BlockingStore:
    """Open a store as :func:`shmrpc.store` does, for threads. Raises the same errors."""
    return BlockingStore._wrap(open_store(name, max_memory, single_writer), busy_timeout, pickle)
