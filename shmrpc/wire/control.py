"""Messages of the control socket: the handshake, and the end of a connection.

Each message is one packet, a MessagePack map whose ``type`` names the message. Some carry descriptors.

=========  ======  ==============================================================================
message    from    meaning
=========  ======  ==============================================================================
hello      client  the version and the limits of the client
welcome    server  the segment; carries a doorbell, and a socket for extents
confirm    client  the client has mapped the segment; calls may follow at once
refuse     server  the reason of a refusal; the server closes the socket next
goaway     server  the server is stopping: it begins no new calls, and answers the calls in flight
goodbye    both    the reason for closing the connection; the sender closes the socket next
status     client  in the place of hello: a request for a report
report     server  the state of the server
=========  ======  ==============================================================================
"""

from __future__ import annotations

from typing import Annotated, Final, Literal

import msgspec

from shmrpc.basics.printable import one_line
from shmrpc.errors import RemoteProtocolError
from shmrpc.wire.codec import UNREADABLE
from shmrpc.wire.frames import MAX_MAX_FRAME, MIN_MAX_FRAME, Shape

#: Version of frames and control messages; the layout of the segment has a version of its own.
VERSION: Final = 5
#: Largest size of a message in bytes, less than the buffer of any socket.
MAX_MESSAGE: Final = 128 << 10
#: Bytes of shared memory that each side may allocate for a connection: default and bounds.
DEFAULT_MAX_MEMORY: Final = 1 << 30
MIN_MAX_MEMORY: Final = 1 << 20
MAX_MAX_MEMORY: Final = 1 << 42
#: Seconds that each side waits for one step of the handshake.
STEP_TIMEOUT: Final = 5.0
#: Seconds that a live server has for the handshake with a client that does not wait (``timeout=0``).
MOMENT: Final = 1.0
#: Seconds between the end of a peer's doorbell and the end of its control socket: a dying process closes one after the
#: other.
DEATH_TIMEOUT: Final = 5.0


# Ranges of the numbers in messages. A message with a number out of range is refused as invalid.
_MaxFrame = Annotated[int, msgspec.Meta(ge=MIN_MAX_FRAME, le=MAX_MAX_FRAME)]
_MaxMemory = Annotated[int, msgspec.Meta(ge=MIN_MAX_MEMORY, le=MAX_MAX_MEMORY)]
_Capacity = Annotated[int, msgspec.Meta(ge=1024, le=1 << 30)]
_Pid = Annotated[int, msgspec.Meta(ge=1, lt=1 << 31)]
_CallId = Annotated[int, msgspec.Meta(ge=0)]
_Count = Annotated[int, msgspec.Meta(ge=0)]

#: States of a server, in order.
Health = Literal["starting", "serving", "draining"]


class Hello(msgspec.Struct, tag="hello"):
    """First message of a client."""

    version: int
    #: Largest body that the client accepts, in bytes.
    max_frame: int
    #: True if the client sends and reads pickles; both sides must agree.
    pickle: bool = False
    #: Largest shared memory of either side, in bytes.
    max_memory: int = DEFAULT_MAX_MEMORY
    #: True if threads of the client sleep on a semaphore; otherwise the doorbell wakes its event loop.
    semaphores: bool = True


class Welcome(msgspec.Struct, tag="welcome"):
    """Segment of a new connection. Carries the client's ends of the doorbell and of the socket for extents."""

    service: str
    pid: _Pid
    #: Name of the segment, for shm_open.
    segment: str
    #: Full size of one ring in bytes.
    capacity: _Capacity
    #: Largest body in either direction, in bytes: the smaller of the two limits.
    max_frame: _MaxFrame
    #: Names of the endpoints; the index in this list is the endpoint's number.
    endpoints: list[str]
    #: Names of the semaphores, client to server and server to client; None if the client sleeps on none.
    semaphores: tuple[str, str] | None = None
    #: Shapes of the endpoints by number, None for those without streams; empty if no endpoint streams.
    shapes: list[Shape | None] = []
    #: Largest shared memory of either side, in bytes: the smaller of the two limits.
    max_memory: _MaxMemory = DEFAULT_MAX_MEMORY


class Confirm(msgspec.Struct, tag="confirm"):
    """Confirmation that the client has mapped the segment: the server can unlink the names."""


class Refuse(msgspec.Struct, tag="refuse"):
    """Refusal of a client."""

    #: Text on one line, which :func:`one_line` cuts and escapes when the message is made or decoded.
    reason: str
    #: True if this server or another one may accept the client soon, because this one is starting or stopping.
    try_again: bool = False

    def __post_init__(self) -> None:
        self.reason = one_line(self.reason)


class GoAway(msgspec.Struct, tag="goaway"):
    """Notice that the server is stopping: it begins no new calls, and answers the calls in flight."""


class Goodbye(msgspec.Struct, tag="goodbye"):
    """Notice that the sender closes the connection."""

    #: Text on one line, as in a :class:`Refuse`.
    reason: str
    #: True if the receiver broke the protocol.
    fault: bool = False
    #: Highest call id that a stopping server received. Calls with higher ids were not executed.
    reached: _CallId | None = None

    def __post_init__(self) -> None:
        self.reason = one_line(self.reason)


class StatusRequest(msgspec.Struct, tag="status"):
    """Request for a report."""


class StatusReport(msgspec.Struct, tag="report"):
    """State of a server."""

    service: str
    pid: _Pid
    #: Seconds since the server started.
    uptime: Annotated[float, msgspec.Meta(ge=0)]
    endpoints: list[str]
    connections: _Count
    health: Health = "serving"
    #: Connections of each worker process, by process id; empty for a server of one process.
    workers: dict[_Pid, _Count] = {}


Message = Hello | Welcome | Confirm | Refuse | GoAway | Goodbye | StatusRequest | StatusReport

_encoder = msgspec.msgpack.Encoder()
_decoder: msgspec.msgpack.Decoder[Message] = msgspec.msgpack.Decoder(Message)


def type_of(message: msgspec.Struct) -> str:
    """Return the ``type`` of a message in its packet, such as ``"hello"``."""
    return str(message.__struct_config__.tag)


def encode(message: Message) -> bytes:
    """Encode a message as one packet. Does not check its values, nor that it is within MAX_MESSAGE bytes."""
    return _encoder.encode(message)


def decode(packet: bytes) -> Message:
    """Decode a packet. Raises RemoteProtocolError if it holds no valid message."""
    try:
        return _decoder.decode(packet)
    except UNREADABLE as error:
        why = one_line(str(error))
        raise RemoteProtocolError(f"a control message of {len(packet)} bytes cannot be decoded: {why}") from None
