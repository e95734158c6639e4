"""One end of a connection over NATS, which carries frames as a stream of bytes in messages.

A message is a header, then the next bytes of the stream. Frames sent in one iteration of the loop travel together, and
a frame larger than a message continues in the next one::

    message   the receiver's proof (16 bytes), number (u64, from 1), number of messages received from the other side
              (u64), bytes that the other side may have in flight (u64), the sender's clock (u64, ns); then the bytes
    frame     opcode (u32), call id (u64), bytes of the body (u32), number of buffers (u32), the size of each (u64);
              then the body, and the buffers

NATS keeps the order of messages to a subject, and may lose some of them: if the reader is too slow, and when NATS is
restarted. The numbers reveal the loss. The receiver limits the bytes in flight; further bytes wait at the sender for an
acknowledgement.

**Authentication.** A message is valid if it begins with this end's proof: a secret that only the peer knows, like
the subject. Each message names a reply subject, where NATS reports at once if the receiver's subject has no subscriber.
The calls in the message were then certainly not executed. The only other message accepted there comes from the peer's
process: it returns the proof of a message to a connection that it has forgotten.
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

#: Unsent bytes above which senders are asked to wait.
HIGH_WATERMARK: Final = 64 << 10
#: Maximum bytes of a large frame in one message, if NATS accepts that many. Parts of the frame travel while others are
#: copied. NATS's client reads 32 KiB at a time, and is slow with messages many times as large.
MAX_PIECE: Final = 128 << 10
#: Maximum bytes of a message in addition to one piece: its header, and that of a frame before the piece.
HEADER_RESERVE: Final = 1 << 10
#: Frames up to this size are copied into one piece, if NATS accepts that many bytes.
_SMALL: Final = 16 << 10
_HEADER: Final = struct.Struct(f"<{PROOF}sQQQQ")
#: Maximum gap between the numbers of messages. More messages cannot be in flight.
_MAX_GAP: Final = 4 << 20
#: Fractions of a heartbeat: of silence after which a side sends a message, and after which it closes the connection.
#: The event loop may be blocked for the difference, more than three quarters.
BEAT_FRACTION: Final = 1 / 5
SILENCE_FRACTION: Final = 39 / 40
#: Seconds that a peer has to take the last frames: minimum, maximum, and bytes per second in between. A living peer
#: that takes nothing delays the end of its own connection, but not that of the process.
_MIN_CLOSE_TIMEOUT: Final = 5.0
_LONGEST_CLOSE: Final = 30.0
_SLOWEST: Final = 1 << 20
#: Kinds of frames that begin a call, which CONTROL does not.
_REQUESTS: Final = frozenset(frames.REQUESTS)


#: Handles a frame: opcode, call id, body, and the sender's clock in nanoseconds.
OnFrame = Callable[[int, int, Body, int], None]
#: A received frame or message, or the end.
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
        #: Events from before listen().
        self._early: deque[_Event] = deque()
        self._first: asyncio.Future[None] = self._loop.create_future()
        #: Bytes with which each message to this end begins.
        self.proof = secrets.token_bytes(PROOF)
        #: Bytes that may be in flight to this end.
        self.window = link.budget.join()
        #: Subjects for the peer's messages, and for reports that the peer's subject has no subscriber.
        self.subject, self.notices = link.add(self)
        #: Subject and proof of the other end; empty until they are known.
        self.peer, self._peer_proof = "", b""
        #: Description of the other side, for messages.
        self.peer_description = "the other side"
        #: Seconds within which a dead peer is detected.
        self.heartbeat = link.heartbeat
        #: Times of the last received and the last sent message.
        self.last_received = self.last_sent = self._made = time.monotonic()
        #: True while the link has the pipe in its queue of senders.
        self.is_queued = False
        self.is_open = True
        self._closing = False
        #: Timer that ends the wait for the peer to take the last frames; None unless the pipe is closing.
        self._last_moment: asyncio.TimerHandle | None = None
        #: Done once the pipe is closed.
        self.closed: asyncio.Future[None] = self._loop.create_future()
        self._room_waiter: asyncio.Future[None] | None = None
        #: Unsent pieces, each with the id of the request that begins in it, or 0.
        self._pieces: deque[tuple[bytes | memoryview, int]] = deque()
        self._waiting = 0
        self._number = 0
        self._sent = 0
        #: Messages and bytes that the other side has acknowledged; bytes that it allows in flight.
        self._peer_received_count = self._peer_received_bytes = self._peer_window = 0
        #: True if a message is due even without frames.
        self._must_send = False
        #: Unacknowledged messages: the position of the end of each, and the first request that begins in it, or 0.
        self._log: deque[tuple[int, int]] = deque()
        #: Number of messages that certainly reached no subscriber.
        self._undelivered = 0
        self._round_trip = RoundTrip()
        self.extra_credit = self._round_trip.extra_credit
        # Receiving.
        self._received_count = 0
        self._received_bytes = 0
        self._acknowledged_bytes = 0
        #: Received bytes when the window was last set.
        self._received_at_window_change = 0

    def set_limits(self, limits: FrameLimits) -> None:
        """Set the limits that both sides have agreed on."""
        self.limits = self._reader.limits = limits
        #: Maximum unsent bytes for a side that reads nothing.
        self._max_waiting = limits.max_memory + limits.max_frame

    def _keep(self, event: _Event) -> None:
        self._early.append(event)
        if not self._first.done():
            self._first.set_result(None)

    def _keep_frame(self, *frame: Any) -> None:
        self._keep(frame)

    async def first_message(self) -> Message:
        """Wait for the first message and return it. Raises the reason if there is none."""
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
        """Pass events to these functions, earlier events included, from the next iteration of the loop on."""

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
        """Send a frame. Returns False if so many bytes wait that the sender should wait, too.

        Raises Oversize, ChannelError if the connection is closed, or Backlog if the other side reads nothing.
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
            else:  # The most frequent case, without further calls.
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
        """Copy a frame in pieces that fit into messages. The owner may change the buffers afterwards."""
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
        """Send a message behind the frames sent before. Does nothing if the connection is closed."""
        if self.is_open and not self._closing:
            data = messages.encode(message)
            self._put(FRAME.pack(CONTROL, 0, len(data), 0), 0, data)

    async def wait_for_room(self) -> None:
        """Wait until few bytes wait to be sent."""
        while self.is_open and self._waiting > HIGH_WATERMARK:
            if self._room_waiter is None or self._room_waiter.done():
                self._room_waiter = self._loop.create_future()
            await asyncio.shield(self._room_waiter)

    @property
    def has_unsent_data(self) -> bool:
        """True if bytes wait to be sent."""
        return bool(self._pieces)

    def set_peer(self, peer: str, proof: bytes, window: int | None = None) -> None:
        """Set the other end's subject and proof, to which frames are sent from now on.

        ``window``: bytes that may be in flight, unless a message of the other end has set it. Raises
        RemoteProtocolError for an invalid subject.
        """
        if not subjects.is_end(peer):
            raise RemoteProtocolError(f"{self.peer_description} named {peer[:80]!r} as its subject")
        self.peer, self._peer_proof = peer, proof
        if self._received_count:  # The message answers the hello of this end.
            self._round_trip.seconds = time.monotonic() - self._made
        if window is not None:
            self._peer_window = window
        self._link.schedule_send(self)

    def send_heartbeat(self) -> None:
        """Schedule a message. Returns an unused window to its share."""
        if self.peer:
            self._release_window()
            self._must_send = True
            self._link.schedule_send(self)

    def shrink_window(self) -> None:
        """Return an unused window to its share, for the benefit of other connections."""
        if self.peer and self._release_window():
            self._must_send = True
            self._link.schedule_send(self)

    def _release_window(self) -> bool:
        """Set the window to its share if nothing has arrived since the last time. Returns True if that changes it."""
        budget, before, come_then = self._link.budget, self.window, self._received_at_window_change
        self._received_at_window_change = self._received_bytes
        if self._received_bytes == come_then:
            self.window = budget.change(before, budget.share)
        return self.window != before

    @property
    def _room(self) -> int:
        """Bytes that may be sent now."""
        return 0 if self._undelivered else self._peer_received_bytes + self._peer_window - self._sent

    def next_message(self) -> bytes | None:
        """Return the next message; None if there is none to send now."""
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
                    break  # The header of a frame must not be split.
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
        """True if another message can be sent now."""
        return bool(self._pieces) and self._room >= min(len(self._pieces[0][0]), FRAME.size)

    def receive(self, data: bytes) -> None:
        """Handle a message to this end's subject."""
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
        """Handle a message to the reply subject, which reports that a message has reached no subscriber.

        ``is_undelivered``: True if NATS reports it. Otherwise the peer's process does, with the proof in the message.
        """
        if self.is_open and (is_undelivered or (self._peer_proof and data == self._peer_proof)):
            self._undelivered += 1
            if not self.peer:  # The hello itself was not delivered.
                self.end(ConnectionLost("none of its servers is connected to that NATS"))
            elif self._undelivered == 1:
                self._link.run(self._end_undelivered())

    async def _end_undelivered(self) -> None:
        """End the connection, once the number of undelivered messages is known."""
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
        """Discard the record of messages that the other side has acknowledged."""
        if not self._peer_received_count <= taken <= self._number:
            raise RemoteProtocolError(f"it has got {taken} messages of {self._number}")
        for _ in range(taken - self._peer_received_count):
            self._peer_received_bytes, _ = self._log.popleft()
        self._round_trip.end(self._peer_received_count, taken, self.last_received)
        self._peer_received_count = taken

    def _deliver(self, opcode: int, call_id: int, body: Body, clock: int) -> bool:
        """Pass on a frame or message. Returns True if the pipe is still open."""
        if opcode != CONTROL:
            self._on_frame(opcode, call_id, body, clock)
        elif isinstance(body, bytes):
            self._on_message(messages.decode(body))
        else:
            raise RemoteProtocolError("it sent a message with buffers")
        return self.is_open

    def fault(self, reason: str) -> None:
        """End the connection, and tell the other side which rule it broke."""
        if self.is_open and not self._closing:
            reason = one_line(reason)
            self.send_message(control.Goodbye(reason, fault=True))
            self.finish()
            self._on_end(CloseReason(RemoteProtocolError(f"{self.peer_description}: {reason}")))

    def end(self, error: ShmrpcError, reached: int | None = None) -> None:
        """End the connection, and report the error to the layer above.

        ``reached``: highest id of a call that the other side took, if it has reported one.
        """
        if self.is_open and not self._closing:
            if reached is None:
                reached = self._reached()
            self.discard()  # Unsent calls fail as not executed.
            self._on_end(CloseReason(error, reached))

    def _reached(self) -> int | None:
        """Return the highest id of a request that may have been delivered; None if unknown."""
        undelivered = [*self._log][max(0, len(self._log) - self._undelivered) :] if self._undelivered else []
        waiting = next((request for _, request in self._pieces if request), 0)
        first = next((request for _, request in undelivered if request), waiting)
        return first - 1 if first else None

    def finish(self) -> None:
        """Close once all bytes are sent, or after a timeout. Receives no further messages."""
        self._closing = True
        if not self._pieces or not self.peer or self._undelivered or not self._link.is_open:
            self.discard()
        else:
            self._link.schedule_send(self)
            if self._last_moment is None:
                seconds = min(_MIN_CLOSE_TIMEOUT + self._waiting / _SLOWEST, _LONGEST_CLOSE)
                self._last_moment = self._loop.call_later(seconds, self.discard)

    def sent(self) -> None:
        """Record that a message was sent."""
        if self._closing and not self._pieces:
            self.discard()

    def discard(self) -> None:
        """Close at once, and discard unsent bytes. Idempotent."""
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
        """Wait until all bytes from before :meth:`finish` are sent, and the link is closed if it has no other user."""
        await asyncio.wait([self.closed])
        await self._link.wait_closed()

    @property
    def is_closing(self) -> bool:
        """True if the pipe closes as soon as all bytes are sent."""
        return self._closing
