"""What travels over the control socket: the handshake, and the goodbye.

Each message is one packet: a MessagePack map whose ``type`` names it. Descriptors ride along where the
table says so.

=========  ======  ==============================================================================
message    from    meaning
=========  ======  ==============================================================================
hello      client  who I am and what I can take
welcome    server  here is your segment; with it a bell, and a socket for extents
confirm    client  I have mapped it; calls may follow at once
refuse     server  no, and why; the socket is closed next
goaway     server  I am going: no new calls; those under way are still answered
goodbye    both    I am closing, and why; the socket is closed next
status     client  instead of hello: tell me about yourself
report     server  the answer to status
=========  ======  ==============================================================================
"""

from __future__ import annotations

from typing import Annotated, Final, Literal

import msgspec

from shmrpc.basics.printable import one_line
from shmrpc.errors import RemoteProtocolError
from shmrpc.wire.codec import UNREADABLE
from shmrpc.wire.frames import MAX_MAX_FRAME, MIN_MAX_FRAME, Shape

#: The version of frames, control messages and all that is not the layout of the segment, which has its own.
VERSION: Final = 5
#: Bytes of one message: less than any socket's buffer holds.
MAX_MESSAGE: Final = 128 << 10
#: Bytes of shared memory that each side may set aside for a connection, where nothing else is said, and the least.
DEFAULT_MAX_MEMORY: Final = 1 << 30
MIN_MAX_MEMORY: Final = 1 << 20
MAX_MAX_MEMORY: Final = 1 << 42
#: Seconds that either side gives the other for one step of the handshake.
STEP_TIMEOUT: Final = 5.0
#: Seconds that a server which is there has for the whole handshake with a client that does not wait (timeout=0).
MOMENT: Final = 1.0
#: Seconds that a peer whose bell has ended may take to be gone altogether: a process that dies
#: closes one after the other.
DEATH_TIMEOUT: Final = 5.0


# The ranges of numbers in a message. A message with another number cannot be read, and its sender is told so.
_MaxFrame = Annotated[int, msgspec.Meta(ge=MIN_MAX_FRAME, le=MAX_MAX_FRAME)]
_MaxMemory = Annotated[int, msgspec.Meta(ge=MIN_MAX_MEMORY, le=MAX_MAX_MEMORY)]
_Capacity = Annotated[int, msgspec.Meta(ge=1024, le=1 << 30)]
_Pid = Annotated[int, msgspec.Meta(ge=1, lt=1 << 31)]
_CallId = Annotated[int, msgspec.Meta(ge=0)]
_Count = Annotated[int, msgspec.Meta(ge=0)]

#: Of a server, from its first moment to its last.
Health = Literal["starting", "serving", "draining"]


class Hello(msgspec.Struct, tag="hello"):
    """The first message of a client."""

    version: int
    #: Bytes of the largest body it accepts.
    max_frame: int
    #: Whether it sends and reads pickles. Both sides do, or none.
    pickle: bool = False
    #: Bytes of shared memory that it accepts of the other side, and takes itself at most.
    max_memory: int = DEFAULT_MAX_MEMORY
    #: Whether its threads sleep on a semaphore; else the bell wakes its loop.
    semaphores: bool = True


class Welcome(msgspec.Struct, tag="welcome"):
    """The server's segment. Descriptors: the client's end of the bell, and of the socket for extents."""

    service: str
    pid: _Pid
    #: Name of the segment, as shm_open takes it.
    segment: str
    #: Bytes of one ring, once it has grown to all of them.
    capacity: _Capacity
    #: Bytes of the largest body in either direction: the smaller of the two sides' limits.
    max_frame: _MaxFrame
    #: The endpoints' names; the place in this list is the number.
    endpoints: list[str]
    #: Names of the semaphores, client to server and server to client; None if the client does not sleep on one.
    semaphores: tuple[str, str] | None = None
    #: By number, the shapes of those that stream on any side, None of the others; empty if none does.
    shapes: list[Shape | None] = []
    #: Bytes of shared memory that either side may set aside: the smaller of the two sides' limits.
    max_memory: _MaxMemory = DEFAULT_MAX_MEMORY


class Confirm(msgspec.Struct, tag="confirm"):
    """The client has mapped the segment: for it the connection stands, and the names can be unlinked."""


class Refuse(msgspec.Struct, tag="refuse"):
    """The server does not take this client."""

    reason: str
    #: Whether it, or another one, may take it in a moment: it is starting, or going.
    try_again: bool = False

    def __post_init__(self) -> None:
        self.reason = one_line(self.reason)


class GoAway(msgspec.Struct, tag="goaway"):
    """This server stops. It begins no call that comes from now on, and answers those under way."""


class Goodbye(msgspec.Struct, tag="goodbye"):
    """This side closes the connection."""

    reason: str
    #: True if the receiver broke the rules.
    fault: bool = False
    #: From a server that stops: the highest id of a call that it took. Later ones were not executed.
    reached: _CallId | None = None

    def __post_init__(self) -> None:
        self.reason = one_line(self.reason)


class Status(msgspec.Struct, tag="status"):
    """Asks for a report."""


class Report(msgspec.Struct, tag="report"):
    """What a server says of itself."""

    service: str
    pid: _Pid
    #: Seconds since it began to serve.
    uptime: Annotated[float, msgspec.Meta(ge=0)]
    endpoints: list[str]
    connections: _Count
    health: Health = "serving"
    #: Of a server with several processes: the connections of each, by its process id.
    workers: dict[_Pid, _Count] = {}


Message = Hello | Welcome | Confirm | Refuse | GoAway | Goodbye | Status | Report

_encoder = msgspec.msgpack.Encoder()
_decoder: msgspec.msgpack.Decoder[Message] = msgspec.msgpack.Decoder(Message)


def encode(message: Message) -> bytes:
    """One packet."""
    return _encoder.encode(message)


def decode(packet: bytes) -> Message:
    """The message in a packet; RemoteProtocolError if it is none."""
    try:
        return _decoder.decode(packet)
    except UNREADABLE as error:
        why = one_line(str(error))
        raise RemoteProtocolError(f"a control message of {len(packet)} bytes cannot be read: {why}") from None
