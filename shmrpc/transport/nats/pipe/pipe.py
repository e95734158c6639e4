"""One end of a connection over NATS: frames as a stream of bytes, which travels in messages.

A message is a header, then the next bytes of the stream. What was sent in one turn of the loop goes together, and a
frame that is larger than a message goes on in the next one::

    message   the receiver's proof (16 bytes), number (u64, from 1), messages of the other side that have come (u64),
              bytes that the other side may have on the way (u64), the sender's clock (u64, ns); then the bytes
    frame     opcode (u32), call id (u64), bytes of the body (u32), number of buffers (u32), the size of each (u64);
              then the body, and the buffers

NATS keeps the order of what one side sends to a subject, and may lose some of it: to a reader that is too slow, and
when it is restarted. The numbers tell. The receiver says how much may be on the way; what comes on top waits at the
sender, until the receiver has said that it has got some.

**Who sent it.** A message counts if it begins with this end's proof: a secret that the peer alone was told, as was the
subject. Each message has a reply subject beside it, where NATS reports at once if the receiver's has no subscriber; the
calls in the message were then certainly not executed. Nothing else is taken there, except that the peer's process says
the same, with the proof that the message began with, of a connection that it has forgotten.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
import struct
import time
from collections import deque
from collections.abc import Callable, Coroutine
from typing import Any, Final, Protocol

import msgspec

from shmrpc.basics.clock import host_nanoseconds
from shmrpc.basics.printable import one_line
from shmrpc.errors import ConnectionLost, RemoteProtocolError, ShmrpcError
from shmrpc.transport.connection import CloseReason
from shmrpc.transport.errors import Backlog, ChannelError, Oversize, check_size
from shmrpc.transport.nats import messages, subjects
from shmrpc.transport.nats.messages import PROOF, Message
from shmrpc.transport.nats.pipe.frame_reader import CONTROL, FRAME, FrameLimits, FrameReader
from shmrpc.transport.nats.pipe.round_trip import RoundTrip
from shmrpc.transport.nats.pipe.window_budget import WINDOW, WindowBudget
from shmrpc.wire import control, frames
from shmrpc.wire.codec import Body

logger = logging.getLogger("shmrpc.nats")

#: Bytes that wait at the sender, beyond which whoever sends is asked to wait.
HIGH_WATERMARK: Final = 64 << 10
#: Bytes of a large frame that go in one message, if NATS takes that many: parts of it travel while others are being
#: copied. NATS's client reads 32 KiB at a time, and is slow with messages of many times that.
MAX_PIECE: Final = 128 << 10
#: What a message has besides one piece, at most: its header, and that of a frame before it.
HEADER_RESERVE: Final = 1 << 10
#: Frames up to this size are copied into one piece, if NATS takes so much.
_SMALL: Final = 16 << 10
_HEADER: Final = struct.Struct(f"<{PROOF}sQQQQ")
#: The most numbers by which a message may be ahead of the expected one: more cannot be on the way.
_MAX_GAP: Final = 4 << 20
#: Of a heartbeat: after how much of it with nothing to say a side speaks, and after how much silence it is given up.
#: Between the two are more than three quarters, for which a loop may stand still.
BEAT_FRACTION: Final = 1 / 5
SILENCE_FRACTION: Final = 39 / 40
#: Seconds that a peer has to take what was sent before the end: at least, at most, and at how many bytes a second.
#: A peer that lives and takes nothing holds its own connection up, and not the end of the process.
_MIN_CLOSE_TIMEOUT: Final = 5.0
_LONGEST_CLOSE: Final = 30.0
_SLOWEST: Final = 1 << 20
#: The kinds of frames that begin a call; CONTROL's is none.
_REQUESTS: Final = frozenset(frames.REQUESTS)


#: Takes a frame: opcode, call id, body, and the sender's clock in nanoseconds.
OnFrame = Callable[[int, int, Body, int], None]
#: What has come, or the end.
_Event = tuple[int, int, Body, int] | Message | CloseReason


class PipeLink(Protocol):
    """The connection to NATS, as the pipes that go through it use it."""

    #: Bytes of a large frame that go into one message.
    piece: int
    #: Seconds within which a dead peer is noticed.
    heartbeat: float
    is_open: bool
    #: Distributes the bytes that may be on the way to this process.
    budget: WindowBudget

    def add(self, pipe: Pipe, /) -> tuple[str, str]:
        """Register a pipe; return the subject of its messages, and that of its notices."""
        ...

    def remove(self, pipe: Pipe, /) -> None:
        """Unregister a closed pipe."""
        ...

    def schedule_send(self, pipe: Pipe, /) -> None:
        """Schedule the messages of a pipe."""
        ...

    def run(self, work: Coroutine[Any, Any, Any], /) -> asyncio.Task[Any]:
        """Run a coroutine in a task that is never cancelled."""
        ...

    async def flush(self) -> bool:
        """Wait until NATS has processed all that was sent to it."""
        ...

    def describe_loop_stall(self) -> str:
        """Return a clause that says for how long the event loop was blocked; "" if it was not."""
        ...

    def describe_loss(self) -> str:
        """Return the probable reason for lost messages."""
        ...

    async def wait_closed(self) -> None:
        """Wait until the link is closed, if no other user needs it."""
        ...


class Pipe:
    """One end of a connection."""

    def __init__(self, link: PipeLink, limits: FrameLimits) -> None:
        self._link = link
        self._reader = FrameReader(limits, self._deliver)
        self.set_limits(limits)
        self._loop = asyncio.get_running_loop()
        self._small = min(_SMALL, link.piece)
        self._on_frame: OnFrame = self._keep_frame
        self._on_message: Callable[[Message], None] = self._keep
        self._on_end: Callable[[CloseReason], None] = self._keep
        #: What came before anybody listened.
        self._early: deque[_Event] = deque()
        self._first: asyncio.Future[None] = self._loop.create_future()
        #: The bytes with which each message to this end begins.
        self.proof = secrets.token_bytes(PROOF)
        #: Bytes that may be on the way to this end.
        self.window = link.budget.join()
        #: The subject to which the peer sends, and that at which NATS reports that the peer's has no subscriber.
        self.subject, self.notices = link.add(self)
        #: The other end's subject, "" until it is known, and its proof.
        self.peer, self._peer_proof = "", b""
        #: Names the other side, for messages.
        self.peer_description = "the other side"
        #: Seconds within which a dead peer is to be noticed.
        self.heartbeat = link.heartbeat
        #: When anything last came, and when anything was last sent.
        self.last_received = self.last_sent = self._made = time.monotonic()
        #: Whether the link knows that there is something to be sent.
        self.is_queued = False
        self.is_open = True
        self._closing = False
        #: When a closing end no longer waits for its peer to take what was sent; None while it does not close.
        self._last_moment: asyncio.TimerHandle | None = None
        #: Done when it is closed.
        self.closed: asyncio.Future[None] = self._loop.create_future()
        self._room_waiter: asyncio.Future[None] | None = None
        #: What goes: pieces, with the id of the request that begins there or 0.
        self._pieces: deque[tuple[bytes | memoryview, int]] = deque()
        self._waiting = 0
        self._number = 0
        self._sent = 0
        #: Messages, and bytes in them, that the other side has said it has got; what it lets be on the way.
        self._peer_received_count = self._peer_received_bytes = self._peer_window = 0
        #: Whether the other side is to hear from us even if there is nothing to say.
        self._must_send = False
        #: Messages that the other side may not have got: where each ends, the first request that begins in it or 0.
        self._log: deque[tuple[int, int]] = deque()
        #: Messages that certainly have reached nobody.
        self._undelivered = 0
        self._round_trip = RoundTrip()
        self.extra_credit = self._round_trip.extra_credit
        # What comes.
        self._received_count = 0
        self._received_bytes = 0
        self._acknowledged_bytes = 0
        #: The bytes that had come when the window was last set.
        self._received_at_window_change = 0

    def set_limits(self, limits: FrameLimits) -> None:
        """Sets the limits that both sides have agreed on."""
        self.limits = self._reader.limits = limits
        #: Bytes that may wait for a side that reads nothing.
        self._max_waiting = limits.max_memory + limits.max_frame

    def _keep(self, event: _Event) -> None:
        self._early.append(event)
        if not self._first.done():
            self._first.set_result(None)

    def _keep_frame(self, *frame: Any) -> None:
        self._keep(frame)

    async def first_message(self) -> Message:
        """Waits for the first message that comes. Raises why there is none."""
        await self._first
        event = self._early.popleft()
        if isinstance(event, CloseReason):
            raise event.error
        if isinstance(event, tuple):
            raise RemoteProtocolError(f"{self.peer_description} sent a frame before it had answered")
        return event

    def listen(
        self, on_frame: OnFrame, on_message: Callable[[Message], None], on_end: Callable[[CloseReason], None]
    ) -> None:
        """Gives to these what comes, and what has come, from the loop's next turn on."""

        def give_early() -> None:
            early, self._early = self._early, deque()
            self._on_frame, self._on_message, self._on_end = on_frame, on_message, on_end
            try:
                for event in early:
                    if isinstance(event, CloseReason):
                        on_end(event)
                    elif isinstance(event, tuple):
                        on_frame(*event)
                    else:
                        on_message(event)
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
        if self._waiting > self._max_waiting:
            raise Backlog(f"{self._waiting:,} bytes wait for it, and it reads nothing")
        request = call_id if opcode & 0xFF in _REQUESTS else 0
        if isinstance(body, bytes):
            size = len(body)
            if size > self._small:
                self._put(FRAME.pack(opcode, call_id, size, 0), request, body)
            else:  # As most are: without a step more than it takes.
                self._pieces.append((FRAME.pack(opcode, call_id, size, 0) + body, request))
                self._waiting += FRAME.size + size
                if not self.is_queued and self.peer:
                    self._link.schedule_send(self)
        else:
            buffers = [memoryview(buffer).cast("B") for buffer in body.buffers]
            sizes = [len(buffer) for buffer in buffers]
            if sum(sizes) > self.limits.max_memory:
                most = self.limits.max_memory
                raise Oversize(f"buffers of {sum(sizes):,} bytes, and the smaller of both sides' max_memory={most:,}")
            table = struct.pack(f"<{len(sizes)}Q", *sizes)
            self._put(FRAME.pack(opcode, call_id, len(body.body), len(sizes)), request, table, body.body, *buffers)
        return self._waiting <= HIGH_WATERMARK

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
            self._link.schedule_send(self)

    def send_message(self, message: Message) -> None:
        """Sends a message of ours behind the frames that were sent before; nothing if the connection is closed."""
        if self.is_open and not self._closing:
            data = messages.encode(message)
            self._put(FRAME.pack(CONTROL, 0, len(data), 0), 0, data)

    async def wait_for_room(self) -> None:
        """Waits until little waits to be sent."""
        while self.is_open and self._waiting > HIGH_WATERMARK:
            if self._room_waiter is None or self._room_waiter.done():
                self._room_waiter = self._loop.create_future()
            await asyncio.shield(self._room_waiter)

    @property
    def has_pending_replies(self) -> bool:
        """Whether something waits to be sent."""
        return bool(self._pieces)

    def set_peer(self, peer: str, proof: bytes, window: int | None = None) -> None:
        """The other end's subject and proof are known: what was sent goes there.

        ``window``: bytes that may be on the way, if the other end has not said so in a message.
        Raises RemoteProtocolError for what cannot be a subject.
        """
        if not subjects.is_end(peer):
            raise RemoteProtocolError(f"{self.peer_description} named {peer[:80]!r} as its subject")
        self.peer, self._peer_proof = peer, proof
        if self._received_count:  # It has answered a hello of ours.
            self._round_trip.seconds = time.monotonic() - self._made
        if window is not None:
            self._peer_window = window
        self._link.schedule_send(self)

    def send_heartbeat(self) -> None:
        """Has the other side hear from us. Its window goes back to its share unless it has used it."""
        if self.peer:
            self._release_window()
            self._must_send = True
            self._link.schedule_send(self)

    def shrink_window(self) -> None:
        """Lets others have what the other side does not use of its window."""
        if self.peer and self._release_window():
            self._must_send = True
            self._link.schedule_send(self)

    def _release_window(self) -> bool:
        """Sets the window to its share if nothing has come since the last time; whether that changes it."""
        budget, before, come_then = self._link.budget, self.window, self._received_at_window_change
        self._received_at_window_change = self._received_bytes
        if self._received_bytes == come_then:
            self.window = budget.change(before, budget.share)
        return self.window != before

    @property
    def _room(self) -> int:
        """Bytes that may go on their way now."""
        return 0 if self._undelivered else self._peer_received_bytes + self._peer_window - self._sent

    def next_message(self) -> bytes | None:
        """The next message; None if there is none to be sent now."""
        if not self.is_open or not (self._must_send or self.has_more):
            return None
        parts: list[bytes | memoryview] = [b""]
        first, largest = 0, self._link.piece + HEADER_RESERVE
        size, room = _HEADER.size, self._room
        while self._pieces:
            piece, request = self._pieces[0]
            length = len(piece)
            if len(parts) > 1 and size + length > largest:
                break
            if length > room:
                if room < FRAME.size:
                    break  # A frame's header lies in one message.
                rest = memoryview(piece)
                piece, length = rest[:room], room
                self._pieces[0] = rest[room:], 0
            else:
                self._pieces.popleft()
            first = first or request
            parts.append(piece)
            size += length
            room -= length
        body = size - _HEADER.size
        self._sent += body
        self._waiting -= body
        self._number += 1
        self._log.append((self._sent, first))
        self._acknowledged_bytes, self._must_send = self._received_bytes, False
        self.last_sent = time.monotonic()
        if body:
            self._round_trip.begin(self._number, self._peer_received_count, self.last_sent)
        parts[0] = _HEADER.pack(self._peer_proof, self._number, self._received_count, self.window, host_nanoseconds())
        if self._waiting <= HIGH_WATERMARK and self._room_waiter is not None and not self._room_waiter.done():
            self._room_waiter.set_result(None)
        return b"".join(parts)

    @property
    def has_more(self) -> bool:
        """Whether there is another message to be sent now."""
        return bool(self._pieces) and self._room >= min(len(self._pieces[0][0]), FRAME.size)

    def receive(self, data: bytes) -> None:
        """Takes a message that has come to this end's subject."""
        if not self.is_open:
            return
        if data[:PROOF] != self.proof:
            logger.debug("dropped %d bytes that came as if from %s", len(data), self.peer_description)
            return
        try:
            self._receive(data)
        except (RemoteProtocolError, struct.error, msgspec.MsgspecError) as error:
            self.fault(str(error))

    def receive_notice(self, data: bytes, *, is_undelivered: bool) -> None:
        """Take a message of the reply subject, which reports that one of ours has reached no subscriber.

        ``is_undelivered``: NATS says so. Else the peer's process may, with the proof that our message began with.
        """
        if self.is_open and (is_undelivered or (self._peer_proof and data == self._peer_proof)):
            self._undelivered += 1
            if not self.peer:  # Of the hello.
                self.end(ConnectionLost("none of its servers is connected to that NATS"))
            elif self._undelivered == 1:
                self._link.run(self._end_undelivered())

    async def _end_undelivered(self) -> None:
        """Ends the connection, once it is known how many of our messages have reached nobody."""
        await self._link.flush()
        why = f"it died, was killed, or left without a word{self._link.describe_loop_stall()}"
        self.end(ConnectionLost(f"{self.peer_description} is gone: {why}"))

    def _receive(self, data: bytes) -> None:
        _, number, taken, window, clock = _HEADER.unpack_from(data)
        expected = self._received_count + 1
        if number - expected > _MAX_GAP:
            raise RemoteProtocolError(f"it numbered a message {number}, and {expected} was expected")
        if number != expected:
            lost = f"{number - expected:,} messages" if number > expected else "the order of messages"
            if self._closing:
                self.discard()
            self.end(ConnectionLost(f"NATS lost {lost} from {self.peer_description}: {self._link.describe_loss()}"))
            return
        self._received_count = number
        self.last_received = time.monotonic()
        self._acknowledge(taken)
        self._peer_window = min(window, WINDOW)
        if self._pieces and self.peer:
            self._link.schedule_send(self)
        come = len(data) - _HEADER.size
        self._received_bytes += come
        if self._closing:
            return
        if come and self._received_bytes - self._acknowledged_bytes > self.window // 4:
            self.window = self._link.budget.change(self.window, 2 * self.window)
            self._must_send = True
            self._link.schedule_send(self)
        self._reader.read(data, _HEADER.size, clock)

    def _acknowledge(self, taken: int) -> None:
        """Forgets messages of ours that the other side has got."""
        if not self._peer_received_count <= taken <= self._number:
            raise RemoteProtocolError(f"it has got {taken} messages of {self._number}")
        for _ in range(taken - self._peer_received_count):
            self._peer_received_bytes, _ = self._log.popleft()
        self._round_trip.end(self._peer_received_count, taken, self.last_received)
        self._peer_received_count = taken

    def _deliver(self, opcode: int, call_id: int, body: Body, clock: int) -> bool:
        """Give a frame, or a message of ours, to what takes it; whether this end is still open."""
        if opcode != CONTROL:
            self._on_frame(opcode, call_id, body, clock)
        elif isinstance(body, bytes):
            self._on_message(messages.decode(body))
        else:
            raise RemoteProtocolError("it sent a message with buffers")
        return self.is_open

    def fault(self, reason: str) -> None:
        """The other side broke a rule: ends the connection, and tells it."""
        if self.is_open and not self._closing:
            reason = one_line(reason)
            self.send_message(control.Goodbye(reason, fault=True))
            self.finish()
            self._on_end(CloseReason(RemoteProtocolError(f"{self.peer_description}: {reason}")))

    def end(self, error: ShmrpcError, reached: int | None = None) -> None:
        """Ends the connection for a reason that the layer above is told.

        ``reached``: the highest id of a call that the other side took, if it said so.
        """
        if self.is_open and not self._closing:
            if reached is None:
                reached = self._reached()
            self.discard()  # What waits is not sent any more: its callers are told so.
            self._on_end(CloseReason(error, reached))

    def _reached(self) -> int | None:
        """The highest id of a request that may have got there; None if that is not known of any."""
        undelivered = [*self._log][max(0, len(self._log) - self._undelivered) :] if self._undelivered else []
        waiting = next((request for _, request in self._pieces if request), 0)
        first = next((request for _, request in undelivered if request), waiting)
        return first - 1 if first else None

    def finish(self) -> None:
        """Closes once all is sent that waits, or the time for it is over; no more messages are taken."""
        self._closing = True
        if not self._pieces or not self.peer or self._undelivered or not self._link.is_open:
            self.discard()
        else:
            self._link.schedule_send(self)
            if self._last_moment is None:
                seconds = min(_MIN_CLOSE_TIMEOUT + self._waiting / _SLOWEST, _LONGEST_CLOSE)
                self._last_moment = self._loop.call_later(seconds, self.discard)

    def sent(self) -> None:
        """A message is on its way."""
        if self._closing and not self._pieces:
            self.discard()

    def discard(self) -> None:
        """Forgets all. Again: nothing."""
        if not self.is_open:
            return
        self.is_open, self._closing = False, True
        self._pieces.clear()
        self._reader.clear()
        if self._room_waiter is not None and not self._room_waiter.done():
            self._room_waiter.set_result(None)
        if self._last_moment is not None:
            self._last_moment.cancel()
        if not self.closed.done():
            self.closed.set_result(None)
        self._link.budget.leave(self.window)
        self._link.remove(self)

    async def wait_closed(self) -> None:
        """Waits until all was sent before :meth:`finish`, and the link is closed if nobody else needs it."""
        await asyncio.wait([self.closed])
        await self._link.wait_closed()

    @property
    def is_closing(self) -> bool:
        """Whether it closes as soon as all is sent."""
        return self._closing
