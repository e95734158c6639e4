"""What a process has of a store: its handles and all objects that came out of them share it."""

from __future__ import annotations

import asyncio
import contextlib
import os
import threading
import weakref
from collections.abc import Callable, Iterator
from typing import Any, ClassVar, Final, TypeVar

from shmrpc import _core
from shmrpc.errors import WaitTimeout
from shmrpc.host.processes import describe_process, describe_stopped
from shmrpc.objects.arguments import check_timeout
from shmrpc.objects.handle import Handle
from shmrpc.objects.wait_queue import WaitQueue, wait_stopped_error
from shmrpc.stores.serializers import install
from shmrpc.stores.transaction import Transaction
from shmrpc.stores.value_converter import Values
from shmrpc.values.references import set_finder, store_not_open

_H = TypeVar("_H", bound=Handle)

#: The wait set of those that wait for a change.
_CHANGES: Final = 1
#: Seconds until a watch is ended that could not be before.
_LATER: Final = 0.01

#: By the names of the stores.
_opened: Final[weakref.WeakValueDictionary[str, Opened]] = weakref.WeakValueDictionary()
#: Held while a handle comes or goes.
_lock = threading.RLock()


def _renew_lock() -> None:
    """A thread of the parent may have had it, which this process does not have."""
    global _lock
    _lock = threading.RLock()


os.register_at_fork(after_in_child=_renew_lock)


class StoreUse(Handle):
    """A use of the name of a store: a handle, or what all handles of it in this process share."""

    _opener_name: ClassVar = "store"

    def _holder(self) -> int:
        """The process that changes the store just now; 0 if none does."""
        raise NotImplementedError

    def _timeout_cause(self) -> str:
        return "another transaction has not ended"

    def _describe_holders(self) -> str:
        holder = self._holder()
        if not holder:
            return ""
        who = "a task or thread of this process" if holder == os.getpid() else describe_process(holder)
        return f": {who} is within it{describe_stopped(holder)}"


def find(name: str, kind: int, number: int, at: int, identity: int) -> Any:
    """Finds a container of a store that this process has open. Raises LocalProtocolError if it does not."""
    found = _opened.get(name)
    if found is None or found._name.is_closed:
        raise store_not_open(name)
    return found.values.seen(kind, number, at, identity)


set_finder(find)


class Opened(StoreUse):
    """What a process has of a store.

    It is there as long as a handle or an object of the store is, and closed with the last handle that is closed.
    """

    #: What the proxies of the store are made of. The first handle sets it.
    _carrier: _core.StoreRef
    #: How a pickled proxy is found again.
    find = staticmethod(find)

    def __init__(self, name: _core.SharedObject) -> None:
        self._name = name
        self._wait_queues = weakref.WeakKeyDictionary()
        self.values = Values(name.name)
        #: Seconds for which an operation waits, if it is a part of what its caller does: the longest of all handles.
        self.patience = 0.0
        #: Watches that are over, and have not been ended. Not their proxies: these have us.
        self._over: list[int] = []
        self._handles: weakref.WeakSet[Handle] = weakref.WeakSet()
        self._stopped: weakref.WeakSet[Handle] = weakref.WeakSet()

    def _holder(self) -> int:
        return self._carrier.holder()

    # --- its handles ---

    def add(self, handle: Handle, patience: float, pickle: bool) -> None:
        """Has one handle more, which was opened with these options."""
        self._handles.add(handle)
        self.patience = max(self.patience, patience)
        if pickle:
            self.values.allow_pickle()

    def remove(self, handle: Handle) -> None:
        """A handle is closed."""
        with _lock:
            if handle not in self._handles:
                return
            self._handles.discard(handle)
            if not self._handles:
                self.close()
                return
            self.stop_for(handle, False)

    def stop_for(self, handle: Handle, is_stopped: bool) -> None:
        """Ends the waits for objects as long as a handle is stopped."""
        with _lock:
            (self._stopped.add if is_stopped else self._stopped.discard)(handle)
            if not self._name.is_closed:
                self._name.stop(bool(self._stopped))

    # --- what proxies need ---

    def forget(self) -> None:
        """Forgets what was learnt in a transaction that has come to nothing."""
        self.values.forget()

    def transaction(self) -> Transaction:
        """Several operations that are one, within the transaction of the user if there is one."""
        return Transaction.of(self, self.patience, joins=True)

    async def wait_for_change(self, proxy: _core.Proxy, timeout: float | None) -> None:
        """Waits until a container has changed. Raises WaitTimeout and Gone."""
        timeout = check_timeout(timeout)
        if await self.apart(timeout):
            return  # What the other one has changed was not watched: it counts as a change.
        with self.watch(proxy) as watch:
            await self.wait_for(proxy, watch, timeout)

    def block_for_change(self, proxy: _core.Proxy, timeout: float | None) -> None:
        """Blocks until a container has changed. Raises WaitTimeout and Gone."""
        timeout = check_timeout(timeout)
        with self.watch(proxy) as watch:
            self.block_for(proxy, watch, timeout)

    @contextlib.contextmanager
    def watch(self, proxy: _core.Proxy) -> Iterator[int]:
        """Watches a container within the block: the number of the watch. Raises Gone."""
        self._end_watches()
        watch = proxy._watch()
        try:
            yield watch
        finally:
            self._over.append(watch)
            self._end_watches()

    def _end_watches(self) -> None:
        """Ends the watches that are over; later if another task of this loop is within a transaction."""
        while self._over and not self._name.is_closed:
            watch = self._over.pop()
            try:
                if not (is_beside := self._carrier.is_beside_sibling()):
                    self._carrier.unwatch(watch)
            except ReferenceError:  # Its last handle is gone, and this process is leaving the store.
                return
            except BaseException:
                self._over.append(watch)
                raise
            if is_beside:
                self._over.append(watch)
                with contextlib.suppress(RuntimeError):  # The loop has ended: with the next watch.
                    asyncio.get_running_loop().call_later(_LATER, self._end_watches)
                return

    async def apart(self, timeout: float | None) -> bool:
        """Waits for the end of a transaction of another task of this loop; whether there is one. Raises WaitTimeout."""
        if not self._carrier.is_beside_sibling():
            return False
        async with Transaction.of(self, timeout):
            return True

    async def wait_for(self, proxy: _core.Proxy, watch: int, timeout: float | None) -> None:
        """Waits until a container has changed since a watch began. Raises WaitTimeout."""
        line = self._wait_queue(_CHANGES, WaitQueue)
        if not proxy._has_changed(watch) and not await line.wait(
            lambda: proxy._has_changed(watch), lambda: None, timeout
        ):
            raise self._nothing(timeout)

    def block_for(self, proxy: _core.Proxy, watch: int, timeout: float | None) -> None:
        """Blocks until a container has changed since a watch began. Raises WaitTimeout."""
        waited = proxy._wait(watch, timeout)
        if waited is None:
            raise wait_stopped_error(self._name)
        if not waited:
            raise self._nothing(timeout)

    def _nothing(self, timeout: float | None) -> WaitTimeout:
        return WaitTimeout(f"store {self._name.name!r}: nobody has changed the object within {timeout:g} s")


def open_handle(name: _core.SharedObject, patience: float, pickle: bool, make: Callable[[Opened], _H]) -> _H:
    """Makes a handle of a use of a name, with what this process has of the store."""
    install()
    with _lock:
        opened = _opened.get(name.name)
        if opened is None or opened._name.is_closed or not opened._name.has_same_membership(name):
            opened = Opened(name.duplicate())
        handle = make(opened)
        opened.add(handle, patience, pickle)
        _opened[name.name] = opened
        return handle
