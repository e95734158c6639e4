"""The state of a store in this process, which its handles and the objects that came out of them share."""

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
from shmrpc.objects.wait_queue import WaitQueue, undo_nothing, wait_stopped_error
from shmrpc.stores.serializers import install
from shmrpc.stores.transaction import Transaction
from shmrpc.stores.value_converter import ValueConverter
from shmrpc.values.references import set_finder, store_not_open

_H = TypeVar("_H", bound=Handle)

#: The number of the wait set for changes.
_CHANGES: Final = 1
#: Seconds between two attempts to end a watch.
_RETRY_INTERVAL: Final = 0.01

#: The contexts of this process, by the names of their stores.
_contexts: Final[weakref.WeakValueDictionary[str, StoreContext]] = weakref.WeakValueDictionary()
#: Held while a handle is added or removed.
_lock = threading.RLock()


def _renew_lock() -> None:
    """Replace the lock, in a forked child: a thread of the parent may have held it."""
    global _lock
    _lock = threading.RLock()


os.register_at_fork(after_in_child=_renew_lock)


class StoreHandle(Handle):
    """The part that the handles of a store and its context have in common: the texts of errors of waits."""

    _opener_name: ClassVar = "store"

    def _holder(self) -> int:
        """Return the id of the process that changes the store now, or is within a transaction; 0 if there is none."""
        raise NotImplementedError

    def _timeout_cause(self) -> str:
        return "another transaction has not ended"

    def _describe_holders(self) -> str:
        """Return a text that names the process within the transaction; an empty text if there is none."""
        holder = self._holder()
        if not holder:
            return ""
        who = "a task or thread of this process" if holder == os.getpid() else describe_process(holder)
        return f": {who} is within it{describe_stopped(holder)}"


def find_container(name: str, kind: int, number: int, at: int, identity: int) -> Any:
    """Return a proxy of a container of a store. Raises LocalProtocolError if this process does not have the store open.

    ``kind`` and ``number`` are the container's type and class number, ``at`` and ``identity`` its place and identity.
    Does not check that the container exists. Raises ValueError and DecodeError for an unknown type or class.
    """
    context = _contexts.get(name)
    if context is None or context._object.is_closed:
        raise store_not_open(name)
    return context.converter.container_at(kind, number, at, identity)


set_finder(find_container)


class StoreContext(StoreHandle):
    """The state of a store in this process.

    The context lives as long as a handle or a proxy of the store, and is closed with the last handle.
    """

    #: The core's part of this context, from which proxies are made. The first handle sets it.
    _store_ref: _core.StoreRef
    #: The function to which a pickled proxy refers.
    find_container = staticmethod(find_container)

    def __init__(self, shared_object: _core.SharedObject) -> None:
        self._bind(shared_object)
        self.converter = ValueConverter(shared_object.name)
        #: Seconds for which an operation that is part of another one waits: the longest busy_timeout of all handles.
        self.busy_timeout = 0.0
        #: The numbers of watches that are over but still registered. Their proxies would keep this context alive.
        self._ended_watches: list[int] = []
        self._handles: weakref.WeakSet[Handle] = weakref.WeakSet()
        self._stopped: weakref.WeakSet[Handle] = weakref.WeakSet()

    def _holder(self) -> int:
        return self._store_ref.holder()

    # --- its handles ---

    def add(self, handle: Handle, busy_timeout: float, pickle: bool) -> None:
        """Add a handle that was opened with these options. The caller holds ``_lock``.

        The longest ``busy_timeout`` counts; ``pickle`` of one handle allows pickling for all. Both hold until the
        context is closed, also without that handle.
        """
        self._handles.add(handle)
        self.busy_timeout = max(self.busy_timeout, busy_timeout)
        if pickle:
            self.converter.allow_pickle()

    def remove(self, handle: Handle) -> None:
        """Remove a handle that is closed. Close the context with the last one. Idempotent."""
        with _lock:
            if handle not in self._handles:
                return
            self._handles.discard(handle)
            if not self._handles:
                self.close()
                return
            self.stop_for(handle, False)

    def stop_for(self, handle: Handle, is_stopped: bool) -> None:
        """Record that a handle is stopped or not. While any handle is stopped, waits for objects end."""
        with _lock:
            (self._stopped.add if is_stopped else self._stopped.discard)(handle)
            if not self._object.is_closed:
                self._object.stop(bool(self._stopped))

    # --- what proxies need ---

    def forget_classes(self) -> None:
        """Forget the numbers of classes that a transaction has added, because it was rolled back."""
        self.converter.forget_classes()

    def transaction(self) -> Transaction:
        """Return a transaction for several operations, which becomes a part of a transaction of the user, if any.

        Its beginning waits for ``busy_timeout`` seconds, also in the thread of an event loop, and then raises
        StoreBusy.
        """
        return Transaction.of(self, self.busy_timeout, joins=True)

    async def wait_for_change(self, proxy: _core.Proxy, timeout: float | None) -> None:
        """Wait until a container has changed, or a transaction of another task of this loop has ended.

        Raises WaitTimeout, WaitStopped, ObjectDeleted, and LocalProtocolError within a transaction of this task.
        """
        timeout = check_timeout(timeout)
        if await self.wait_for_sibling(timeout):
            return  # No watch has seen what the other task has changed, so this counts as a change.
        with self.watch(proxy) as watch:
            await self.wait_for_change_since(proxy, watch, timeout)

    def block_for_change(self, proxy: _core.Proxy, timeout: float | None) -> None:
        """Block until a container has changed.

        Raises WaitTimeout, WaitStopped, ObjectDeleted, and LocalProtocolError within a transaction.
        """
        timeout = check_timeout(timeout)
        with self.watch(proxy) as watch:
            self.block_for_change_since(proxy, watch, timeout)

    @contextlib.contextmanager
    def watch(self, proxy: _core.Proxy) -> Iterator[int]:
        """Watch a container during the block; yield the number of the watch.

        Raises ObjectDeleted, and LocalProtocolError within a transaction.
        """
        self._unwatch_ended()
        watch = proxy._watch()
        try:
            yield watch
        finally:
            self._ended_watches.append(watch)
            self._unwatch_ended()

    def _unwatch_ended(self) -> None:
        """Unregister the watches that are over, or try again later if another task is within a transaction."""
        while self._ended_watches and not self._object.is_closed:
            watch = self._ended_watches.pop()
            try:
                if not (is_beside_sibling := self._store_ref.is_beside_sibling()):
                    self._store_ref.unwatch(watch)
            except ReferenceError:  # The last handle is gone, and this process is leaving the store.
                return
            except BaseException:
                self._ended_watches.append(watch)
                raise
            if is_beside_sibling:
                self._ended_watches.append(watch)
                with contextlib.suppress(RuntimeError):  # The loop has ended: the next watch tries again.
                    asyncio.get_running_loop().call_later(_RETRY_INTERVAL, self._unwatch_ended)
                return

    async def wait_for_sibling(self, timeout: float | None) -> bool:
        """Wait for the end of a transaction of another task of this loop. Return False if there is no such transaction.

        Raises WaitTimeout and WaitStopped.
        """
        if not self._store_ref.is_beside_sibling():
            return False
        async with Transaction.of(self, timeout):
            return True

    async def wait_for_change_since(self, proxy: _core.Proxy, watch: int, timeout: float | None) -> None:
        """Wait in the loop until a container has changed since a watch began. Raises WaitTimeout and WaitStopped."""
        queue = self._wait_queue(_CHANGES, WaitQueue)
        if not proxy._has_changed(watch) and not await queue.wait(
            lambda: proxy._has_changed(watch), undo_nothing, timeout
        ):
            raise self._no_change_error(timeout)

    def block_for_change_since(self, proxy: _core.Proxy, watch: int, timeout: float | None) -> None:
        """Block until a container has changed since a watch began. Raises WaitTimeout and WaitStopped."""
        waited = proxy._wait(watch, timeout)
        if waited is None:
            raise wait_stopped_error(self._object)
        if not waited:
            raise self._no_change_error(timeout)

    def _no_change_error(self, timeout: float | None) -> WaitTimeout:
        """Return the error for a wait for a change that has ended without one."""
        return WaitTimeout(f"store {self._object.name!r}: the object has not changed within {timeout:g} s")


def open_handle(
    shared_object: _core.SharedObject, busy_timeout: float, pickle: bool, make: Callable[[StoreContext], _H]
) -> _H:
    """Return ``make(context)``, a handle of an open store, with the context of the store in this process.

    The first handle of a store makes the context. Also installs the hooks of json and FastAPI. Raises what ``make``
    raises.
    """
    install()
    with _lock:
        context = _contexts.get(shared_object.name)
        if context is None or context._object.is_closed or not context._object.has_same_membership(shared_object):
            context = StoreContext(shared_object.duplicate())
        handle = make(context)
        context.add(handle, busy_timeout, pickle)
        _contexts[shared_object.name] = context
        return handle
