"""A server that breaks the protocol, and both kinds of clients of it."""

from __future__ import annotations

import contextlib
import os
import socket
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import msgpack

import shmrpc
from shmrpc import _core
from shmrpc.transport.connection_options import ConnectionOptions
from shmrpc.transport.listener import Offer
from shmrpc.transport.shm import handshake
from shmrpc.wire import control
from shmrpc.wire.frames import CALL, RESULT, Shape
from tests.helpers.server_process import PATIENCE

#: The server's act on the first call, of this id, before its answer.
Misdeed = Callable[["ScriptedServer", int], object]

SHAPES = {1: Shape(streams=True), 2: Shape(inputs=(("numbers", 0),))}
OFFER = Offer("tested", ["add", "count", "total"], SHAPES)
SUM = msgpack.packb(3)


class Died(Exception):
    """Raised by a misdeed to end the server without a message."""


class ScriptedServer:
    """A server of one client. Answers each call with 3, and the first call only after its misdeed.

    With ``forges`` the server writes the client's extent updates itself, and so cannot open the client's loans.
    """

    def __init__(self, runtime: Path, misdeed: Misdeed, *, forges: bool = False) -> None:
        self._misdeed = misdeed
        self._forges = forges
        #: The server's end of the socket for extent updates.
        self.updates, self._client_updates = socket.socketpair(type=socket.SOCK_SEQPACKET)
        #: The body of the client's last call: bytes, or a parcel.
        self.body: bytes | _core.Parcel = b""
        #: The server's end of the doorbell.
        self.bell = -1
        #: The files of the connection, to be truncated: the segment and, if the client sleeps on them, semaphores.
        self.files: list[int] = []
        #: Rings that the server left unread in its doorbell.
        self.unread_rings = 0
        #: The server's end of the control socket, once the client has called.
        self.control: socket.socket | None = None
        #: The client's last message.
        self.heard: control.Message | None = None
        runtime.mkdir(mode=0o700)
        self._listening = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._listening.settimeout(PATIENCE)
        self._listening.bind(str(runtime / "tested.sock"))
        self._listening.listen(1)
        self._thread = threading.Thread(target=self._serve)
        self._thread.start()

    def _serve(self) -> None:
        with self._listening, self._listening.accept()[0] as client:
            hello = control.decode(client.recv(1000))
            assert isinstance(hello, control.Hello)
            made = handshake.accept_client(hello, OFFER, ConnectionOptions(1 << 20, 1 << 20, spin=0))
            welcome = control.decode(made.welcome)
            assert isinstance(welcome, control.Welcome)
            names = [welcome.segment, *(f"sem.{name}" for name in welcome.semaphores or ())]
            self.files = [os.open(f"/dev/shm/{name}", os.O_RDWR | os.O_CLOEXEC) for name in names]
            bell, updates = (each.fileno() for each in made.theirs)
            if self._forges:
                updates = self._client_updates.fileno()
            socket.send_fds(client, [made.welcome], [bell, updates])
            made.close_sent()
            assert isinstance(control.decode(client.recv(1000)), control.Confirm)
            made.segment.unlink()
            client.settimeout(0)
            self.channel, self.bell = made.channel, made.bell.fileno()
            try:
                # The client may leave at any point.
                with contextlib.suppress(Died, BrokenPipeError, ConnectionResetError):
                    self._answer(client)
            finally:
                self.channel.close()
                made.bell.close()
                for file in self.files:
                    os.close(file)
                self.updates.close()
                self._client_updates.close()

    def send(self, opcode: int, call_id: int, body: bytes) -> None:
        """Send a frame."""
        self.channel.send(opcode, call_id, body)

    def _answer(self, client: socket.socket) -> None:
        channel, first = self.channel, True
        self.control = client
        while True:
            with contextlib.suppress(BlockingIOError):
                packet = client.recv(1000)
                self.heard = control.decode(packet) if packet else None
                return
            try:
                channel.wake()  # Sends pending frames.
                frame = channel.receive()
            except _core.ChannelError:  # The end of a loan that only the misdeed knew of.
                continue
            if frame is None:
                time.sleep(0.001)
                continue
            opcode, call_id, self.body = frame
            frame = None  # Only the body holds the client's loans.
            if opcode & 0xFF == CALL:
                if first:
                    first = False
                    self._misdeed(self, call_id)
                with contextlib.suppress(_core.ChannelError):  # Answers the call, which the misdeed may have corrupted.
                    channel.send(RESULT, call_id, SUM)

    def join(self) -> None:
        self._thread.join(2 * PATIENCE)
        assert not self._thread.is_alive()


@contextlib.contextmanager
def scripted_server(runtime: Path, misdeed: Misdeed, *, forges: bool = False) -> Iterator[ScriptedServer]:
    hostile = ScriptedServer(runtime, misdeed, forges=forges)
    yield hostile
    hostile.join()


class Caller:
    """A client of either kind, awaited in the same way."""

    def __init__(self, client: Any, *, blocking: bool) -> None:
        self._client = client
        self._blocking = blocking

    async def call(self, name: str, *args: Any) -> Any:
        result = getattr(self._client, name)(*args)
        return result if self._blocking else await result

    async def stream(self, *args: Any) -> list[Any]:
        if self._blocking:
            return list(self._client.count(*args))
        return [item async for item in self._client.count(*args)]


@contextlib.asynccontextmanager
async def connected(blocking: bool) -> AsyncIterator[Caller]:
    if blocking:
        with shmrpc.sync.connect("tested", timeout=PATIENCE) as client:
            yield Caller(client, blocking=True)
    else:
        async with shmrpc.connect("tested", timeout=PATIENCE) as client:
            yield Caller(client, blocking=False)
