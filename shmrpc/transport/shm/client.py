"""A client's side of a connection in an event loop."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket

from shmrpc import _core
from shmrpc.errors import ConnectionLost, LocalProtocolError, RemoteProtocolError, ShmrpcError
from shmrpc.protocol import control
from shmrpc.transport import Frame, OnFrame, OnLost
from shmrpc.transport.shm import fork, handshake, rendezvous
from shmrpc.transport.shm.farewell import explain


async def connect(service: str, timeout: float, settings: handshake.Settings) -> LoopConnection:
    """Connects to a service, waiting up to ``timeout`` seconds for its server to appear."""
    patience = rendezvous.Patience(service, timeout)
    while True:
        dialled = rendezvous.dial(service)
        if dialled is not None:
            with contextlib.suppress(ConnectionLost):  # It was just going, or it is just coming.
                return await _handshake(dialled, settings)
        await asyncio.sleep(patience.pause())


async def _handshake(dialled: socket.socket, settings: handshake.Settings) -> LoopConnection:
    steps = handshake.client_side(settings)
    try:
        dialled.setblocking(False)
        packet = next(steps)
        while True:
            with contextlib.suppress(BrokenPipeError, ConnectionResetError):  # What it said before comes next.
                dialled.send(packet)
            answer = await _receive(dialled)
            try:
                packet = steps.send(answer)
            except StopIteration as stop:
                return LoopConnection(dialled, stop.value)
    except BaseException:
        steps.close()
        dialled.close()
        raise


async def _receive(dialled: socket.socket) -> handshake.Packet:
    """The next packet; an empty one at the end, or after too long."""
    loop = asyncio.get_running_loop()
    readable = loop.create_future()
    loop.add_reader(dialled, lambda: None if readable.done() else readable.set_result(None))
    try:
        async with asyncio.timeout(control.STEP_TIMEOUT):
            await readable
        data, descriptors, _, _ = socket.recv_fds(dialled, control.MAX_MESSAGE, 8, socket.MSG_CMSG_CLOEXEC)
    except ConnectionResetError:
        return b"", []
    except TimeoutError:
        raise ConnectionLost(
            f"the server did not answer within {control.STEP_TIMEOUT:g} s of the handshake: it hangs, or is stopped"
        ) from None
    finally:
        loop.remove_reader(dialled)
    return data, descriptors


class LoopConnection:
    """A connection that waits in an event loop."""

    def __init__(self, dialled: socket.socket, established: handshake.Established) -> None:
        self.service = established.service
        self.pid = established.pid
        self.max_frame = established.max_frame
        self.endpoints = established.endpoints
        self.exchange = established.channel.exchange
        self.park = established.channel.park
        self.unpark = established.channel.unpark
        self._channel = established.channel
        self._eventfd = established.eventfd
        self._control = dialled
        self._loop = asyncio.get_running_loop()
        self._open = True
        fork.close_in_child(self)

    def start(self, on_frame: OnFrame, on_lost: OnLost) -> None:
        """From now on frames that nobody exchanged come to ``on_frame``, and the end to ``on_lost``."""
        self._on_frame = on_frame
        self._on_lost = on_lost
        self._loop.add_reader(self._eventfd, self._on_bell)
        self._loop.add_reader(self._control, self._on_control)

    def listen(self) -> None:
        """Before the loop goes on: what is there comes now, and the bell rings for what comes later."""
        try:
            while self._open and not self._channel.park():
                self._drain()
        except _core.ChannelError as error:
            self.fault(error)

    def _on_bell(self) -> None:
        try:
            self._channel.wake()
            self._drain()
        except _core.ChannelError as error:
            self.fault(error)
        else:
            # Whoever rang took our announcement; others may still be waiting.
            self.listen()

    def _drain(self) -> None:
        receive = self._channel.receive
        frame: Frame | None
        while self._open and (frame := receive()) is not None:
            self._on_frame(*frame)

    def _on_control(self) -> None:
        try:
            packet = self._control.recv(control.MAX_MESSAGE)
        except BlockingIOError:
            return
        except ConnectionResetError:
            packet = b""
        # What the server had answered before it went is still good.
        with contextlib.suppress(_core.ChannelError):
            self._drain()
        self._lose(explain(packet, f"server of {self.service!r}", self.pid))

    def fault(self, error: Exception) -> None:
        """The server broke the rules: says so, and closes."""
        with contextlib.suppress(OSError):
            self._control.send(control.encode(control.Goodbye(str(error), fault=True)))
        self._lose(RemoteProtocolError(f"the server of {self.service!r} (process {self.pid}): {error}"))

    def _lose(self, error: ShmrpcError) -> None:
        if self._open:
            self.close()
            self._on_lost(error)

    def close(self) -> None:
        """Closes the connection. Again: nothing."""
        if self._open:
            self._loop.remove_reader(self._eventfd)
            self._loop.remove_reader(self._control)
            with contextlib.suppress(OSError):
                self._control.send(control.encode(control.Goodbye("closed")))
            self.abandon()

    def abandon(self) -> None:
        """Closes the descriptors and says nothing: in a forked child they are the parent's to speak on."""
        if self._open:
            self._open = False
            self._channel.close()
            fork.close(self._control)
            os.close(self._eventfd)

    def check_loop(self) -> None:
        """Raises LocalProtocolError unless the running loop is the one of the connection."""
        if asyncio.get_running_loop() is not self._loop:
            raise LocalProtocolError("this client belongs to another event loop; connect once in each loop")
