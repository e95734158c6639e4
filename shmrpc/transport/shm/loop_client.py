"""A client's side of a connection in an event loop."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
from collections.abc import Callable, Mapping
from typing import Any, Final

from shmrpc import _core
from shmrpc.basics.loops import running_loop
from shmrpc.errors import ConnectionLost, RemoteProtocolError
from shmrpc.host import fork, rendezvous
from shmrpc.host.processes import describe_process
from shmrpc.host.rendezvous import OnRetry
from shmrpc.streams.credit import OVERHEAD
from shmrpc.streams.items import ItemRun
from shmrpc.transport.connection import CloseReason, Connection, Frame, OnEnd, OnFrame, warn_unclosed
from shmrpc.transport.connection_options import ConnectionOptions
from shmrpc.transport.shm import block_allocation, handshake
from shmrpc.transport.shm.close_reason import DOORBELL_CLOSED, parse_close_packet
from shmrpc.wire import control, frames

#: Seconds until a process that has inherited a connection says that it is there: it may have to import a great deal.
INHERITED_TIMEOUT: Final = 60.0
#: Seconds after which a connection is given up whose loop cannot wait for it.
UNWATCHED_TIMEOUT: Final = 0.1
#: Items of a stream that are taken at a time: then they are worked on, and the sender has room for more.
MAX_RUN: Final = 256
#: Frames that are taken before the loop has a turn.
MAX_FRAMES_PER_TURN: Final = 512


async def connect(
    service: str, timeout: float | None, note: OnRetry = lambda reason: None, *, options: ConnectionOptions
) -> LoopConnection:
    """Connects to a service, within ``timeout`` seconds; None: for ever, 0: see :class:`rendezvous.ConnectRetry`."""
    retry = rendezvous.ConnectRetry(service, timeout, options.users, note)
    while True:
        dialled = retry.dial()
        if dialled is not None:
            try:
                return await _handshake(dialled, options, retry)
            except ConnectionLost as error:  # It was just going, or it is just coming.
                retry.record_failure(error)
        await asyncio.sleep(retry.next_pause())


async def inherit(control_socket: socket.socket, service: str, options: ConnectionOptions) -> LoopConnection:
    """Connects to the process that has inherited the other end of a pair of sockets; ConnectionLost if it is gone."""
    return await _handshake(control_socket, options, rendezvous.ConnectRetry(service, INHERITED_TIMEOUT))


async def _handshake(
    dialled: socket.socket, options: ConnectionOptions, retry: rendezvous.ConnectRetry
) -> LoopConnection:
    steps = handshake.connect_client(dialled, options, retry, blocking=False)
    loop = running_loop()
    try:
        step = next(steps)
        while not isinstance(step, handshake.Established):
            step = steps.send(await _receive_answer(dialled, step, retry, options, loop))
        return LoopConnection(dialled, step)
    except BaseException:
        steps.close()
        dialled.close()
        raise


async def _receive_answer(
    dialled: socket.socket,
    pid: int,
    retry: rendezvous.ConnectRetry,
    options: ConnectionOptions,
    loop: asyncio.AbstractEventLoop,
) -> rendezvous.Packet | None:
    """The next packet of this process, an empty one at the end, or None if none comes in time.

    The loop is told the socket's number: of a socket that it does not know it would first make a text, which asks for
    both of its names.
    """
    if pid != os.getpid():  # Else it may need this loop, or this thread.
        answer = handshake.receive_in_place(dialled, options)
        if answer is not None:
            return answer
    limit = retry.welcome_timeout(pid)
    readable: asyncio.Future[bool] = loop.create_future()
    timer = loop.call_later(limit, _set_result, readable, False)
    try:
        loop.add_reader(dialled.fileno(), _set_result, readable, True)
        return rendezvous.receive_packet(dialled) if await readable else None
    finally:
        timer.cancel()
        loop.remove_reader(dialled.fileno())


def _set_result(future: asyncio.Future[bool], result: bool) -> None:
    if not future.done():
        future.set_result(result)


class LoopConnection(Connection):
    """A connection that waits in an event loop."""

    place = "shm://"

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
        #: Whether items of streams do not wake the loop: whoever wants them calls :meth:`listen` now and then.
        self.polls_items = False
        #: For what is to be taken on the next turn of the loop.
        self._again: asyncio.Handle | None = None
        #: Packets of the server that are received and not acted on, as after an exception of a signal's handler.
        self._packets: list[bytes] = []
        #: Has the loop wait for the server.
        self._watching: asyncio.Handle | None = None
        #: Runs from the end of the bell to that of the connection.
        self._bell_timeout: asyncio.TimerHandle | None = None
        #: By call, where the items of the streams go that are being read.
        self._feeds: dict[int, Callable[[ItemRun], None]] = {}
        #: Senders that wait for room.
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
        """Itself: it shares memory with the server."""
        return self

    def start(
        self, pending: Mapping[int, Any], on_frame: OnFrame, on_end: OnEnd, on_go_away: Callable[[], None]
    ) -> None:
        """Gives frames that nobody exchanged to ``on_frame`` from now on, and the end to ``on_end``."""
        super().start(pending, on_frame, on_end, on_go_away)
        # Nothing comes before the loop's next turn, and the first call need not wait for eight system calls.
        self._watching = self._loop.call_soon(self._watch)

    def _watch(self) -> None:
        self._watching = None
        if not self._open:
            return
        try:
            self._loop.add_reader(self._control.fileno(), self._on_control)
            self._loop.add_reader(self._bell.fileno(), self._on_bell)
        except OSError as error:
            end = CloseReason(ConnectionLost(f"the loop cannot wait for the server of {self.service!r}: {error}"))
            # Not at once: the next connection would as a rule end in the same way.
            self._watching = self._loop.call_later(UNWATCHED_TIMEOUT, self._lose, end)
        except BaseException:  # Out of a signal handler: nobody else would wait for the server.
            self._watching = self._loop.call_soon(self._watch)
            raise

    def listen(self) -> None:
        """Before the loop goes on: what is there comes now, and the bell rings for what comes later.

        If a great deal is there, the rest comes on the next turn: what keeps coming must not keep the loop.
        """
        try:
            if self._again is None and self._open and not self.channel.park(self.polls_items):
                self._drain()
                if self._open and not (self.channel.settle() if self.polls_items else self.channel.park()):
                    self._again = self._loop.call_soon(self._listen_again)
        except (_core.ChannelError, RemoteProtocolError) as error:
            self.fault(error)
        except BaseException as error:
            self.interrupted(error)
            raise

    def _listen_again(self) -> None:
        try:
            self._again = None
            self.listen()
        except BaseException as error:
            self.interrupted(error)
            raise

    def _on_bell(self) -> None:
        try:
            if not self.channel.wake():
                self._end_bell()
            self._drain()
            # The server took our announcement when it rang; other calls may still be waiting.
            if self._pending or self._room:
                self.listen()
            self._wake_senders()
        except (_core.ChannelError, RemoteProtocolError) as error:
            self.fault(error)
        except BaseException as error:
            self.interrupted(error)
            raise

    def _end_bell(self) -> None:
        """Handles the end of the bell, which the server has closed. If it has died, the control socket says so soon."""
        self._loop.remove_reader(self._bell.fileno())
        self._bell_timeout = self._loop.call_later(control.DEATH_TIMEOUT, self._on_bell_timeout)

    def _on_bell_timeout(self) -> None:
        if self._open:
            self._on_control()
        if not self._open:
            return
        try:
            while self._open and self.channel.has_frame():
                self._drain()  # This loop may have stood still: what the server has answered meanwhile is still good.
        except (_core.ChannelError, RemoteProtocolError) as error:
            self.fault(error)
        except BaseException as error:
            self.interrupted(error)
            raise
        else:
            self.fault(RemoteProtocolError(DOORBELL_CLOSED))

    async def wait_for_room(self) -> None:
        """Waits until all that was sent has found room, or the connection has ended."""
        while self._open and self.channel.is_stalled():
            waiter = self._loop.create_future()
            self._room.append(waiter)
            self.listen()
            self._wake_senders()  # It may have found room in this moment.
            await waiter

    def take_back(self, call_id: int) -> bool:
        """Takes back the request of a call, if it still waits for room."""
        taken = self.channel.take_back(call_id, frames.REQUESTS)
        if taken:
            self._wake_senders()
        return taken

    def sender(self, opcode: int, call_id: int, credit: int) -> _core.StreamSender:
        """What sends the items of a stream."""
        return _core.StreamSender(self.channel, opcode, call_id, credit, OVERHEAD)

    def allocate(self, size: int) -> _core.Buffer:
        """A block of shared memory; SharedMemoryError if there is none, ConnectionLost if the server is gone."""
        return block_allocation.allocate(self.channel, size, self._control)

    def _wake_senders(self) -> None:
        try:
            if self._room and not (self._open and self.channel.is_stalled()):
                for waiter in self._room:
                    if not waiter.done():
                        waiter.set_result(None)
                self._room.clear()
        except BaseException as error:
            self.interrupted(error)  # The senders that were not told are still there.
            raise

    def route(self, call_id: int, feed: Callable[[ItemRun], None]) -> None:
        """From now on items of this call that come one behind the other go to ``feed`` together."""
        self._feeds[call_id] = feed

    def unroute(self, call_id: int) -> None:
        """The items of a call go nowhere any more."""
        self._feeds.pop(call_id, None)

    def pull(self, call_id: int) -> None:
        """Takes what is there, without a wait, of a call that has a route above all."""
        if not self._open:
            return
        try:
            feed = self._feeds.get(call_id)  # None after its end.
            if feed is None or not self._receive_run(call_id, feed):
                self._drain()
        except (_core.ChannelError, RemoteProtocolError) as error:
            self.fault(error)
        except BaseException as error:
            self.interrupted(error)
            raise

    def _receive_run(self, call_id: int, feed: Callable[[ItemRun], None]) -> int:
        """Takes items of a stream that is being read, as far as they come one behind the other; how many."""
        part = self.channel.receive_run(frames.ITEM, call_id, MAX_RUN, frames.ARRAY)
        if part is None:
            return 0
        feed(part)
        return part[0]

    def _drain(self) -> None:
        """Takes what is there, up to a bound; if it is patient, without what comes meanwhile: later that is more."""
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
        try:
            try:
                # Received and kept in one step: no exception of a signal's handler comes between.
                self._packets.extend(map(self._control.recv, (control.MAX_MESSAGE,)))
            except BlockingIOError:
                pass
            except ConnectionResetError:
                self._packets.append(b"")
            for packet in self._packets:
                self._hear(packet)
            self._packets.clear()
        except BaseException:
            if self._packets:
                self._loop.call_soon(self._on_heard)
            raise

    def _on_heard(self) -> None:
        """Acts on the packets that an exception kept us from."""
        if self._open:
            self._on_control()

    def _hear(self, packet: bytes) -> None:
        """Acts on what the server has said. Again: nothing new."""
        try:
            end = parse_close_packet(packet, f"server of {self.service!r}", self.pid)
        except RemoteProtocolError as error:
            self.fault(error)
            return
        if end is None:
            self._on_go_away()
            return
        try:
            # What the server had answered before it went is still good.
            with contextlib.suppress(_core.ChannelError, RemoteProtocolError):
                while self._open and self.channel.has_frame():
                    self._drain()
        finally:
            self._lose(end)

    def fault(self, error: Exception) -> None:
        """Closes, and tells the server which rule it broke. If it has left, the connection ends with how it did."""
        if isinstance(error, _core.PeerLeft):
            # Its loop, or ours, has not turned since. A process that dies closes all that it has within moments.
            block_allocation.has_hung_up(self._control)
            for _ in range(2):  # It may have said before that it was about to go.
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
        return bool(self._pending or self._room)

    def close(self) -> None:
        """Closes the connection. Again: nothing."""
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
        """Lets the server see that it is gone, since it was dropped open, as after its loop was closed."""
        if getattr(self, "_open", False):
            self.abandon()
            warn_unclosed(self.service, self)

    def abandon(self) -> None:
        """Closes the descriptors and says nothing: in a forked child they are the parent's to speak on."""
        if self._open:
            for later in (self._again, self._watching):
                if later is not None:
                    later.cancel()
            # Each step may be done again: an exception of a signal's handler may come between them.
            self.channel.close()
            self._bell.close()
            fork.close_socket(self._control)
            self._open = False
