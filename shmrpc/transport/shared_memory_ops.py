"""Operations of a side that shares memory with its peer, and what stands in for them on other transports."""

from __future__ import annotations

import errno
import functools
from collections.abc import Callable
from typing import Any, Protocol

from shmrpc import _core
from shmrpc.errors import SharedMemoryError
from shmrpc.streams.items import ItemRun
from shmrpc.streams.sending import PlainSender, Sender
from shmrpc.wire.codec import Body


class SharedMemoryOps(Protocol):
    """What a side can do whose memory is shared with the other one. Any other has :class:`SharedMemoryFallback`."""

    def sender(self, opcode: int, call_id: int, credit: int, /) -> Sender:
        """What sends the items of a stream."""
        ...

    def take_back(self, call_id: int, /) -> object:
        """Takes back what of a call still waits for room: it is never sent. True in a client: that was its request."""
        ...

    def allocate(self, size: int, /) -> Any:
        """``size`` bytes of memory that the other side can be given; SharedMemoryError if there are none."""
        ...


class ClientSharedMemoryOps(SharedMemoryOps, Protocol):
    """The same in a client, which may also look for answers without leaving the loop."""

    @property
    def channel(self) -> _core.Channel | None:
        """What the core makes short calls through, without Python; None if the transport is not the core's."""
        ...

    def exchange(self, opcode: int, call_id: int, body: Body, /) -> Any:
        """Sends a request, and looks for its answer as long as that pays: body, frame, or None.

        Raises PeerLeft, and sends nothing, if the server is seen to have left.
        """
        ...

    def begin(self, opcode: int, call_id: int, body: Body, /) -> bool:
        """Sends a request whose answer is not looked for at once, as ``exchange`` does; False if it waits for room."""
        ...

    def listen(self) -> None:
        """Takes what is there before the loop goes on, and has the loop woken for what comes later."""
        ...

    def unpark(self) -> None:
        """Stops having the loop woken."""
        ...

    def route(self, call_id: int, feed: Callable[[ItemRun], None], /) -> None:
        """From now on items of this call may go to ``feed``, some at a time."""
        ...

    def unroute(self, call_id: int, /) -> None:
        """The items of a call go nowhere any more."""
        ...

    def pull(self, call_id: int, /) -> None:
        """Takes what is there, without a wait, of a call that has a route above all."""
        ...

    def untaken(self) -> tuple[int, int, int, int]:
        """What the server has not taken yet: bytes read and in the ring; frames that wait for room, and their bytes."""
        ...


class SharedMemoryFallback:
    """What stands in for :class:`SharedMemoryOps` on a transport that has none."""

    def __init__(self, send: Callable[[int, int, Body], object], max_memory: int | None) -> None:
        self._send = send
        self._max_memory = max_memory

    def sender(self, opcode: int, call_id: int, credit: int) -> PlainSender:
        """What sends the items of a stream, each as a frame."""
        return PlainSender(functools.partial(self._send, opcode, call_id), credit)

    def take_back(self, call_id: int) -> bool:
        """False: what was sent is on its way."""
        return False

    def allocate(self, size: int) -> bytearray:
        """Memory of this process's own; SharedMemoryError if there is not so much, or if it could not be sent."""
        if self._max_memory is not None and size > self._max_memory:
            raise SharedMemoryError(
                errno.ENOMEM, f"{size:,} bytes are over max_memory={self._max_memory:,}, the smaller of both sides'"
            )
        try:
            return bytearray(size)
        except MemoryError:
            raise SharedMemoryError(errno.ENOMEM, f"this process has no room for {size:,} bytes") from None


class ClientSharedMemoryFallback(SharedMemoryFallback):
    """The same for a client. Everything comes to it by the loop."""

    def __init__(
        self, send: Callable[[int, int, Body], bool], max_memory: int | None, check_loop: Callable[[], None]
    ) -> None:
        super().__init__(send, max_memory)
        self._check_loop = check_loop
        self.begin = send
        self.channel = None

    def exchange(self, opcode: int, call_id: int, body: Body) -> None:
        """Sends a request."""
        self._check_loop()  # Before anything is put into the other loop.
        self._send(opcode, call_id, body)

    def listen(self) -> None:
        """Nothing: the loop wakes without being asked."""

    def unpark(self) -> None:
        """Nothing, too."""

    def route(self, call_id: int, feed: Callable[[ItemRun], None]) -> None:
        """Nothing: items come as frames."""

    def unroute(self, call_id: int) -> None:
        """Nothing either."""

    def pull(self, call_id: int) -> None:
        """Nothing is there before its turn of the loop."""

    def untaken(self) -> tuple[int, int, int, int]:
        """Nothing that is known here."""
        return 0, 0, 0, 0
