"""The client's side of a connection in an event loop."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Callable, Mapping
from typing import Any, Final

from shmrpc import _core
from shmrpc.errors import ConnectionLost, RemoteProtocolError
from shmrpc.host import fork
from shmrpc.host.processes import describe_process
from shmrpc.streams.credit import OVERHEAD
from shmrpc.streams.items import ItemRun
from shmrpc.transport.connection import CloseReason, Connection, Frame, OnEnd, OnFrame, warn_unclosed
from shmrpc.transport.shm import block_allocation, handshake
from shmrpc.transport.shm.close_reason import DOORBELL_CLOSED, parse_close_packet
from shmrpc.wire import control, frames

#: Seconds after which a connection ends that its event loop cannot watch.
UNWATCHED_TIMEOUT: Final = 0.1
#: Maximum number of items of a stream in one run. The sender has room for more while they are processed.
MAX_RUN: Final = 256
#: Maximum number of frames that are taken before other tasks run.
MAX_FRAMES_PER_TURN: Final = 512


class LoopConnection(Connection):
    """A client's connection that waits in an event loop. Owns the control socket ``dialled``, channel and doorbell."""

    address = "shm://"

    def __init__(self, dialled: socket.socket, established: handshake.Established) -> None:
        self.exchange = established.channel.exchange
        self.begin = established.channel.begin
        self.send = established.channel.send
        self.unpark = established.channel.unpark
        self.untaken = established.channel.untaken
        self.channel = established.channel
        assert established.bell is not None
        self._bell = established.bell
        self._control = dialled
        #: True if items of streams do not wake the loop, because their reader calls :meth:`listen` regularly.
        self.polls_items = False
        #: Callback that takes frames in the next iteration of the loop.
        self._listen_handle: asyncio.Handle | None = None
        #: Received packets of the server that were not handled, for example after an exception of a signal handler.
        self._packets: list[bytes] = []
        #: Callback that registers the connection with the loop.
        self._watching: asyncio.Handle | None = None
        #: Timer between the end of the doorbell and that of the connection.
        self._bell_timeout: asyncio.TimerHandle | None = None
        #: Receivers of the items of streams that are being read, by call id.
        self._feeds: dict[int, Callable[[ItemRun], None]] = {}
        #: Futures of senders that wait for room.
        self._room: list[asyncio.Future[None]] = []
        super().__init__(
            established.service,
            established.pid,
            established.uid,
            established.max_frame,
            established.endpoints,
            established.shapes,
        )
        fork.abandon_in_child(self)

    @property
    def shared_memory(self) -> LoopConnection:
        """The connection itself, which shares memory with the server."""
        return self

    def start(
        self, pending: Mapping[int, Any], on_frame: OnFrame, on_end: OnEnd, on_go_away: Callable[[], None]
    ) -> None:
        """Deliver frames to ``on_frame`` from now on, except the frames that exchange() returns.

        See :meth:`Connection.start` for the arguments. The loop watches the connection from its next iteration on.
        """
        super().start(pending, on_frame, on_end, on_go_away)
        # Nothing arrives before the next iteration, and the first call need not wait for eight system calls.
        self._watching = self._loop.call_soon(self._watch)

    def _watch(self) -> None:
        """Have the loop watch the control socket and the doorbell of the connection.

        If the loop cannot, end the connection after ``UNWATCHED_TIMEOUT`` seconds. If a signal handler raises, try
        again in the next iteration.
        """
        self._watching = None
        if not self._open:
            return
        try:
            self._loop.add_reader(self._control.fileno(), self._on_control)
            self._loop.add_reader(self._bell.fileno(), self._on_bell)
        except OSError as error:
            end = CloseReason(ConnectionLost(f"the loop cannot wait for the server of {self.service!r}: {error}"))
            # Delayed, because the next connection would probably end in the same way.
            self._watching = self._loop.call_later(UNWATCHED_TIMEOUT, self._lose, end)
        except BaseException:  # Raised by a signal handler: watch the server nevertheless.
            self._watching = self._loop.call_soon(self._watch)
            raise

    def listen(self) -> None:
        """Take arrived frames, then have the doorbell ring for later ones.

        Takes a limited number, and the rest in later iterations, so that a flood of frames does not starve the loop. If
        the server has broken a rule, closes the connection by :meth:`fault`, and raises nothing.
        """
        try:
            if self._listen_handle is None and self._open and not self.channel.park(self.polls_items):
                self._drain()
                if self._open and not (self.channel.settle() if self.polls_items else self.channel.park()):
                    self._listen_handle = self._loop.call_soon(self._listen_again)
        except (_core.ChannelError, RemoteProtocolError) as error:
            self.fault(error)
        except BaseException as error:
            self.interrupted(error)
            raise

    def _listen_again(self) -> None:
        """Take the frames that :meth:`listen` has left to this iteration of the loop."""
        try:
            self._listen_handle = None
            self.listen()
        except BaseException as error:
            self.interrupted(error)
            raise

    def _on_bell(self) -> None:
        """Take the frames that a ring announces, and wake the senders that have found room."""
        try:
            if not self.channel.wake():
                self._end_bell()
            self._drain()
            # Ringing has reset the announcement; other calls may still be waiting.
            if self._pending or self._room:
                self.listen()
            self._wake_senders()
        except (_core.ChannelError, RemoteProtocolError) as error:
            self.fault(error)
        except BaseException as error:
            self.interrupted(error)
            raise

    def _end_bell(self) -> None:
        """Handle a doorbell that the server has closed. If the server has died, the control socket reports it soon."""
        self._loop.remove_reader(self._bell.fileno())
        self._bell_timeout = self._loop.call_later(control.DEATH_TIMEOUT, self._on_bell_timeout)

    def _on_bell_timeout(self) -> None:
        """End the connection of a server that closed its doorbell and has not died, after its last frames."""
        if self._open:
            self._on_control()
        if not self._open:
            return
        try:
            while self._open and self.channel.has_frame():
                self._drain()  # The loop may have been blocked: frames from before the end are still valid.
        except (_core.ChannelError, RemoteProtocolError) as error:
            self.fault(error)
        except BaseException as error:
            self.interrupted(error)
            raise
        else:
            self.fault(RemoteProtocolError(DOORBELL_CLOSED))

    async def wait_for_room(self) -> None:
        """Wait until all sent frames have found room, or the connection has ended."""
        while self._open and self.channel.is_stalled():
            waiter = self._loop.create_future()
            self._room.append(waiter)
            self.listen()
            self._wake_senders()  # Room may have appeared just now.
            await waiter

    def take_back(self, call_id: int) -> bool:
        """Withdraw the request of a call if it still waits for room; return True if so."""
        taken = self.channel.take_back(call_id, frames.REQUESTS)
        if taken:
            self._wake_senders()
        return taken

    def sender(self, opcode: int, call_id: int, credit: int) -> _core.StreamSender:
        """Return a sender of a stream's items, which may send ``credit`` bytes at first."""
        return _core.StreamSender(self.channel, opcode, call_id, credit, OVERHEAD)

    def allocate(self, size: int) -> _core.Buffer:
        """Allocate a block of ``size`` bytes or more. Raises as :func:`block_allocation.allocate` does."""
        return block_allocation.allocate(self.channel, size, self._control)

    def _wake_senders(self) -> None:
        """Wake the senders that wait for room, if there is room or the connection has ended."""
        try:
            if self._room and not (self._open and self.channel.is_stalled()):
                for waiter in self._room:
                    if not waiter.done():
                        waiter.set_result(None)
                self._room.clear()
        except BaseException as error:
            self.interrupted(error)  # Senders that were not woken are still in the list.
            raise

    def route(self, call_id: int, feed: Callable[[ItemRun], None]) -> None:
        """Pass consecutive items of a call to ``feed`` in runs from now on; a single item may go to ``on_frame``."""
        self._feeds[call_id] = feed

    def unroute(self, call_id: int) -> None:
        """Pass the items of a call to ``on_frame`` again. Idempotent."""
        self._feeds.pop(call_id, None)

    def pull(self, call_id: int) -> None:
        """Take arrived frames without waiting: items of this call if they are next, otherwise any frames.

        Does nothing once closed. A server that has broken a rule is handled as by :meth:`listen`.
        """
        if not self._open:
            return
        try:
            feed = self._feeds.get(call_id)  # None after the end of the stream.
            if feed is None or not self._receive_run(call_id, feed):
                self._drain()
        except (_core.ChannelError, RemoteProtocolError) as error:
            self.fault(error)
        except BaseException as error:
            self.interrupted(error)
            raise

    def _receive_run(self, call_id: int, feed: Callable[[ItemRun], None]) -> int:
        """Take consecutive items of a stream that is being read; return their number."""
        part = self.channel.receive_run(frames.ITEM, call_id, MAX_RUN, frames.ARRAY)
        if part is None:
            return 0
        feed(part)
        return part[0]

    def _drain(self) -> None:
        """Take at most about ``MAX_FRAMES_PER_TURN`` arrived frames.

        Passes runs of items of routed calls to their feeds, and other frames to ``on_frame``. With ``polls_items``,
        stop after an item of a stream once all frames that had arrived at the last check are taken. Raises ChannelError
        or RemoteProtocolError, with which the caller calls :meth:`fault`, and what the callbacks raise.
        """
        receive, on_frame, left = self.channel.receive, self._on_frame, MAX_FRAMES_PER_TURN
        feeds = self._feeds
        frame: Frame | None
        while self._open and left > 0 and (frame := receive()) is not None:
            on_frame(*frame)
            left -= 1
            if frame[0] == frames.ITEM and (feed := feeds.get(frame[1])) is not None:
                left -= self._receive_run(frame[1], feed)
                if self.polls_items and self.channel.is_at_end():
                    break

    def _on_control(self) -> None:
        """Receive and handle a packet of the server, after the packets that an exception has left unhandled."""
        try:
            try:
                # Received and stored in one step, so that no exception of a signal handler comes between.
                self._packets.extend(map(self._control.recv, (control.MAX_MESSAGE,)))
            except BlockingIOError:
                pass
            except ConnectionResetError:
                self._packets.append(b"")
            for packet in self._packets:
                self._handle_packet(packet)
            self._packets.clear()
        except BaseException:
            if self._packets:
                self._loop.call_soon(self._on_kept_packets)
            raise

    def _on_kept_packets(self) -> None:
        """Handle the packets that an exception has left unhandled, and then a packet that has arrived meanwhile."""
        if self._open:
            self._on_control()

    def _handle_packet(self, packet: bytes) -> None:
        """Handle a packet of the server, or the end of its socket. Idempotent.

        If the server announces that it takes no new calls, notify the session. If the server ends the connection,
        deliver the frames that have arrived, then end the connection for the reason in the packet. If the packet is
        malformed, end the connection with a fault.
        """
        try:
            end = parse_close_packet(packet, f"server of {self.service!r}", self.pid)
        except RemoteProtocolError as error:
            self.fault(error)
            return
        if end is None:
            self._on_go_away()
            return
        try:
            # Replies from before the end are still valid.
            with contextlib.suppress(_core.ChannelError, RemoteProtocolError):
                while self._open and self.channel.has_frame():
                    self._drain()
        finally:
            self._lose(end)

    def fault(self, error: Exception) -> None:
        """Close the connection, and report the broken rule to the server.

        If the error is only that the server has left, the connection ends for the reason that the server gave, for
        which this method blocks at most 0.1 s. Does nothing if the connection is closed.
        """
        if isinstance(error, _core.PeerLeft):
            # No loop has run since. A dying process closes all of its descriptors within moments.
            block_allocation.has_hung_up(self._control)
            for _ in range(2):  # The server may have announced first that it is about to leave.
                if self._open:
                    self._on_control()
            if not self._open:
                return
            error = RemoteProtocolError(DOORBELL_CLOSED)
        with contextlib.suppress(OSError):
            self._control.send(control.encode(control.Goodbye(str(error), fault=True)))
        self._lose(
            CloseReason(RemoteProtocolError(f"the server of {self.service!r} ({describe_process(self.pid)}): {error}"))
        )

    def _has_waiters(self) -> bool:
        """Return True if a call waits for a reply, or a sender for room."""
        return bool(self._pending or self._room)

    def close(self) -> None:
        """Close the connection with a goodbye, and wake the senders that wait for room. Idempotent."""
        if self._open:
            bell = self._bell.fileno()
            if bell >= 0 and not self._loop.is_closed():
                self._loop.remove_reader(bell)
                if self._bell_timeout is not None:
                    self._bell_timeout.cancel()
                self._loop.remove_reader(self._control.fileno())
            with contextlib.suppress(OSError):
                self._control.send(control.encode(control.Goodbye("closed")))
            self.abandon()
            self._wake_senders()

    def __del__(self) -> None:
        """Close the descriptors of a connection dropped open, as after its loop was closed, with a ResourceWarning."""
        if getattr(self, "_open", False):
            self.abandon()
            warn_unclosed(self.service, self)

    def abandon(self) -> None:
        """Close the descriptors without a message to the server. In a forked child, only the parent may send one."""
        if self._open:
            for later in (self._listen_handle, self._watching):
                if later is not None:
                    later.cancel()
            # Each step is idempotent, because a signal handler may raise between them.
            self.channel.close()
            self._bell.close()
            fork.close_socket(self._control)
            self._open = False
