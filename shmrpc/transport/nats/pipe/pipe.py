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
from collections.abc import Callable
from typing import Final

import msgspec

from shmrpc.basics.clock import host_nanoseconds
from shmrpc.basics.printable import one_line
from shmrpc.errors import ConnectionLost, RemoteProtocolError, ShmrpcError
from shmrpc.transport.connection import CloseReason
from shmrpc.transport.errors import Backlog, ChannelError, Oversize, check_size
from shmrpc.transport.nats import messages, subjects
from shmrpc.transport.nats.messages import PROOF, Message
from shmrpc.transport.nats.pipe.early_events import EarlyEvents, OnFrame
from shmrpc.transport.nats.pipe.frame_reader import CONTROL, FRAME, FrameLimits, FrameReader
from shmrpc.transport.nats.pipe.pipe_link import PipeLink
from shmrpc.transport.nats.pipe.round_trip import RoundTrip
from shmrpc.transport.nats.pipe.send_queue import MESSAGE_HEADER, SendQueue
from shmrpc.transport.nats.pipe.window_budget import WINDOW
from shmrpc.wire import control, frames
from shmrpc.wire.codec import Body

logger = logging.getLogger("shmrpc.nats")

#: Unsent bytes above which senders are asked to wait.
HIGH_WATERMARK: Final = 64 << 10
#: Maximum bytes of a large frame in one message, if NATS accepts that many. Parts of the frame travel while others are
#: copied. NATS's client reads 32 KiB at a time, and is slow with messages many times as large.
MAX_PIECE: Final = 128 << 10
#: Maximum gap between the numbers of messages. More messages cannot be in flight.
_MAX_GAP: Final = 4 << 20
#: Fractions of a heartbeat: of silence after which a side sends a message, and after which it closes the connection.
#: The event loop may be blocked for the difference, more than three quarters.
BEAT_FRACTION: Final = 1 / 5
SILENCE_FRACTION: Final = 39 / 40
#: Seconds that a peer has to receive the last frames: minimum, maximum, and bytes per second in between. A living peer
#: that receives nothing delays the end of its own connection, but not that of the process.
_MIN_CLOSE_TIMEOUT: Final = 5.0
_MAX_CLOSE_TIMEOUT: Final = 30.0
_SLOWEST: Final = 1 << 20
#: Kinds of frames that begin a call, which CONTROL does not.
_REQUESTS: Final = frozenset(frames.REQUESTS)


class Pipe:
    """One end of a connection over NATS, a user of ``link`` until closed. ``limits``: until :meth:`set_limits`."""

    def __init__(self, link: PipeLink[Pipe], limits: FrameLimits) -> None:
        self._link = link
        self._reader = FrameReader(limits, self._deliver)
        self.set_limits(limits)
        self._loop = asyncio.get_running_loop()
        self._queue = SendQueue(link.piece)
        self._early = EarlyEvents()
        self._on_frame: OnFrame = self._early.keep_frame
        self._on_message: Callable[[Message], None] = self._early.keep
        self._on_end: Callable[[CloseReason], None] = self._early.keep
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
        #: Timer that ends the wait for the peer to receive the last frames; None unless the pipe is closing.
        self._close_timer: asyncio.TimerHandle | None = None
        #: Done once the pipe is closed.
        self.closed: asyncio.Future[None] = self._loop.create_future()
        self._room_waiter: asyncio.Future[None] | None = None
        #: True if a message is due even without frames.
        self._must_send = False
        self._round_trip = RoundTrip()
        self.extra_credit = self._round_trip.extra_credit
        # Receiving.
        self._received_count = 0
        self._received_bytes = 0
        self._acknowledged_bytes = 0
        #: Received bytes when the use of the window was last checked.
        self._received_at_last_check = 0

    def set_limits(self, limits: FrameLimits) -> None:
        """Set the limits that both sides have agreed on."""
        self.limits = self._reader.limits = limits
        #: Maximum unsent bytes for a side that reads nothing.
        self._max_waiting = limits.max_memory + limits.max_frame

    async def first_message(self) -> Message:
        """Wait without a limit for the first message and return it, before :meth:`listen`.

        Raises the reason if the connection ends first, RemoteProtocolError if the peer sends a frame first.
        """
        event = await self._early.first()
        if isinstance(event, CloseReason):
            raise event.error
        if isinstance(event, tuple):
            raise RemoteProtocolError(f"{self.peer_description} sent a frame before its answer")
        return event

    def listen(
        self, on_frame: OnFrame, on_message: Callable[[Message], None], on_end: Callable[[CloseReason], None]
    ) -> None:
        """Pass events to these functions, earlier events included, from the next iteration of the loop on."""

        def begin() -> None:
            self._on_frame, self._on_message, self._on_end = on_frame, on_message, on_end
            try:
                self._early.deliver(on_frame, on_message, on_end)
            except RemoteProtocolError as error:
                self.fault(str(error))

        self._loop.call_soon(begin)

    def send(self, opcode: int, call_id: int, body: Body) -> bool:
        """Send a frame once the peer is set. Returns False if the sender should wait before the next frame.

        Raises Oversize, ChannelError if the connection is closed, or Backlog if the other side reads nothing.
        """
        check_size(body, self.limits.max_frame)
        if self._closing:
            raise ChannelError("the connection is closed")
        queue = self._queue
        if queue.waiting_bytes > self._max_waiting:
            raise Backlog(f"{queue.waiting_bytes:,} bytes wait for it, and it reads nothing")
        request = call_id if opcode & 0xFF in _REQUESTS else 0
        if isinstance(body, bytes):
            size = len(body)
            if size > queue.small:
                self._put(FRAME.pack(opcode, call_id, size, 0), request, body)
            else:  # The most frequent case, without further calls.
                queue.pieces.append((FRAME.pack(opcode, call_id, size, 0) + body, request))
                queue.waiting_bytes += FRAME.size + size
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
        return queue.waiting_bytes <= HIGH_WATERMARK

    def _put(self, header: bytes, request: int, *parts: bytes | memoryview) -> None:
        """Queue a frame as :meth:`SendQueue.put` does, and schedule its messages."""
        self._queue.put(header, request, *parts)
        if self.peer and not self.is_queued:
            self._link.schedule_send(self)

    def send_message(self, message: Message) -> None:
        """Send a message behind the frames sent before. Does nothing once the pipe is closing."""
        if self.is_open and not self._closing:
            data = messages.encode(message)
            self._put(FRAME.pack(CONTROL, 0, len(data), 0), 0, data)

    async def wait_for_room(self) -> None:
        """Wait until few bytes wait to be sent, or the connection has ended."""
        while self.is_open and self._queue.waiting_bytes > HIGH_WATERMARK:
            if self._room_waiter is None or self._room_waiter.done():
                self._room_waiter = self._loop.create_future()
            await asyncio.shield(self._room_waiter)

    @property
    def has_unsent_data(self) -> bool:
        """True if bytes wait to be sent."""
        return bool(self._queue.pieces)

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
            self._queue.peer_window = window
        self._link.schedule_send(self)

    def send_heartbeat(self) -> None:
        """Schedule a message, and shrink an unused window to its share."""
        if self.peer:
            self._release_window()
            self._must_send = True
            self._link.schedule_send(self)

    def shrink_window(self) -> None:
        """Shrink an unused window to its share, and notify the peer, for the benefit of other connections."""
        if self.peer and self._release_window():
            self._must_send = True
            self._link.schedule_send(self)

    def _release_window(self) -> bool:
        """Set the window to its share if nothing has arrived since the last call. Returns True if that changes it."""
        budget, before, received_before = self._link.budget, self.window, self._received_at_last_check
        self._received_at_last_check = self._received_bytes
        if self._received_bytes == received_before:
            self.window = budget.change(before, budget.share)
        return self.window != before

    def next_message(self) -> bytes | None:
        """Take the next message from the queue and return it, recorded as sent; None if there is none to send now."""
        queue = self._queue
        if not self.is_open or not (self._must_send or queue.is_sendable):
            return None
        parts, size = queue.take_message()
        self._acknowledged_bytes, self._must_send = self._received_bytes, False
        self.last_sent = time.monotonic()
        if size:
            self._round_trip.begin(queue.sent_count, queue.acknowledged_count, self.last_sent)
        parts[0] = MESSAGE_HEADER.pack(
            self._peer_proof, queue.sent_count, self._received_count, self.window, host_nanoseconds()
        )
        if queue.waiting_bytes <= HIGH_WATERMARK and self._room_waiter is not None and not self._room_waiter.done():
            self._room_waiter.set_result(None)
        return b"".join(parts)

    @property
    def has_more(self) -> bool:
        """True if another message can be sent now."""
        return self._queue.is_sendable

    def receive(self, data: bytes) -> None:
        """Handle a message to this end's subject. Drops a message without this end's proof."""
        if not self.is_open:
            return
        if data[:PROOF] != self.proof:
            logger.debug("dropped %d bytes that pretend to come from %s", len(data), self.peer_description)
            return
        try:
            self._receive(data)
        except (RemoteProtocolError, struct.error, msgspec.MsgspecError) as error:
            self.fault(str(error))

    def receive_notice(self, data: bytes, *, is_undelivered: bool) -> None:
        """Handle a message to the reply subject, which reports that a message of this end has reached no subscriber.

        Ends the connection once the other reports have arrived, or at once if the hello was not delivered.

        ``is_undelivered``: True for a report of NATS. The peer's process reports by returning the proof of the message.
        """
        if self.is_open and (is_undelivered or (self._peer_proof and data == self._peer_proof)):
            self._queue.undelivered_count += 1
            if not self.peer:  # The hello itself was not delivered.
                self.end(ConnectionLost("none of its servers is connected to that NATS"))
            elif self._queue.undelivered_count == 1:
                self._link.run(self._end_undelivered())

    async def _end_undelivered(self) -> None:
        """End the connection, once the number of undelivered messages is known."""
        await self._link.flush()
        reason = f"it died, was killed, or left without a goodbye{self._link.describe_loop_stall()}"
        self.end(ConnectionLost(f"{self.peer_description} is gone: {reason}"))

    def _receive(self, data: bytes) -> None:
        """Handle a message with a valid proof. Raises RemoteProtocolError or struct.error for invalid data.

        Ends the connection, and drops the message, if NATS has lost one before.
        """
        _, number, acknowledged, window, clock = MESSAGE_HEADER.unpack_from(data)
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
        queue, acknowledged_before = self._queue, self._queue.acknowledged_count
        queue.acknowledge(acknowledged)
        self._round_trip.end(acknowledged_before, acknowledged, self.last_received)
        queue.peer_window = min(window, WINDOW)
        if queue.pieces and self.peer:
            self._link.schedule_send(self)
        size = len(data) - MESSAGE_HEADER.size
        self._received_bytes += size
        if self._closing:
            return
        if size and self._received_bytes - self._acknowledged_bytes > self.window // 4:
            self.window = self._link.budget.change(self.window, 2 * self.window)
            self._must_send = True
            self._link.schedule_send(self)
        self._reader.read(data, MESSAGE_HEADER.size, clock)

    def _deliver(self, opcode: int, call_id: int, body: Body, clock: int) -> bool:
        """Pass on a frame or message. Returns True if the pipe is still open. Raises RemoteProtocolError."""
        if opcode != CONTROL:
            self._on_frame(opcode, call_id, body, clock)
        elif isinstance(body, bytes):
            self._on_message(messages.decode(body))
        else:
            raise RemoteProtocolError("it sent a message with buffers")
        return self.is_open

    def fault(self, reason: str) -> None:
        """End the connection, unless closing, and report the broken rule to the other side and the layer above."""
        if self.is_open and not self._closing:
            reason = one_line(reason)
            self.send_message(control.Goodbye(reason, fault=True))
            self.finish()
            self._on_end(CloseReason(RemoteProtocolError(f"{self.peer_description}: {reason}")))

    def end(self, error: ShmrpcError, reached: int | None = None) -> None:
        """End the connection, unless it is closing, and report the error to the layer above.

        ``reached``: highest id of a call that the other side received, if it has reported one. The default is the
        id before that of the first call that certainly was not delivered.
        """
        if self.is_open and not self._closing:
            if reached is None:
                reached = self._queue.last_delivered_request()
            self.discard()  # Unsent calls fail as not executed.
            self._on_end(CloseReason(error, reached))

    def finish(self) -> None:
        """Close once all bytes are sent, or after 5 to 30 s; at once if none can be. Discards frames that arrive."""
        self._closing = True
        queue = self._queue
        if not queue.pieces or not self.peer or queue.undelivered_count or not self._link.is_open:
            self.discard()
        else:
            self._link.schedule_send(self)
            if self._close_timer is None:
                seconds = min(_MIN_CLOSE_TIMEOUT + queue.waiting_bytes / _SLOWEST, _MAX_CLOSE_TIMEOUT)
                self._close_timer = self._loop.call_later(seconds, self.discard)

    def on_sent(self) -> None:
        """Close a finished pipe whose last message was sent."""
        if self._closing and not self._queue.pieces:
            self.discard()

    def discard(self) -> None:
        """Close at once, and discard unsent bytes. Idempotent."""
        if not self.is_open:
            return
        self.is_open, self._closing = False, True
        self._queue.clear()
        self._reader.clear()
        if self._room_waiter is not None and not self._room_waiter.done():
            self._room_waiter.set_result(None)
        if self._close_timer is not None:
            self._close_timer.cancel()
        if not self.closed.done():
            self.closed.set_result(None)
        self._link.budget.leave(self.window)
        self._link.remove(self)

    async def wait_closed(self) -> None:
        """Wait until the pipe is closed, and the link, too, if it has no other user."""
        await asyncio.wait([self.closed])
        await self._link.wait_closed()

    @property
    def is_closing(self) -> bool:
        """True once :meth:`finish` or :meth:`discard` was called."""
        return self._closing
