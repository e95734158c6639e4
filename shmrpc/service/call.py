"""A call, as its handler, its caller's interceptors and its server's see it."""

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

#: What travels beside arguments and result.
Metadata = dict[str, str | bytes]


class CallPeer(Protocol):
    """The other side of a connection, as a call sees it."""

    #: The service that is called.
    service: str
    #: The process and the user at the other end, as the kernel knows them.
    pid: int
    uid: int
    #: What the service's lifespan yielded, at the server; None elsewhere.
    state: Any

    def allocate(self, size: int, /) -> Any:
        """Memory of this size in bytes that the peer can be given; SharedMemoryError if there is none."""
        ...


class Call(msgspec.Struct, eq=False):
    """One call under way: who calls what, until when, and what travels beside the arguments.

    A handler gets its own from :func:`current_call`; interceptors of both sides are given it.
    """

    _peer: CallPeer
    #: Name of the endpoint.
    endpoint: str
    #: The call's number on its connection.
    id: int = 0
    #: The instant by which it must have ended, in nanoseconds of the host's CLOCK_MONOTONIC; None: no limit.
    deadline: int | None = None
    _metadata: Metadata | None = None
    _reply_metadata: Metadata | None = None
    #: Whether its handler has ended: a task that it left behind is not bound by the deadline.
    _ended: bool = False

    @property
    def service(self) -> str:
        """Name of the service."""
        return self._peer.service

    @property
    def pid(self) -> int:
        """Process id of the peer: of the caller at the server, of the server at the caller, as the kernel tells it.

        0 if it has none in our pid namespace, as a process of the host has none in a container.
        """
        return self._peer.pid

    @property
    def uid(self) -> int:
        """User id of the peer, as the kernel vouches for it."""
        return self._peer.uid

    @property
    def state(self) -> Any:
        """What the service's ``lifespan`` yielded; None without one, and at the caller."""
        return self._peer.state

    @property
    def metadata(self) -> Metadata:
        """From the caller to the handler. A caller's interceptor may add to it before the call is sent."""
        if self._metadata is None:
            self._metadata = {}
        return self._metadata

    @property
    def reply_metadata(self) -> Metadata:
        """From the handler back to the caller: the handler adds to it, the caller reads it when the call ended.

        Of a stream, what was set before its first item is there with that.
        """
        if self._reply_metadata is None:
            self._reply_metadata = {}
        return self._reply_metadata

    def part(self) -> Call:
        """A call of the same endpoint, deadline and metadata: one of several that together are this one."""
        return Call(self._peer, self.endpoint, 0, self.deadline, self._metadata, self.reply_metadata)

    def empty(self, shape: int | tuple[int, ...], dtype: numpy.typing.DTypeLike = "float64") -> numpy.ndarray[Any, Any]:
        """A new NumPy array in shared memory, for a result that nobody copies; see :meth:`shmrpc.Client.empty`."""
        return empty_array(self._peer.allocate, shape, dtype)

    def buffer(self, size: int) -> memoryview:
        """Writable shared memory, for a result that nobody copies; see :meth:`shmrpc.Client.buffer`."""
        return empty_buffer(self._peer.allocate, size)

    def remaining(self) -> float | None:
        """Seconds until the deadline, 0 or more; None if there is none."""
        if self.deadline is None:
            return None
        return max(0.0, (self.deadline - host_nanoseconds()) / 1e9)


#: The call for which a handler's task or thread works.
current_call_var: ContextVar[Call | None] = ContextVar("shmrpc_call", default=None)

#: Services of shmrpc's own in this process, of whose calls the program does not know.
internal_services: Final[set[str]] = set()

#: Not empty once this process has handled a call with a deadline: from then on calls look for one to inherit.
deadlines_seen: list[bool] = []


#: By thread, what its loop runs between taking a frame and answering it.
_running: dict[int, _core.CurrentCall] = {}


def thread_call_state() -> _core.CurrentCall:
    """What the calling thread's loop runs."""
    return _running.setdefault(threading.get_ident(), _core.CurrentCall())


def find_call() -> Call | None:
    """The call that is being handled here, or None."""
    here = _running.get(threading.get_ident())
    frame = None if here is None else here.frame
    if here is None or frame is None:
        return current_call_var.get()
    if type(frame) is tuple:
        caller, opcode, call_id, deadline = frame
        if deadline is not None and type(deadline) is not int:  # It is the body of a frame that Python runs.
            deadline = frames.read_deadline(deadline) if opcode & 0xFF == frames.CALL_DEADLINE else None
        here.frame = frame = Call(caller, caller.endpoint_name(opcode), call_id, deadline)
    return cast(Call, frame)


def current_call() -> Call:
    """The call that this code handles: in an endpoint, in what it awaits, and in tasks that it starts.

    In a plain ``def`` it is there while the function itself runs. Raises LocalProtocolError outside of a
    handler, and in one that runs in another process (``run_in="process"``).
    """
    call = find_call()
    if call is None or call.service in internal_services:
        raise LocalProtocolError("there is no current call: this code is not run by an endpoint of this process")
    return call


def earliest_deadline(own: int | None) -> int | None:
    """The sooner of a call's own deadline and the one that it inherits from the call that is handled here."""
    call = find_call() if deadlines_seen else None
    inherited = call.deadline if call is not None and not call._ended else None
    if own is None or inherited is None:
        return own if inherited is None else inherited
    return min(own, inherited)


def check_metadata(metadata: Mapping[str, str | bytes]) -> Metadata:
    """A copy; TypeError for what metadata cannot be."""
    if not isinstance(metadata, Mapping):
        raise TypeError(f"metadata: expected a dict of str to str or bytes, got {metadata!r}")
    for key, value in metadata.items():
        if not isinstance(key, str) or not isinstance(value, (str, bytes)):
            raise TypeError(f"metadata: expected str to str or bytes, got {key!r}: {value!r}")
    return dict(metadata)
