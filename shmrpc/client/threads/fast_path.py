"""The fast path of a client in threads: calls with arguments, a result and perhaps a deadline."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from shmrpc import _core
from shmrpc.basics.clock import host_nanoseconds
from shmrpc.client.common.call_engine import CallEngine
from shmrpc.client.common.requests import encode_plain_call, make_result_decoder
from shmrpc.client.threads.reconnector import ThreadReconnector
from shmrpc.client.threads.session import ThreadSession, stopped_error
from shmrpc.service.call import Call, earliest_deadline
from shmrpc.wire.codec import BODIES


def bind_fast_path(
    client: CallEngine[ThreadReconnector],
    slow_call: Callable[..., Any],
    session: ThreadSession,
    name: str,
    number: int,
    kind: Any,
) -> Callable[..., Any]:
    """Return the function that calls an endpoint on the native path, and in Python where the core cannot.

    ``slow_call`` makes a call on the slow path. ``number`` and ``kind``: the endpoint's number and result type.
    """
    codec, options, reconnector = client._codec, client._options, client._reconnector
    exchange, next_id, stopped = session.calls.exchange, session.next_id, reconnector.stopped
    decode, read, clock = codec.decoder(kind), make_result_decoder(name, codec, kind), host_nanoseconds
    timeout_nanoseconds, inherits_deadline = options.timeout_nanoseconds, options.inherits_deadline

    def call(*args: Any, **kwargs: Any) -> Any:
        if stopped:
            raise stopped_error(session.service)
        deadline = None if timeout_nanoseconds is None else clock() + timeout_nanoseconds
        if inherits_deadline:
            deadline = earliest_deadline(deadline)
        is_elsewhere = reconnector.session is not session or (reconnector.reconnect and session.is_draining())
        if is_elsewhere or (deadline is not None and kwargs):
            return slow_call(name, decode, *args, **kwargs)
        call_id = next_id()
        pending: Any  # The request, then its outcome: one name, so that the request is not kept alive.
        request, pending = encode_plain_call(codec, number, name, deadline, args, kwargs)
        try:
            pending = exchange(request, call_id, pending)
        except BaseException as error:
            pending = error
        try:
            return read(pending) if type(pending) in BODIES else complete(args, kwargs, call_id, pending, deadline)
        finally:
            del pending  # The traceback of an error refers to this frame.

    def complete(
        args: Sequence[Any], kwargs: Mapping[str, Any], call_id: int, pending: Any, deadline: int | None
    ) -> Any:
        """Return the result of a call that ``exchange`` has sent or refused; ``pending``: its value or its exception.

        Repeats a call that was certainly not executed on the slow path.
        """
        try:
            if isinstance(pending, BaseException):
                raise pending
            call = None if deadline is None else Call(session, name, call_id, deadline)
            answer = session.complete(pending, call)
        except BaseException as error:
            pending = None  # Its traceback refers to this frame.
            session.calls.close(call_id)  # A signal handler may have raised at any point.
            error = session.convert_error(name, error)
            if not reconnector.may_retry(session, error):
                raise error from error.__cause__
            return slow_call(name, decode, *args, **kwargs)
        return read(answer)

    native = client._native_call(session, number, kind, read)
    function = client._describe_function(name, call)
    return _core.ThreadEndpoint(session.calls, native, function, complete, stopped, reconnector, session)
