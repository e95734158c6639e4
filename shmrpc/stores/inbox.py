"""The inbox of a store: messages, each of which goes to one member."""

from __future__ import annotations

import asyncio
from typing import Any, Final, NoReturn, Protocol

from shmrpc.basics.timeouts import end_of_wait, seconds_left
from shmrpc.errors import ShmrpcError
from shmrpc.objects.arguments import check_timeout
from shmrpc.objects.wait_queue import WaitQueue, undo_nothing


class _Store(Protocol):
    """A store, as its inbox needs it."""

    def _put(self, value: Any, is_back: bool = False, /) -> None:
        """Add a copy of a message: as the last one, or as the first one if it was taken before (``is_back``)."""

    def _take(self, waits: bool = False, /) -> list[Any]:
        """Take the first message, and return it in a list, which is empty if there is none.

        ``waits``: also return an empty list while another task of this loop is within a transaction.
        """
        raise NotImplementedError

    def _take_into(self, got: list[Any], /) -> bool:
        """Take the first message, and append it to ``got``; return False if there is none."""
        raise NotImplementedError

    def _peek(self) -> list[Any]:
        """Return a copy of the first message in a list, which is empty if there is none."""
        raise NotImplementedError

    def _has_messages(self) -> bool:
        """Return True if there is a message."""
        raise NotImplementedError

    def _is_closed(self) -> bool:
        """Return True if the handle is closed."""
        raise NotImplementedError

    def _wait_for_message(self, timeout: float | None, /) -> bool | None:
        """Block until there is a message; return True, False after the timeout, or None if waits are stopped."""

    def _wait_queue(self, wait_set: int, kind: type[WaitQueue]) -> WaitQueue:
        """Return the running loop's queue for a wait set."""
        raise NotImplementedError

    def _raise_no_message(self, waited: bool | None, timeout: float | None) -> NoReturn:
        """Raise WaitStopped if ``waited`` is None, and WaitTimeout otherwise."""
        raise NotImplementedError


#: The number of the wait set for messages.
_MESSAGES = 2
#: Seconds between two attempts to put a message back.
_RETRY_INTERVAL: Final = 0.01


class InboxBase:
    """The messages of a store: any member puts, and one member takes each message."""

    __slots__ = ("_store",)

    def __init__(self, store: _Store) -> None:
        self._store = store

    def put(self, value: Any) -> None:
        """Add a copy of a value as the last message. Within a transaction, the commit adds the message for others.

        The transaction itself can take the message before. Raises as setting a value of the store does.
        """
        self._store._put(value)

    def has_messages(self) -> bool:
        """Return True if there is a message. Raises StoreBusy and LocalProtocolError."""
        return self._store._has_messages()


class Inbox(InboxBase):
    """The messages of a store, in asyncio."""

    __slots__ = ()

    async def take(self, timeout: float | None = None) -> Any:
        """Remove the first message and return it; wait up to ``timeout`` seconds for one.

        Also waits for the end of a transaction of another task of this loop. A cancelled call takes none. Raises
        WaitTimeout, WaitStopped, StoreBusy, DecodeError for a message that cannot be read, which stays, and
        LocalProtocolError if the handle is closed.
        """
        timeout = check_timeout(timeout)
        got = self._store._take(True)

        def take() -> bool:
            got.extend(self._store._take(True))
            return bool(got)

        def put_back() -> None:
            try:
                self._store._put(got[0], True)
            except ShmrpcError:  # Another transaction has not ended, perhaps of another task of this loop.
                if self._store._is_closed():
                    raise
                asyncio.get_running_loop().call_later(_RETRY_INTERVAL, put_back)

        if not got and not await self._store._wait_queue(_MESSAGES, WaitQueue).wait(take, put_back, timeout):
            self._store._raise_no_message(False, timeout)
        return got[0]

    async def read(self, timeout: float | None = None) -> Any:
        """Return a copy of the first message, which stays; wait for one as :meth:`take` does, with its errors.

        Does not wait for the end of a transaction of another task.
        """
        timeout = check_timeout(timeout)
        queue, end = self._store._wait_queue(_MESSAGES, WaitQueue), end_of_wait(timeout)
        while not (got := self._store._peek()):
            if not await queue.wait(self._store._has_messages, undo_nothing, seconds_left(end)):
                self._store._raise_no_message(False, timeout)
        return got[0]


class BlockingInbox(InboxBase):
    """The messages of a store, in threads."""

    __slots__ = ()

    def take(self, timeout: float | None = None) -> Any:
        """Remove the first message and return it; wait up to ``timeout`` seconds for one.

        Raises WaitTimeout, WaitStopped, StoreBusy, DecodeError for a message that cannot be read, which stays, and
        LocalProtocolError if the handle is closed.
        """
        timeout = check_timeout(timeout)
        got: list[Any] = []
        end = end_of_wait(timeout)
        try:
            while not self._store._take_into(got):
                self._wait(end, timeout)
        except BaseException:
            for message in got:  # A signal handler has raised: the message is the first one again.
                self._store._put(message, True)
            raise
        return got[0]

    def read(self, timeout: float | None = None) -> Any:
        """Return a copy of the first message, which stays; wait for one as :meth:`take` does."""
        timeout = check_timeout(timeout)
        end = end_of_wait(timeout)
        while not (got := self._store._peek()):
            self._wait(end, timeout)
        return got[0]

    def _wait(self, end: float | None, timeout: float | None) -> None:
        """Block until there is a message, at most until ``end``, which was ``timeout`` seconds away; None: no limit.

        Raises WaitTimeout and WaitStopped.
        """
        waited = self._store._wait_for_message(seconds_left(end))
        if not waited:
            self._store._raise_no_message(waited, timeout)
