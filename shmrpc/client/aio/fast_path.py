"""The fast path of a client in an event loop: calls with arguments, a result and perhaps a deadline."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Mapping, Sequence
from typing import Any, Final

from shmrpc import _core
from shmrpc.basics.clock import host_nanoseconds
from shmrpc.client.aio.reconnector import LoopReconnector
from shmrpc.client.aio.session import LoopSession
from shmrpc.client.common.call_engine import CallEngine
from shmrpc.client.common.requests import encode_plain_call, find_endpoint_name, make_result_decoder
from shmrpc.service.call import Call, deadlines_seen, earliest_deadline
from shmrpc.transport.errors import UNSENT
from shmrpc.wire import frames
from shmrpc.wire.codec import BODIES
from shmrpc.wire.frames import opcode

#: Header of a one-way call.
_ONE_WAY: Final = frames.header_fields(None, None, one_way=True)
#: Marker in the place of a reply: the call was certainly not executed, and is repeated.
_RETRY: Final[Any] = object()


def bind_fast_path(
    client: CallEngine[LoopReconnector],
    slow_call: Callable[..., Coroutine[Any, Any, Any]],
    session: LoopSession,
    name: str,
    number: int,
    kind: Any,
) -> Callable[..., Any]:
    """Return the function that calls an endpoint on the native path, and in Python where the core cannot.

    ``slow_call`` makes a call on the slow path. ``number`` and ``kind``: the endpoint's number and result type.
    """
    codec, options, may_retry = client._codec, client._options, client._reconnector.may_retry
    exchange, next_id, wait = session.exchange, session.next_id, session.wait_reply
    decode, read, clock = codec.decoder(kind), make_result_decoder(name, codec, kind), host_nanoseconds
    timeout_nanoseconds, inherits_deadline = options.timeout_nanoseconds, options.inherits_deadline

    async def call(*args: Any, **kwargs: Any) -> Any:
        deadline = None if timeout_nanoseconds is None else clock() + timeout_nanoseconds
        if inherits_deadline:
            deadline = earliest_deadline(deadline)
        if deadline is not None and kwargs:
            return await slow_call(name, decode, *args, **kwargs)
        call_id = next_id()
        reply: Any  # The request, then its outcome: one name, so that the request is not kept alive.
        request, reply = encode_plain_call(codec, number, name, deadline, args, kwargs)
        try:
            reply = exchange(request, call_id, reply)
        except BaseException as error:
            reply = error
        try:
            return read(reply) if type(reply) in BODIES else await complete(args, kwargs, call_id, reply, deadline)
        finally:
            del reply  # The traceback of an error refers to this frame.

    async def complete(
        args: Sequence[Any], kwargs: Mapping[str, Any], call_id: int, reply: Any, deadline: int | None
    ) -> Any:
        """Return the result of a call that ``exchange`` has sent or refused; ``reply``: its value or its exception.

        Repeats a call that was certainly not executed on the slow path.
        """
        try:
            if isinstance(reply, BaseException):
                raise reply
            call = None if deadline is None else Call(session, name, call_id, deadline)
            answer = await wait(call_id, reply, call)
        except BaseException as error:
            reply = None  # Its traceback refers to this frame.
            error = session.convert_error(name, error)
            if not may_retry(session, error):
                raise error from error.__cause__
            answer = _RETRY
        if answer is _RETRY:  # Outside of the except clause, so that its error is not the context of later ones.
            return await slow_call(name, decode, *args, **kwargs)
        return read(answer)

    client._describe_function(name, call)
    channel = session.shared_memory.channel
    if channel is None:
        return call
    native = client._native_call(session, number, kind, read)
    home = session.loop, session.check_loop
    return _core.LoopEndpoint(channel, native, call, complete, session.note_interruption, session.cancel, home)


def notify_fast(
    client: CallEngine[LoopReconnector], endpoint: Any, args: Sequence[Any], kwargs: Mapping[str, Any]
) -> tuple[LoopSession, Call | None, bool] | None:
    """Send a one-way call on the fast path.

    Returns the session, the call if it waits for room (else None), and True if the call is large. Returns None if
    nothing was sent, because the call needs the slow path, which also raises the errors. Raises the error of a
    connection that ended while the call was sent.
    """
    session, options = client._reconnector.current_session(), client._options
    has_deadline = options.timeout_nanoseconds is not None
    if deadlines_seen and options.inherits_deadline:
        has_deadline |= earliest_deadline(None) is not None
    if session is None or options.needs_slow_path or has_deadline:
        return None
    try:
        name = find_endpoint_name(endpoint, session.numbers)
        number = session.numbers[name]
        if number in session.shapes:
            return None
        body = client._codec.encode_all((_ONE_WAY, [*args], kwargs))
    except Exception:
        return None
    call_id = session.next_id()
    try:
        sent = session.begin(opcode(frames.CALL_WITH, number), call_id, body)
    except UNSENT:
        return None
    except BaseException as error:
        error = session.convert_error(name, error)
        raise error from error.__cause__
    return session, None if sent else Call(session, name, call_id, None), type(body) is not bytes
