"""Client's side of a connection over NATS."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable, Mapping
from typing import Any, Final

from shmrpc.errors import ConnectionLost, RemoteProtocolError, ServiceUnavailable
from shmrpc.host.runtime_dir import check_name
from shmrpc.transport.connection import CloseReason, Connection, OnEnd, OnFrame, shapes_by_number
from shmrpc.transport.connection_options import ConnectionOptions
from shmrpc.transport.nats import messages, subjects
from shmrpc.transport.nats.address import NatsAddress
from shmrpc.transport.nats.link import link
from shmrpc.transport.nats.link.link import Link
from shmrpc.transport.nats.link.link_errors import NatsTimeout
from shmrpc.transport.nats.messages import Hello, Message, Welcome
from shmrpc.transport.nats.pipe.frame_reader import FrameLimits
from shmrpc.transport.nats.pipe.pipe import Pipe
from shmrpc.transport.nats.status import find_similar_name
from shmrpc.wire import control
from shmrpc.wire.codec import Body

#: Seconds that one server has for its welcome before another one is asked.
_WELCOME_TIMEOUT: Final = 1.0
#: Seconds for one attempt to connect to NATS.
_CONNECT_TIMEOUT: Final = 5.0
#: Seconds between two attempts: the shortest, the longest, and the longest of a client without a timeout.
_FIRST_PAUSE: Final = 0.005
_LONGEST_PAUSE: Final = 0.1
_LONGEST_PAUSE_FOR_EVER: Final = 0.5
#: User id of a peer whose user is unknown.
UNKNOWN_UID: Final = -1


class _RetryLater(Exception):
    """Error of an attempt that may succeed later, with the reason as text."""


class _Unreachable(_RetryLater):
    """Error of an attempt that leaves open if there are servers: NATS is unreachable, refuses, or is silent."""


class _TimedOut(_Unreachable):
    """Error of an attempt that ran out of time without any result."""


async def connect(
    service: str,
    address: NatsAddress,
    timeout: float | None,
    note: Callable[[str], None],
    *,
    options: ConnectionOptions,
) -> NatsConnection:
    """Connect to a server of a service within ``timeout`` seconds; None: without a limit, 0: one attempt.

    One attempt may take 1 s, and the end of this call waits for other closing connections of the link. ``note`` is
    called with the reason after each failed attempt. Raises ServiceUnavailable if there is none by then, or at once if
    the server refuses or the login cannot work (NatsMisconfigured); RemoteProtocolError if the server breaks a rule,
    ImportError if the login needs a missing package, and ValueError or TypeError for an invalid name.
    """
    check_name(service)
    began = time.monotonic()
    end = None if timeout is None else began + timeout
    pause, longest = _FIRST_PAUSE, _LONGEST_PAUSE_FOR_EVER if timeout is None else _LONGEST_PAUSE
    nats_link: Link | None = None
    reason, is_known = "", False
    try:
        while True:
            left = math.inf if end is None else _WELCOME_TIMEOUT if timeout == 0 else end - time.monotonic()
            try:
                if nats_link is not None and not nats_link.is_open:
                    nats_link.release()
                    nats_link = None
                nats_link = nats_link or await _acquire_link(address, left)
                return await _handshake(service, nats_link, left, options)
            except _RetryLater as why:
                if not reason or not isinstance(why, _TimedOut):  # Otherwise the earlier reason says more.
                    reason, is_known = str(why), not isinstance(why, _Unreachable)
            note(reason)
            if end is not None and time.monotonic() + pause >= end:
                waited = time.monotonic() - began
                if not is_known:
                    raise ServiceUnavailable(f"{reason} (waited {waited:.3g} s)")
                meant = (
                    await find_similar_name(nats_link, service)
                    if timeout and nats_link is not None and nats_link.is_open
                    else None
                )
                hint = f"did you mean {meant!r}, which is served? If not, " if meant else ""
                raise ServiceUnavailable(
                    f"no server of {service!r} at {address} (waited {waited:.3g} s): {reason}; {hint}start one with "
                    f"`shmrpc serve MODULE:SERVICE --at {address}`"
                )
            await asyncio.sleep(pause)
            pause = min(pause * 1.5, longest)
    finally:
        if nats_link is not None:
            nats_link.release()
            await nats_link.wait_closed()


async def _acquire_link(address: NatsAddress, timeout: float) -> Link:
    """Return a link, which the caller releases, within ``timeout`` seconds and at most 5.

    Raises _Unreachable or _TimedOut if NATS cannot be reached, NatsMisconfigured for a mistake on this side.
    """
    try:
        return await link.acquire(address, max(0.0, min(timeout, _CONNECT_TIMEOUT)))
    except link.NatsMisconfigured:
        raise
    except NatsTimeout as error:
        raise _TimedOut(str(error)) from None
    except ServiceUnavailable as error:
        raise _Unreachable(str(error)) from None


async def _handshake(service: str, nats_link: Link, timeout: float, options: ConnectionOptions) -> NatsConnection:
    """Ask for a server and return the connection to it.

    Raises _RetryLater if no server takes the client now, ServiceUnavailable if one refuses, RemoteProtocolError.
    """
    pipe = Pipe(nats_link, FrameLimits(options.max_frame, options.max_memory))
    pipe.peer_description = f"the server of {service!r}"
    wait_seconds = max(0.0, min(_WELCOME_TIMEOUT, timeout))
    try:
        versions = (messages.VERSION, control.VERSION)
        host, pid = messages.own_process()
        sizes = options.max_frame, options.max_memory
        hello = Hello(versions, *sizes, pipe.heartbeat, pipe.subject, pipe.proof, options.pickle, host, pid)
        nats_link.publish(subjects.hello(service), messages.encode(hello), pipe.notices)
        async with asyncio.timeout(wait_seconds):
            welcome = await pipe.first_message()
        if isinstance(welcome, Welcome):
            pipe.set_peer(welcome.inbox, welcome.proof)
            return NatsConnection(service, nats_link, pipe, welcome)
        if not isinstance(welcome, control.Refuse):
            raise RemoteProtocolError(f"{pipe.peer_description}: expected welcome, got {control.type_of(welcome)}")
        if welcome.try_again:
            raise _RetryLater(f"the last server refused: {welcome.reason}")
        raise ServiceUnavailable(f"the server refused the connection: {welcome.reason}")
    except BaseException as error:
        pipe.discard()
        if isinstance(error, TimeoutError):
            refused = nats_link.errors.recent_refusal().removeprefix(": ")
            if refused:
                raise _Unreachable(f"cannot reach {service!r} at {nats_link}: {refused}") from None
            kind = _Unreachable if wait_seconds == _WELCOME_TIMEOUT else _TimedOut
            raise kind(
                f"no server of {service!r} answered at {nats_link} within {wait_seconds:.2g} s: none is running while "
                "a NATS stream or monitor subscribes to its subject, or it is stopped, busy, or may not publish here"
            ) from None
        if isinstance(error, ConnectionLost):
            raise _RetryLater(str(error)) from None
        raise


class NatsConnection(Connection):
    """Client's side of a connection, with the limits of the welcome. Owns its pipe; the peer of the pipe must be set.

    Raises RemoteProtocolError if the welcome has a wrong number of shapes.
    """

    def __init__(self, service: str, nats_link: Link, pipe: Pipe, welcome: Welcome) -> None:
        shapes = shapes_by_number(welcome.endpoints, welcome.shapes, pipe.peer_description)
        pipe.peer_description = f"the server of {service!r} ({messages.describe_process(welcome.host, welcome.pid)})"
        pipe.heartbeat = welcome.heartbeat
        pipe.set_limits(
            FrameLimits(min(pipe.limits.max_frame, welcome.max_frame), min(pipe.limits.max_memory, welcome.max_memory))
        )
        super().__init__(service, 0, UNKNOWN_UID, pipe.limits.max_frame, welcome.endpoints, shapes)
        self.limits = pipe.limits
        self.max_memory = pipe.limits.max_memory
        self.address = str(nats_link)
        self.send = pipe.send
        self.extra_credit = pipe.extra_credit
        self._pipe = pipe

    def start(
        self, pending: Mapping[int, Any], on_frame: OnFrame, on_end: OnEnd, on_go_away: Callable[[], None]
    ) -> None:
        """Start to deliver frames, as :meth:`Connection.start` does."""
        super().start(pending, on_frame, on_end, on_go_away)
        self._pipe.listen(self._deliver_frame, self._on_message, self._lose)

    def _deliver_frame(self, opcode: int, call_id: int, body: Body, clock: int) -> None:
        """Pass a frame to the session. Replies have no deadline, so the clock of the server does not matter."""
        try:
            self._on_frame(opcode, call_id, body)
        except BaseException as error:
            self.interrupted(error)
            raise

    def _on_message(self, message: Message) -> None:
        """Handle a message of the server. Raises RemoteProtocolError for a message that no server sends."""
        if isinstance(message, control.GoAway):
            self._on_go_away()
        elif isinstance(message, control.Goodbye):
            self._lose(CloseReason.from_goodbye(message, self._pipe.peer_description))
        else:
            raise RemoteProtocolError(f"it sent {control.type_of(message)!r} on an established connection")

    async def wait_for_room(self) -> None:
        """Wait until there is room to send, or the connection has ended."""
        await self._pipe.wait_for_room()

    def fault(self, error: Exception) -> None:
        """Close the connection, and report the broken rule to the server."""
        if self._open:
            self._pipe.fault(str(error))

    def close(self) -> None:
        """Close the connection after the frames already sent; at once, and without them, if its loop is closed.

        Idempotent.
        """
        if self._open:
            self._open = False
            if self._loop.is_closed():  # The client was dropped open, and no goodbye can be sent.
                self._pipe.discard()
                return
            self._pipe.send_message(control.Goodbye("closed"))
            self._pipe.finish()

    async def wait_closed(self) -> None:
        """Wait until the frames sent before :meth:`close` have left this process."""
        await self._pipe.wait_closed()
