"""One end of a connection over NATS: frames as a stream of bytes, which travels in messages.

A message is a header, then the next bytes of the stream. What was sent in one turn of the loop goes together, and a
frame that is larger than a message goes on in the next one::

    message   number (u64, from 1), bytes of the other stream that have come (u64), the sender's clock (u64, ns), bytes
    frame     opcode (u32), call id (u64), bytes of the body (u32), number of buffers (u32), the size of each (u64);
              then the body, and the buffers

NATS keeps the order of what one side sends to a subject, and may lose some of it: to a reader that is too slow, and
when it is restarted. The numbers tell. Up to :data:`WINDOW` bytes are on the way; what comes on top waits at the
sender, until the receiver has said that it has got some. Each message has its sender's subject beside it: NATS tells at
once if nobody listens at the receiver's, and then what it had was certainly not executed.
"""

from __future__ import annotations

import asyncio
import logging
import struct
import time
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

import msgspec

from shmrpc import _core
from shmrpc.errors import ConnectionLost, RemoteProtocolError, ShmrpcError
from shmrpc.transport.base import End
from shmrpc.transport.errors import Backlog, ChannelError, Oversize, check_size
from shmrpc.transport.nats import messages, subjects
from shmrpc.transport.nats.messages import Message
from shmrpc.wire import control, frames
from shmrpc.wire.codec import Body

if TYPE_CHECKING:
    from shmrpc.transport.nats.link import Link

logger = logging.getLogger("shmrpc.nats")

#: Bytes on the way, beyond which a sender waits. A server of NATS cuts off a reader that is 64 MiB behind.
WINDOW: Final = 4 << 20
#: Bytes that wait at the sender, beyond which whoever sends is asked to wait.
ROOM: Final = 64 << 10
#: Bytes of a large frame that go in one message, if NATS takes that many: parts of it travel while others are being
#: copied. NATS's client reads 32 KiB at a time, and is slow with messages of many times that.
PIECE: Final = 128 << 10
#: What a message has besides one piece, at most: its header, and that of a frame before it.
BESIDE: Final = 1 << 10
#: Frames up to this size are copied into one piece, if NATS takes so much.
_SMALL: Final = 16 << 10
#: Buffers of one frame: a peer that announces more is not believed.
_MAX_BUFFERS: Final = 1 << 16
#: In the place of an opcode: the body is a message of :mod:`.messages`.
CONTROL: Final = 0xFFFF_FFFF

_HEADER: Final = struct.Struct("<QQQ")
_FRAME: Final = struct.Struct("<IQII")
#: The kinds of frames that begin a call; CONTROL's is none.
_REQUESTS: Final = frozenset(frames.REQUESTS)


class Limits(msgspec.Struct, frozen=True):
    """Bytes of the largest body, and of the large buffers of one frame."""

    max_frame: int
    max_memory: int


#: Takes a frame: opcode, call id, body, and the sender's clock in nanoseconds.
OnFrame = Callable[[int, int, Body, int], None]
#: What has come, or the end.
_News = tuple[int, int, Body, int] | Message | End


class Pipe:
    """One end of a connection."""

    def __init__(self, link: Link, limits: Limits) -> None:
        self._link = link
        self.agree(limits)
        self._loop = asyncio.get_running_loop()
        self._small = min(_SMALL, link.piece)
        self._on_frame: OnFrame = self._keep_frame
        self._on_message: Callable[[Message], None] = self._keep
        self._on_end: Callable[[End], None] = self._keep
        #: What came before anybody listened.
        self._early: deque[_News] = deque()
        self._first: asyncio.Future[None] = self._loop.create_future()
        self.subject = link.add(self)
        #: The other end's subject; "" until it is known.
        self.peer = ""
        #: Names the other side, for messages.
        self.words = "the other side"
        #: Seconds within which a dead peer is to be noticed.
        self.heartbeat = link.heartbeat
        #: When anything last came.
        self.heard = time.monotonic()
        #: Whether the link knows that there is something to be sent.
        self.is_queued = False
        #: Whether something was sent since the link last looked.
        self.has_spoken = False
        self.is_open = True
        self._closing = False
        #: Done when it is closed.
        self.closed: asyncio.Future[None] = self._loop.create_future()
        self._room: asyncio.Future[None] | None = None
        #: What goes: pieces, with the id of the request that begins there or 0.
        self._pieces: deque[tuple[bytes, int]] = deque()
        self._waiting = 0
        self._number = 0
        self._sent = 0
        #: Bytes that the other side has said it has got.
        self._got = 0
        #: Whether the other side is to hear from us even if there is nothing to say.
        self._must_speak = False
        #: Messages that the other side may not have got: where each ends, the first request that begins in it or 0.
        self._log: deque[tuple[int, int]] = deque()
        #: Messages that certainly have reached nobody.
        self._undelivered = 0
        # What comes.
        self._expected = 1
        self._come = 0
        self._told = 0
        self._partial: _Partial | None = None

    def agree(self, limits: Limits) -> None:
        """Sets the limits that both sides have agreed on."""
        self.limits = limits
        #: Bytes that may wait for a side that reads nothing.
        self._most = limits.max_memory + limits.max_frame

    def _keep(self, news: _News) -> None:
        self._early.append(news)
        if not self._first.done():
            self._first.set_result(None)

    def _keep_frame(self, *frame: Any) -> None:
        self._keep(frame)

    async def first(self) -> Message:
        """Waits for the first message that comes. Raises why there is none."""
        await self._first
        news = self._early.popleft()
        if isinstance(news, End):
            raise news.error
        if isinstance(news, tuple):
            raise RemoteProtocolError(f"{self.words} sent a frame before it had answered")
        return news

    def listen(self, on_frame: OnFrame, on_message: Callable[[Message], None], on_end: Callable[[End], None]) -> None:
        """Gives to these what comes, and what has come, from the loop's next turn on."""

        def give_early() -> None:
            early, self._early = self._early, deque()
            self._on_frame, self._on_message, self._on_end = on_frame, on_message, on_end
            try:
                for news in early:
                    if isinstance(news, End):
                        on_end(news)
                    elif isinstance(news, tuple):
                        on_frame(*news)
                    else:
                        on_message(news)
            except RemoteProtocolError as error:
                self.fault(str(error))

        self._loop.call_soon(give_early)

    def send(self, opcode: int, call_id: int, body: Body) -> bool:
        """Sends a frame; False if so much waits already that the sender should, too.

        Raises Oversize, ChannelError if the connection is closed, Backlog if the other side reads nothing.
        """
        check_size(body, self.limits.max_frame)
        if self._closing:
            raise ChannelError("the connection is closed")
        if self._waiting > self._most:
            raise Backlog(f"{self._waiting:,} bytes wait for it, and it reads nothing")
        request = call_id if opcode & 0xFF in _REQUESTS else 0
        if isinstance(body, bytes):
            size = len(body)
            if size > self._small:
                self._put(_FRAME.pack(opcode, call_id, size, 0), request, body)
            else:  # As most are: without a step more than it takes.
                self._pieces.append((_FRAME.pack(opcode, call_id, size, 0) + body, request))
                self._waiting += _FRAME.size + size
                if not self.is_queued and self.peer:
                    self._link.speak(self)
        else:
            buffers = [memoryview(buffer).cast("B") for buffer in body.buffers]
            sizes = [len(buffer) for buffer in buffers]
            if sum(sizes) > self.limits.max_memory:
                most = self.limits.max_memory
                raise Oversize(f"buffers of {sum(sizes):,} bytes, and the smaller of both sides' max_memory={most:,}")
            table = struct.pack(f"<{len(sizes)}Q", *sizes)
            self._put(_FRAME.pack(opcode, call_id, len(body.body), len(sizes)), request, table, body.body, *buffers)
        return self._waiting <= ROOM

    def _put(self, header: bytes, request: int, *parts: bytes | memoryview) -> None:
        """Copies a frame in pieces that each fit into a message: its owner may change it as soon as this is done."""
        size = len(header) + sum(map(len, parts))
        self._waiting += size
        if size <= self._small:
            self._pieces.append((b"".join((header, *parts)), request))
        else:
            self._pieces.append((header, request))
            step = self._link.piece
            for part in parts:
                self._pieces.extend((bytes(part[at : at + step]), 0) for at in range(0, len(part), step))
        if self.peer and not self.is_queued:
            self._link.speak(self)

    def say(self, message: Message) -> None:
        """Sends a message of ours behind the frames that were sent before; nothing if the connection is closed."""
        if self.is_open and not self._closing:
            data = messages.encode(message)
            self._put(_FRAME.pack(CONTROL, 0, len(data), 0), 0, data)

    async def room(self) -> None:
        """Waits until little waits to be sent."""
        while self.is_open and self._waiting > ROOM:
            if self._room is None or self._room.done():
                self._room = self._loop.create_future()
            await asyncio.shield(self._room)

    @property
    def is_awaited(self) -> bool:
        """Whether something waits to be sent."""
        return bool(self._pieces)

    def found(self, peer: str) -> None:
        """The other end's subject is known: what was sent goes there."""
        self.peer = peer
        self._link.speak(self)

    def beat(self) -> None:
        """Has the other side hear from us, unless it has just done."""
        if self.has_spoken:
            self.has_spoken = False
        elif self.peer:
            self._must_speak = True
            self._link.speak(self)

    def next_message(self) -> bytes | None:
        """The next message; None if there is none to be sent now."""
        if not self.is_open or not ((self._pieces and self._sent - self._got < WINDOW) or self._must_speak):
            return None
        parts, first, largest = [b""], 0, self._link.piece + BESIDE
        size = _HEADER.size
        while self._pieces and self._sent - self._got < WINDOW:
            piece, request = self._pieces[0]
            if len(parts) > 1 and size + len(piece) > largest:
                break
            self._pieces.popleft()
            first = first or request
            parts.append(piece)
            size += len(piece)
            self._sent += len(piece)
        self._waiting -= size - _HEADER.size
        self._number += 1
        self._log.append((self._sent, first))
        self._told, self._must_speak, self.has_spoken = self._come, False, True
        parts[0] = _HEADER.pack(self._number, self._come, time.monotonic_ns())
        if self._waiting <= ROOM and self._room is not None and not self._room.done():
            self._room.set_result(None)
        return b"".join(parts)

    @property
    def has_more(self) -> bool:
        """Whether there is another message to be sent now."""
        return bool(self._pieces) and self._sent - self._got < WINDOW

    def take(self, data: bytes, sender: str, *, is_unheard: bool) -> None:
        """Takes a message that has come. ``is_unheard``: it says that one of ours has reached nobody."""
        if not self.is_open:
            return
        if is_unheard:
            self._take_unheard()
            return
        try:
            self._take(data, sender)
        except (RemoteProtocolError, struct.error, msgspec.MsgspecError) as error:
            self.fault(str(error))

    def _take_unheard(self) -> None:
        self._undelivered += 1
        if not self.peer:  # Of the hello.
            self.end(ConnectionLost("none of its servers is connected to that NATS"))
        elif self._undelivered == 1:
            self._link.run(self._end_unheard())

    async def _end_unheard(self) -> None:
        """Ends the connection, once it is known how many of our messages have reached nobody."""
        await self._link.settle()
        why = f"it died, was killed, or left without a word{self._link.standstill()}"
        self.end(ConnectionLost(f"{self.words} is gone: {why}"))

    def _take(self, data: bytes, sender: str) -> None:
        if self.peer and sender != self.peer:
            logger.debug("dropped what %r sent as if it were %s", sender, self.words)
            return
        number, got, clock = _HEADER.unpack_from(data)
        if number - self._expected > WINDOW:  # More than can be on the way.
            raise RemoteProtocolError(f"it numbered a message {number}, and {self._expected} was expected")
        if number != self._expected:
            lost = f"{number - self._expected:,} messages" if number > self._expected else "the order of messages"
            if self._closing:
                self.gone()
            self.end(ConnectionLost(f"NATS lost {lost} from {self.words}: {self._link.why_lost()}"))
            return
        self._expected += 1
        self.heard = time.monotonic()
        if not self._got <= got <= self._sent:
            raise RemoteProtocolError(f"it has got {got} bytes of {self._sent}")
        if not self.peer:
            if not subjects.is_end(sender):
                raise RemoteProtocolError(f"it named {sender!r} as its subject")
            self.found(sender)
        if got != self._got:
            self._got = got
            log = self._log
            while log and log[0][0] <= got:
                log.popleft()
            if self._pieces:
                self._link.speak(self)
        self._come += len(data) - _HEADER.size
        if self._closing:
            return
        if self._come - self._told > WINDOW // 4:
            self._must_speak = True
            self._link.speak(self)
        self._read(data, clock)

    def _read(self, data: bytes, clock: int) -> None:
        """Takes the frames, or the parts of one, in a message."""
        at, end = _HEADER.size, len(data)
        while at < end and self.is_open:
            if self._partial is not None:
                at += self._partial.fill(memoryview(data)[at:])
                self._bring_whole(clock)
                continue
            opcode, call_id, size, count = _FRAME.unpack_from(data, at)
            at += _FRAME.size
            if size > self.limits.max_frame and opcode != CONTROL:
                raise RemoteProtocolError(f"it sent a body of {size} bytes, the limit is {self.limits.max_frame}")
            if not count and at + size <= end:
                self._bring(opcode, call_id, data[at : at + size], clock)
                at += size
                continue
            if count > _MAX_BUFFERS:
                raise RemoteProtocolError(f"it sent {count} buffers with a body, the limit is {_MAX_BUFFERS}")
            self._partial = _Partial(opcode, call_id, size, count, self.limits.max_memory)
            self._bring_whole(clock)

    def _bring_whole(self, clock: int) -> None:
        partial = self._partial
        if partial is not None and partial.is_whole:
            self._partial = None
            self._bring(partial.opcode, partial.call_id, partial.body(), clock)

    def _bring(self, opcode: int, call_id: int, body: Body, clock: int) -> None:
        if opcode != CONTROL:
            self._on_frame(opcode, call_id, body, clock)
        elif isinstance(body, bytes):
            self._on_message(messages.decode(body))
        else:
            raise RemoteProtocolError("it sent a message with buffers")

    def fault(self, reason: str) -> None:
        """The other side broke a rule: ends the connection, and tells it."""
        if self.is_open and not self._closing:
            self.say(control.Goodbye(reason[:500], fault=True))
            self.finish()
            self._on_end(End(RemoteProtocolError(f"{self.words}: {reason}")))

    def end(self, error: ShmrpcError, reached: int | None = None) -> None:
        """Ends the connection for a reason that the layer above is told.

        ``reached``: the highest id of a call that the other side took, if it said so.
        """
        if self.is_open and not self._closing:
            if reached is None:
                reached = self._reached()
            self.gone()  # What waits is not sent any more: its callers are told so.
            self._on_end(End(error, reached))

    def _reached(self) -> int | None:
        """The highest id of a request that may have got there; None if that is not known of any."""
        undelivered = [*self._log][max(0, len(self._log) - self._undelivered) :] if self._undelivered else []
        waiting = next((request for _, request in self._pieces if request), 0)
        first = next((request for _, request in undelivered if request), waiting)
        return first - 1 if first else None

    def finish(self) -> None:
        """Closes once all is sent that waits; nothing is taken any more."""
        self._closing = True
        if not self._pieces or not self.peer or self._undelivered or not self._link.is_open:
            self.gone()
        else:
            self._link.speak(self)

    def sent(self) -> None:
        """A message is on its way."""
        if self._closing and not self._pieces:
            self.gone()

    def gone(self) -> None:
        """Forgets all. Again: nothing."""
        if not self.is_open:
            return
        self.is_open, self._closing = False, True
        self._pieces.clear()
        self._partial = None
        if self._room is not None and not self._room.done():
            self._room.set_result(None)
        if not self.closed.done():
            self.closed.set_result(None)
        self._link.remove(self)

    async def wait_closed(self) -> None:
        """Waits until all was sent before :meth:`finish`, and the link is closed if nobody else needs it."""
        await asyncio.wait([self.closed])
        await self._link.wait_closed()

    @property
    def is_closing(self) -> bool:
        """Whether it closes as soon as all is sent."""
        return self._closing


class _Partial:
    """A frame of which parts have come: the sizes of its buffers, the body, and the buffers."""

    def __init__(self, opcode: int, call_id: int, size: int, count: int, max_memory: int) -> None:
        self.opcode, self.call_id = opcode, call_id
        self._max_memory = max_memory
        self._sizes = [8 * count, size]
        #: What has come of each. They keep the messages; in the end they are copied once.
        self._parts: list[list[memoryview]] = [[], []]
        self._place = 0
        self._missing = 8 * count
        self._go_on()

    def _go_on(self) -> None:
        """Goes on to the next part that is not whole."""
        while not self._missing and self._place < len(self._sizes):
            if not self._place:
                self._read_sizes()
            self._place += 1
            self._missing = self._sizes[self._place] if self._place < len(self._sizes) else 0

    def _read_sizes(self) -> None:
        table = b"".join(self._parts[0])
        sizes = struct.unpack(f"<{len(table) // 8}Q", table)
        if sum(sizes) > self._max_memory:
            raise RemoteProtocolError(f"it sent buffers of {sum(sizes):,} bytes, max_memory={self._max_memory:,}")
        self._sizes += sizes
        self._parts += ([] for _ in sizes)

    @property
    def is_whole(self) -> bool:
        """Whether all of it is there."""
        return self._place == len(self._sizes)

    def fill(self, data: memoryview) -> int:
        """Takes what belongs to it; how many bytes. Raises RemoteProtocolError if its buffers are too large."""
        used = 0
        while used < len(data) and not self.is_whole:
            step = min(self._missing, len(data) - used)
            self._parts[self._place].append(data[used : used + step])
            self._missing -= step
            used += step
            self._go_on()
        return used

    def body(self) -> Body:
        """The body, with its buffers."""
        _, body, *buffers = map(b"".join, self._parts)
        return _core.Parcel(body, buffers) if buffers else body
