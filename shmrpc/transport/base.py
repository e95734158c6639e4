"""How frames travel: what the layers above may know of it.

Between processes that is :mod:`shmrpc.transport.shm`, and within one loop, for tests, :mod:`shmrpc.transport.memory`.
Nothing above this line knows what a segment is.
"""

from __future__ import annotations

import asyncio
import warnings
from collections.abc import Awaitable, Callable
from typing import Any, NamedTuple, Protocol

from shmrpc.errors import ConnectionLost, LocalProtocolError, ShmrpcError
from shmrpc.streams.items import Part
from shmrpc.streams.sending import Sender
from shmrpc.wire import frames
from shmrpc.wire.codec import Body

#: Opcode, call id, body.
Frame = tuple[int, int, Body]
#: A frame has come.
OnFrame = Callable[[int, int, Body], None]


class End(NamedTuple):
    """Why a connection is over."""

    error: ShmrpcError
    #: The highest id of a call that the server took, if it said so. Later ones were not executed.
    reached: int | None = None


#: The connection is over.
OnEnd = Callable[[End], None]


class Connection(Protocol):
    """What a session needs of a transport."""

    service: str
    pid: int
    uid: int
    max_frame: int
    endpoints: list[str]
    shapes: dict[int, frames.Shape]

    @property
    def exchange(self) -> Callable[[int, int, Body], Any]:
        """Sends a request, and looks for its answer as long as that pays: body, frame, or None.

        Raises PeerLeft, and sends nothing, if the server is seen to have left.
        """
        ...

    @property
    def begin(self) -> Callable[[int, int, Body], bool]:
        """Sends a request whose answer is not looked for at once, as ``exchange`` does; False if it waits for room."""
        ...

    @property
    def send(self) -> Callable[[int, int, Body], bool]:
        """Sends a frame of a call that has begun; False if it waits for room."""
        ...

    @property
    def unpark(self) -> Callable[[], None]:
        """Nobody waits in the loop any more."""
        ...

    def start(
        self, pending: dict[int, Any], on_frame: OnFrame, on_end: OnEnd, on_go_away: Callable[[], None], /
    ) -> None:
        """Begins to give what comes to these."""
        ...

    def listen(self) -> None:
        """Before the loop goes on: what is there comes now, and the loop wakes for what comes later."""
        ...

    def sender(self, opcode: int, call_id: int, credit: int, /) -> Sender:
        """What sends the items of a stream."""
        ...

    def pull(self, call_id: int, feed: Callable[[Part], None], /) -> None:
        """Takes what is there, without a wait: items of this call go to ``feed``, some at a time."""
        ...

    async def room(self) -> None:
        """Waits until all that was sent has found room."""
        ...

    @property
    def untaken(self) -> Callable[[], tuple[int, int, int, int]]:
        """What the server has not taken yet: bytes read and in the ring; frames that wait for room, and their bytes."""
        ...

    def take_back(self, call_id: int, /) -> bool:
        """Takes back the request of a call, if it waits for room yet: it is never sent."""
        ...

    def allocate(self, size: int, /) -> Any:
        """So many bytes of memory that the server can be given; SharedMemoryError if there are none."""
        ...

    def check_process(self) -> None:
        """Raises LocalProtocolError in a forked child."""
        ...

    def check_loop(self) -> None:
        """Raises LocalProtocolError unless the running loop is the connection's, and in a forked child."""
        ...

    def fault(self, error: Exception) -> None:
        """The server broke the rules: closes."""
        ...

    def interrupted(self, error: BaseException) -> None:
        """An exception, such as a signal handler's, came while a frame was on its way to whoever waits for it."""
        ...

    def close(self) -> None:
        """Closes. Again: nothing."""
        ...

    def drop(self) -> None:
        """Its client was dropped open: closes, and warns of it."""
        ...


#: Connects within so many seconds, None: for ever; and tells after each try why there is no connection so far.
Dial = Callable[[float | None, Callable[[str], None]], Awaitable[Connection]]


def wrong_loop(service: str, loop: asyncio.AbstractEventLoop) -> LocalProtocolError:
    """The error for a use of a client outside of its loop."""
    if loop.is_closed():
        return LocalProtocolError(f"the event loop of this client of {service!r} was closed; connect again")
    return LocalProtocolError("this client belongs to another event loop; connect once in each loop")


def warn_unclosed(service: str, source: object) -> None:
    """Warns of a client that was dropped open; to be called when it is closed, since the warning may be an error."""
    warnings.warn(f"unclosed client of {service!r}", ResourceWarning, source=source, stacklevel=3)


def interruption(service: str, error: BaseException) -> ConnectionLost:
    """The error for those who wait on a connection whose frames were being taken when something else was raised."""
    return ConnectionLost(
        f"the connection to {service!r} was closed: {type(error).__name__} was raised while its frames were taken, as "
        "by a signal handler, and what was just taken is lost"
    )
