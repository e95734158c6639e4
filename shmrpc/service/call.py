"""A call, as its handler and the interceptors of both sides see it."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, Final, Protocol, cast

import msgspec

from shmrpc import _core
from shmrpc.basics.clock import host_nanoseconds
from shmrpc.errors import LocalProtocolError
from shmrpc.values.sharing import empty_array, empty_buffer
from shmrpc.wire import frames

if TYPE_CHECKING:
    import numpy
    import numpy.typing

#: Values that travel in addition to arguments and result.
Metadata = dict[str, str | bytes]


class CallPeer(Protocol):
    """The other side of a connection, for a call."""

    #: Name of the service.
    service: str
    #: Process and user of the peer, as reported by the kernel.
    pid: int
    uid: int
    #: Value that the service's lifespan yielded; None at the caller.
    state: Any

    def allocate(self, size: int, /) -> Any:
        """Allocate memory to share with the peer. Raises SharedMemoryError if that fails."""
        ...


class Call(msgspec.Struct, eq=False):
    """One call: its endpoint, its deadline, and its metadata.

    A handler gets its call from :func:`current_call`. Interceptors of both sides receive it as an argument.
    """

    _peer: CallPeer
    #: Name of the endpoint.
    endpoint: str
    #: Number of the call on its connection.
    id: int = 0
    #: Time of the deadline in nanoseconds of the host's CLOCK_MONOTONIC; None: no limit.
    deadline: int | None = None
    _metadata: Metadata | None = None
    _reply_metadata: Metadata | None = None
    #: True once the handler has ended, because the deadline does not limit tasks that it left behind.
    _ended: bool = False

    @property
    def service(self) -> str:
        """Name of the service."""
        return self._peer.service

    @property
    def pid(self) -> int:
        """Process id of the peer, as reported by the kernel: of the caller at the server, of the server at the caller.

        0 if the peer has no id in this pid namespace, like a process of the host seen from a container; always 0 over
        NATS.
        """
        return self._peer.pid

    @property
    def uid(self) -> int:
        """User id of the peer, as reported by the kernel; -1 over NATS, where the peer is unknown."""
        return self._peer.uid

    @property
    def state(self) -> Any:
        """Value that the service's ``lifespan`` yielded; None without a lifespan, and at the caller."""
        return self._peer.state

    @property
    def metadata(self) -> Metadata:
        """Metadata from the caller to the handler. Interceptors of the caller may add to it before the call is sent."""
        if self._metadata is None:
            self._metadata = {}
        return self._metadata

    @property
    def reply_metadata(self) -> Metadata:
        """Metadata from the handler to the caller. The handler adds to it; the caller reads it after the call.

        For a stream, metadata that was set before the first item arrives with that item.
        """
        if self._reply_metadata is None:
            self._reply_metadata = {}
        return self._reply_metadata

    def part(self) -> Call:
        """Return a call for a part of this batch: without an id, with the same endpoint and deadline.

        Its metadata, if any, and its reply metadata are the dicts of this call, not copies.
        """
        return Call(self._peer, self.endpoint, 0, self.deadline, self._metadata, self.reply_metadata)

    def empty(self, shape: int | tuple[int, ...], dtype: numpy.typing.DTypeLike = "float64") -> numpy.ndarray[Any, Any]:
        """Return a new NumPy array in shared memory, with undefined contents, for a result without a copy.

        See :meth:`shmrpc.Client.empty`. Raises SharedMemoryError if there is no room, ImportError without NumPy, and
        TypeError or ValueError for an invalid dtype or shape.
        """
        return empty_array(self._peer.allocate, shape, dtype)

    def buffer(self, size: int) -> memoryview:
        """Return ``size`` writable bytes of shared memory, with undefined contents, for a result without a copy.

        See :meth:`shmrpc.Client.buffer`. Raises SharedMemoryError if there is no room, ValueError for a negative size,
        and TypeError for a size that is no number.
        """
        return empty_buffer(self._peer.allocate, size)

    def remaining(self) -> float | None:
        """Return the seconds until the deadline, at least 0; None without a deadline."""
        if self.deadline is None:
            return None
        return max(0.0, (self.deadline - host_nanoseconds()) / 1e9)


#: Call that a handler's task or thread works for.
current_call_var: ContextVar[Call | None] = ContextVar("shmrpc_call", default=None)

#: Names of internal services of this process, whose calls the program does not see.
internal_services: Final[set[str]] = set()

#: Empty until this process handles a call with a deadline. From then on, calls look for a deadline to inherit.
deadlines_seen: list[bool] = []


#: Current frame or call of each thread's event loop, by thread.
_running: dict[int, _core.CurrentCall] = {}


def thread_call_state() -> _core.CurrentCall:
    """Return the object that holds the current frame or call of the calling thread's event loop.

    The first call in a thread makes the object.
    """
    return _running.setdefault(threading.get_ident(), _core.CurrentCall())


def find_call() -> Call | None:
    """Return the call that this thread or task handles, or None.

    For a frame, makes the Call, and keeps it in the place of the frame.
    """
    here = _running.get(threading.get_ident())
    frame = None if here is None else here.frame
    if here is None or frame is None:
        return current_call_var.get()
    if type(frame) is tuple:
        caller, opcode, call_id, deadline = frame
        if deadline is not None and type(deadline) is not int:  # Python runs this frame: the value is its body.
            deadline = frames.read_deadline(deadline) if opcode & 0xFF == frames.CALL_DEADLINE else None
        here.frame = frame = Call(caller, caller.endpoint_name(opcode), call_id, deadline)
    return cast(Call, frame)


def current_call() -> Call:
    """Return the call that this code handles: in an endpoint, in coroutines that it awaits and in tasks that it starts.

    In a plain ``def`` it is available while the function itself runs. Raises LocalProtocolError outside of a handler,
    and in a handler that runs in another process (``run_in="process"``).
    """
    call = find_call()
    if call is None or call.service in internal_services:
        raise LocalProtocolError("there is no current call: this code is not run by an endpoint of this process")
    return call


def earliest_deadline(own: int | None) -> int | None:
    """Return the earlier of ``own`` and the deadline of the call that this code handles; None if there is neither."""
    call = find_call() if deadlines_seen else None
    inherited = call.deadline if call is not None and not call._ended else None
    if own is None or inherited is None:
        return own if inherited is None else inherited
    return min(own, inherited)


def check_metadata(metadata: Mapping[str, str | bytes]) -> Metadata:
    """Return a copy of metadata. Raises TypeError unless it is a mapping of str to str or bytes."""
    if not isinstance(metadata, Mapping):
        raise TypeError(f"metadata: expected a dict of str to str or bytes, got {metadata!r}")
    for key, value in metadata.items():
        if not isinstance(key, str) or not isinstance(value, (str, bytes)):
            raise TypeError(f"metadata: expected str to str or bytes, got {key!r}: {value!r}")
    return dict(metadata)
