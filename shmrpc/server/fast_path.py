"""The fast path: calls with arguments and a result only, and perhaps a deadline.

One Python frame handles the request and calls the handler.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

from shmrpc.server.call_runner import PENDING, CallRunner, check_deadline
from shmrpc.server.result_checks import encode_rejection
from shmrpc.server.served_client import RunRequest, ServedClient
from shmrpc.server.served_endpoint import ServedEndpoint
from shmrpc.service.arguments import Arguments
from shmrpc.wire import frames
from shmrpc.wire.codec import Body, body_weight


def fast_path_handlers(endpoint: ServedEndpoint, runner: CallRunner) -> dict[int, RunRequest]:
    """Return the handlers of requests to a plain endpoint, by opcode without the endpoint's number."""
    function = endpoint.function
    run = _run_coroutine if endpoint.is_coroutine else _run_function
    run_timed = functools.partial(_run_coroutine, timed=True) if endpoint.is_coroutine else _run_timed_function
    decoders = endpoint.decoders
    decode_keywords = decoders.keywords

    def spread(arguments: Arguments) -> Any:
        return function(*arguments[0], **arguments[1])

    return {
        frames.CALL: run(runner, endpoint.name, function, decoders.positional),
        frames.CALL_KEYWORDS: run(runner, endpoint.name, spread, lambda body: (decode_keywords(body),)),
        frames.CALL_DEADLINE: run_timed(runner, endpoint.name, function, decoders.with_deadline),
    }


def _run_function(
    runner: CallRunner, name: str, call: Callable[..., Any], decode: Callable[[Body], Sequence[Any]]
) -> RunRequest:
    """Return a handler that decodes the arguments, calls a plain function and encodes the result."""
    encode, last_result = runner.codec.encode, runner.last_result

    def run(body: Body, client: ServedClient, call_id: int) -> Body:
        last_result[0] = result = call(*decode(body))
        try:
            return encode(result)
        except Exception as error:
            raise encode_rejection(name, result, error) from None

    return run


def _run_timed_function(
    runner: CallRunner, name: str, function: Callable[..., Any], decode: Callable[[Body], Sequence[Any]]
) -> RunRequest:
    """Return a handler as :func:`_run_function` does, for requests with a deadline before the arguments."""
    encode, last_result = runner.codec.encode, runner.last_result

    def run(body: Body, client: ServedClient, call_id: int) -> Body:
        deadline, *arguments = decode(body)
        check_deadline(name, deadline)
        # current_call() finds the deadline in the frame.
        last_result[0] = result = function(*arguments)
        try:
            return encode(result)
        except Exception as error:
            raise encode_rejection(name, result, error) from None

    return run


def _run_coroutine(
    runner: CallRunner,
    name: str,
    call: Callable[..., Any],
    decode: Callable[[Body], Sequence[Any]],
    *,
    timed: bool = False,
) -> RunRequest:
    """Return a handler that calls an ``async def`` and encodes the result, if it ends without suspending.

    The handler queues requests while the limits are reached. ``timed``: True for requests with a deadline before the
    arguments.
    """
    encode, last_result, limiter = runner.codec.encode, runner.last_result, runner.limiter

    def run(body: Body, client: ServedClient, call_id: int) -> Body | None:
        if limiter.is_full(client):
            limiter.wait(client, call_id, run, body)
            return None
        args, deadline = decode(body), None
        if timed:
            deadline, *args = args
            check_deadline(name, deadline)
        result = runner.start_coroutine(call(*args), client, name, call_id, deadline, body_weight(body))
        if result is PENDING:
            return None
        last_result[0] = result
        try:
            return encode(result)
        except Exception as error:
            raise encode_rejection(name, result, error) from None

    return run
