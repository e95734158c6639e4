"""Stores in asyncio."""

from __future__ import annotations

import asyncio
import functools
import os
from typing import Literal

from shmrpc.basics.checks import public_class, public_name
from shmrpc.basics.drivers import AsyncioOnly, ThreadsOnly
from shmrpc.objects.handle import AsyncContextHandle, ContextHandle
from shmrpc.stores.inbox import BlockingInbox, Inbox
from shmrpc.stores.store_base import StoreBase, open_store


@public_class("shmrpc.Store", "shmrpc.store(name)")
class Store(AsyncioOnly, AsyncContextHandle, StoreBase):
    """Values that all processes change in place that open the name: see :func:`shmrpc.store`."""

    async def replace(self) -> int | None:
        """Replaces the store by a copy if a process holds it and does not go on, as one that is stopped does.

        All others go on in the copy, with the objects and arrays that they have. The process that held it is fenced
        off: whatever it does with the store, when it goes on, raises LocalProtocolError, and nobody else sees it. What
        it had committed is in the copy.

        Returns the id of that process, -1 if it is one of another container, or None if nobody holds the store for
        longer than ``patience``: then nothing is done. Raises SharedMemoryError if there is no room for a copy in
        /dev/shm, and LocalProtocolError within a transaction of this process.
        """
        return await asyncio.to_thread(self._replace)

    async def save(self, path: str | os.PathLike[str]) -> None:
        """Saves all that is in it, as it is at one moment, to a file; messages are not saved.

        The file is there as a whole or not at all: it is written under another name, flushed to the disk, and then gets
        its name, also in place of another file. Links are followed. Raises OSError if it cannot be written, or if
        something is there that is no regular file.
        """
        await asyncio.to_thread(self._save, path)

    async def load(self, path: str | os.PathLike[str]) -> None:
        """Puts what was saved to a file in the place of all that is in it, in one transaction.

        Objects that came out of it before are Gone; messages stay. What is in it is freed at the end, so there has to
        be room for both. Raises OSError if the file cannot be read, DecodeError if it is none that was saved, of a
        newer version, or damaged, or has a class whose fields are others in the store, StoreFull and StoreBusy: then
        nothing is changed.
        """
        await asyncio.to_thread(self._load_from, path)

    @functools.cached_property
    def inbox(self) -> Inbox:
        """The messages of the store."""
        return Inbox(self)


@public_class("shmrpc.sync.Store", "shmrpc.sync.store(name)")
class BlockingStore(ThreadsOnly, ContextHandle, StoreBase):
    """A :class:`shmrpc.Store` for threads, which block where they have to wait."""

    def replace(self) -> int | None:
        """Replaces the store by a copy if a process holds it and does not go on: see :meth:`shmrpc.Store.replace`."""
        return self._replace()

    def save(self, path: str | os.PathLike[str]) -> None:
        """Saves all that is in it to a file: see :meth:`shmrpc.Store.save`."""
        self._save(path)

    def load(self, path: str | os.PathLike[str]) -> None:
        """Puts what was saved to a file in the place of all that is in it: see :meth:`shmrpc.Store.load`."""
        self._load_from(path)

    @functools.cached_property
    def inbox(self) -> BlockingInbox:
        """The messages of the store."""
        return BlockingInbox(self)


def store(
    name: str,
    max_memory: int | str = "64MiB",
    patience: float = 1.0,
    pickle: bool = False,
    writable: Literal["all", "owner"] = "all",
) -> Store:
    """Opens a store: values in shared memory, which all processes change in place that open the name.

    It is a dict. What is put into it is copied in: None, bool, int, float, complex, str, bytes, bytearray, Decimal,
    slices and the types of datetime; lists, dicts, sets, tuples and frozensets of these, nested as they are; instances
    of classes that are marked as :func:`shmrpc.shared`; arrays and tensors. Lists, dicts, sets and objects come out as
    proxies: what is read and written goes to the shared memory. What was taken out or replaced raises Gone. Arrays are
    views of the memory. Each operation is done whole or not at all, whoever dies; several are with
    :meth:`Store.transaction`.

    ``max_memory`` bounds the values (64 KiB to 16 GiB; memory is used as they need it). A single operation waits
    ``patience`` seconds for a process that is within a transaction, and then raises StoreBusy, which names it.
    ``pickle`` lets values of other types be pickled.

    With ``writable="owner"`` one process changes it, its owner: the one that opens it so while there is none. All
    others map its memory read-only, so they cannot change it, whatever they do; what would raises LocalProtocolError,
    which names the owner. If the owner ends, the others go on reading what it had committed, and the next process that
    opens it so, one of them or another, becomes the owner and goes on with that. Memory of what was removed stays with
    the owner for what comes next.

    Raises NameInUse if the name is open as something else, or with another ``max_memory`` or ``writable``,
    SharedMemoryError if there is no room in /dev/shm, and LocalProtocolError if the directory where names are met is
    not safe.
    """
    return Store._wrap(open_store(name, max_memory, writable), patience, pickle)


@public_name("store")
def blocking_store(
    name: str,
    max_memory: int | str = "64MiB",
    patience: float = 1.0,
    pickle: bool = False,
    writable: Literal["all", "owner"] = "all",
) -> BlockingStore:
    """Opens a store as :func:`shmrpc.store` does, for threads."""
    return BlockingStore._wrap(open_store(name, max_memory, writable), patience, pickle)
