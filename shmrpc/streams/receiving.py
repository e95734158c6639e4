"""The receiving end of a stream, in an event loop."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Callable
from typing import Any, Final

from shmrpc.streams.credit import OVERHEAD, WINDOW, ReceiveWindow
from shmrpc.streams.items import ItemDecoder, ItemRun
from shmrpc.streams.sending import TIME_SLICE
from shmrpc.wire.codec import UNREADABLE, body_weight

_ARRAY_HEADER: Final = 5


class IncomingStream:
    """Receiving end of a stream, which keeps encoded items until they are read. For one reader at a time.

    ``grant`` sends credit to the sender. For ``allowed`` and ``extra`` see :class:`ReceiveWindow`.
    """

    __slots__ = (
        "_end",
        "_ended",
        "_grant",
        "_held",
        "_runs",
        "_slice_end",
        "_taken",
        "_waiter",
        "_window",
    )

    def __init__(
        self, grant: Callable[[int], None], allowed: int = WINDOW, extra: Callable[[], int] | None = None
    ) -> None:
        self._runs: list[ItemRun] = []
        self._grant = grant
        self._window = ReceiveWindow(allowed, extra)
        #: Bytes of unread items; and bytes of the items taken last, which are in use.
        self._held = self._taken = 0
        self._waiter: asyncio.Future[None] | None = None
        self._slice_end = 0.0
        self._ended = False
        self._end: BaseException | None = None

    @property
    def ended(self) -> bool:
        """True if no further item is expected. Unread items may be left."""
        return self._ended

    def open(self) -> None:
        """Grant the sender its first credit. Call once, and only if ``allowed`` is 0."""
        self._grant(self._window.open())

    def feed(self, part: ItemRun) -> None:
        """Store received items. Raises RemoteProtocolError if there was no credit for them.

        Drops all items after the end, so that the reader sees a prefix of the sent stream.
        """
        if self._ended:
            return
        count, data = part
        size = len(data) if type(data) is bytes else body_weight(data)
        size += OVERHEAD * count - _ARRAY_HEADER if count else OVERHEAD
        self._window.receive(size)
        self._held += size
        self._runs.append(part)
        if self._waiter is not None:
            self._wake()

    def drop(self) -> None:
        """Discard the unread items. Grants no credit for them."""
        self._runs.clear()
        self._held = 0

    def finish(self, error: BaseException | None = None) -> None:
        """End the stream, and wake the reader, which gets ``error`` after the last item. Idempotent.

        The error of the first call stays.
        """
        if not self._ended:
            self._end = error
            self._wake()
            self._ended = True  # Last: if a signal handler raises before, finish() is called again.

    def _wake(self) -> None:
        """Wake the reader, if it waits."""
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def take_runs(self) -> list[ItemRun]:
        """Remove and return the received items. The items of the call before now count as consumed."""
        self._grant_consumed()
        self._taken, self._held = self._held, 0
        parts, self._runs = self._runs, []
        return parts

    def _grant_consumed(self) -> None:
        """Grant credit for consumed items, once it is worth a frame."""
        granted = self._window.consume(self._taken)
        self._taken = 0
        if granted and not self._ended:
            self._grant(granted)

    async def wait_ready(self, pull: Callable[[], object] | None = None) -> bool:
        """Wait for items. Returns True if there are any, False at the end of the stream.

        Raises the error of the stream, once, at its end; later calls return False. ``pull`` fetches items that have
        arrived already. Yields to the event loop regularly.
        """
        if time.monotonic() > self._slice_end:
            await asyncio.sleep(0)
            self._slice_end = time.monotonic() + TIME_SLICE
        if pull is not None and not self._runs:
            pull()
        if not self._runs:
            self._grant_consumed()
        while not self._runs and not self._ended:
            self._waiter = asyncio.get_running_loop().create_future()
            try:
                await self._waiter
            finally:
                self._waiter = None
            self._slice_end = time.monotonic() + TIME_SLICE
        if self._runs:
            return True
        error, self._end = self._end, None
        if error is None:
            return False
        try:
            raise error
        finally:
            del error  # Its traceback refers to this frame.


async def iter_items(
    incoming: IncomingStream,
    decoder: ItemDecoder,
    convert_error: Callable[[Exception], Exception],
    stop: Callable[[], object],
) -> AsyncGenerator[Any, None]:
    """Yield the items up to the end of the stream. Raises the error of the stream after its items.

    ``convert_error`` returns the error to raise for an invalid item. If the reader leaves, or an item is invalid,
    before the end of the stream has arrived, finishes the stream and calls ``stop``.
    """
    try:
        while await incoming.wait_ready():
            for count, data in incoming.take_runs():
                try:
                    if not count:
                        # Without a local variable, which would keep the item until the next one.
                        yield decoder.decode_one(data)
                        continue
                    for item in decoder.decode_array(data):
                        yield item
                except UNREADABLE as error:  # Narrow: the caller's stream may fail with one of these, too.
                    raise convert_error(error) from None
    finally:
        if not incoming.ended:
            incoming.finish()
            stop()
