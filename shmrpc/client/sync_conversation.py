"""A call with streams in threads: the one that reads the answer also sends what there is credit for."""

from __future__ import annotations

import contextlib
import time
from collections import deque
from collections.abc import Generator, Sequence

from shmrpc import _core
from shmrpc.client.conversation import Conversation
from shmrpc.client.requests import Source, lost_call, unsendable
from shmrpc.client.sync_session import ThreadSession
from shmrpc.errors import RemoteProtocolError
from shmrpc.service.call import Call
from shmrpc.streams.credit import WORTH_GRANTING, ReceiveWindow, SendWindow, weight
from shmrpc.streams.items import unsendable_item
from shmrpc.transport.base import Frame
from shmrpc.transport.errors import Backlog, ChannelError, Oversize
from shmrpc.wire import frames
from shmrpc.wire.codec import Body, Codec
from shmrpc.wire.frames import opcode


class Feed:
    """One stream to the server."""

    def __init__(self, session: ThreadSession, call: Call, codec: Codec, source: Source) -> None:
        self._session = session
        self._call = call
        self._encode = codec.encode
        self._number, items = source
        self._source = items
        self._items = iter(items)
        #: Whether an item was ever asked for.
        self.touched = False
        self.window = SendWindow()
        self._error: Exception | None = None

    def grant(self, size: int) -> None:
        """The handler has consumed this many bytes."""
        self.window.grant(size)

    def send_one(self) -> None:
        """Takes an item and sends it, or says that there are no more."""
        self.touched = True
        try:
            item = next(self._items)
        except StopIteration:
            self.window.closed = True
            self._send(frames.END, frames.NIL)
            return
        except Exception as error:  # The source's own, or that of a signal's handler: as it is.
            self._fail(error, error)
            return
        endpoint = self._call.endpoint
        try:
            body = self._encode(item)
        except Exception as error:
            told = unsendable_item(item, error)
            self._fail(told, unsendable(endpoint, told))
            return
        self.window.spend(weight(body))
        try:
            self._send(frames.ITEM, body)
        except (Oversize, Backlog) as error:
            self._fail(error, unsendable(endpoint, error))

    def _fail(self, error: Exception, raised: Exception) -> None:
        """The stream ends with an error, of which the handler is told; unless it can live with it, ``raised`` comes."""
        self._error = raised
        self.window.closed = True
        self._send(frames.ABORT, frames.encode_failure(error, self._session.connection.max_frame))

    def _send(self, kind: int, body: Body) -> None:
        self._session.connection.send(opcode(kind, self._number), self._call.id, body)

    def take_error(self) -> Exception | None:
        """What the source raised, or what of it could not be sent; None if all went well, and to whoever asks again.

        The traceback of what is raised has who raises it, and so us: we do not keep it.
        """
        error, self._error = self._error, None
        return error

    def close(self) -> None:
        """No more of it is wanted. A generator's ``finally`` runs."""
        self.window.closed = True
        close = getattr(self._items, "close", None)
        if (
            close is not None and self.touched and self._items is self._source
        ):  # A list's iterator has none, a file is the caller's.
            with contextlib.suppress(ValueError):  # It is being iterated: the source itself ended the call.
                close()


def feeds_of(session: ThreadSession, call: Call, codec: Codec, sources: Sequence[Source]) -> dict[int, Feed]:
    """The streams of a call to the server, by number."""
    return {source[0]: Feed(session, call, codec, source) for source in sources}


class ThreadConversation(Conversation):
    """A call with streams, as threads drive it: they take its frames from the core one by one."""

    def __init__(self, session: ThreadSession, call: Call, *, streams: bool) -> None:
        super().__init__(call, streams=streams)
        self._session = session
        #: Items that have come and were not read so far.
        self.items: deque[Body] = deque()
        #: What it lets in, the core sees to.
        self._window = ReceiveWindow()

    def begin(self, kind: int, body: Body) -> None:
        """Sends the request."""
        self.pending = self._session.calls.begin(kind, self.call.id, body)

    def take_item(self, body: Body) -> None:
        """Keeps an item of the answer until it is read."""
        self.items.append(body)

    def take(self, frame: Frame) -> None:
        """Takes a frame that has come. Raises ChannelError for one that no server may send here."""
        try:
            self.feed(frame[0], frame[2])
        except RemoteProtocolError as error:
            raise ChannelError(str(error)) from None

    def consume(self, size: int) -> None:
        """Gives credit back for items of this weight that have been read, once it is worth it."""
        granted = self._window.consume(size)
        if granted and not self.ended and self._session.ended is None:
            with contextlib.suppress(ChannelError):  # Whoever receives next says so.
                self._session.connection.send(frames.CREDIT, self.call.id, frames.encode_credit(granted))


def converse(
    session: ThreadSession, call: Call, kind: int, body: Body, feeds: dict[int, Feed], *, streams: bool
) -> Generator[Body, None, Body]:
    """Makes a call with streams: yields the items that come, and returns the body of the result."""
    conversation = ThreadConversation(session, call, streams=streams)
    conversation.uploads.update(feeds)
    item, consumed = frames.ITEM if streams else None, 0
    sent = False
    try:
        conversation.begin(kind, body)
        sent = True
        while True:
            frame = _next_frame(session, call, conversation.pending, feeds)
            if frame[0] == item:  # The short way of what comes most.
                yield frame[2]
                consumed += weight(frame[2])
                if consumed >= WORTH_GRANTING:
                    conversation.consume(consumed)
                    consumed = 0
                continue
            conversation.take(frame)
            if conversation.error is not None:
                raise conversation.error
            if conversation.body is not None:
                return conversation.body
    except (ChannelError, Oversize, Backlog) as error:
        raise _unsent(session, call, error, sent=sent) from None
    except Exception as error:
        error = _broken(feeds) or error
        raise error from error.__cause__
    finally:
        session.calls.close(call.id)
        conversation.error = None  # Its traceback has this frame.
        for feed in feeds.values():
            feed.close()


def _unsent(session: ThreadSession, call: Call, error: Exception, *, sent: bool) -> Exception:
    """The error for a call of which something could not be sent. ``sent``: the call itself had gone before."""
    unsent = session.unsent(call.endpoint, error)
    if sent and session.ended is not None and isinstance(error, ChannelError):
        return lost_call(session.ended, call.id)
    return unsent


def _broken(feeds: dict[int, Feed]) -> Exception | None:
    """What went wrong with a source, if anything did. To be raised: nobody else has it then."""
    return next(filter(None, (feed.take_error() for feed in feeds.values())), None)


def _next_frame(session: ThreadSession, call: Call, pending: _core.Pending, feeds: dict[int, Feed]) -> Frame:
    """The next frame of the call; until it is there, items are sent as far as there is credit."""
    looked = time.monotonic()
    while True:
        ready = [feed for feed in feeds.values() if feed.window.is_open]
        if not ready:
            return session.next_frame(pending, call)
        session.check_stopped(call.id)
        # A source may be slow, and the server gone meanwhile.
        if time.monotonic() - looked > session.connection.life_check:
            looked = time.monotonic()
            session.tend()
        if session.ended is None:
            for feed in ready:
                feed.send_one()
        frame = session.poll_frame(pending)
        if frame is not None:
            return frame
