"""The short ways: a call with nothing to it but arguments and a result, and perhaps a deadline.

One Python frame takes the request, and the handler is called from it.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

from shmrpc.basics.clock import host_nanoseconds
from shmrpc.server.call_runner import CallRunner, check_time, expired
from shmrpc.server.eager import Suspended
from shmrpc.server.results import unencodable
from shmrpc.server.served_client import RunRequest, ServedClient, Underway
from shmrpc.server.served_endpoint import ServedEndpoint
from shmrpc.service.arguments import Arguments
from shmrpc.service.call import Call, inheriting
from shmrpc.wire import frames
from shmrpc.wire.codec import Body, body_weight


def short_calls(endpoint: ServedEndpoint, runner: CallRunner) -> dict[int, RunRequest]:
    """By kind, what runs the requests to a plain endpoint."""
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
    """Decode, call, encode."""
    encode, kept = runner.codec.encode, runner.kept

    def run(body: Body, client: ServedClient, call_id: int) -> Body:
        kept[0] = result = call(*decode(body))
        try:
            return encode(result)
        except Exception as error:
            raise unencodable(name, result, error) from None

    return run


def _run_timed_function(
    runner: CallRunner, name: str, function: Callable[..., Any], decode: Callable[[Body], Sequence[Any]]
) -> RunRequest:
    """The same where a deadline stands before the arguments."""
    encode, kept, clock = runner.codec.encode, runner.kept, host_nanoseconds

    def run(body: Body, client: ServedClient, call_id: int) -> Body:
        arguments = decode(body)
        if clock() >= arguments[0]:  # check_time() without the price of calling it.
            raise expired(name)
        if not inheriting:
            inheriting.append(True)
        # The deadline is for current_call() to find in the frame.
        count = len(arguments)
        if count == 3:  # The commonest, without a tuple in between.
            _, first, second = arguments
            result = function(first, second)
        elif count == 2:
            result = function(arguments[1])
        else:
            result = function(*arguments[1:])
        kept[0] = result
        try:
            return encode(result)
        except Exception as error:
            raise unencodable(name, result, error) from None

    return run


def _run_coroutine(
    runner: CallRunner,
    name: str,
    call: Callable[..., Any],
    decode: Callable[[Body], Sequence[Any]],
    *,
    timed: bool = False,
) -> RunRequest:
    """Runs an ``async def``, which often ends without suspending. ``timed``: a deadline stands before the arguments."""
    encode, kept, start, running = runner.codec.encode, runner.kept, runner.start, runner.running
    limiter = runner.limiter

    def run(body: Body, client: ServedClient, call_id: int) -> Body | None:
        if limiter.is_full(client):
            limiter.wait(client, call_id, run, body)
            return None
        args, deadline = decode(body), None
        if timed:
            deadline, *args = args
            check_time(name, deadline)
        running.frame = underway = Call(client, name, call_id, deadline)
        result = start(call(*args), underway)
        if type(result) is Suspended:
            runner.suspend(Underway(client, underway, body_weight(body)), result.task)
            return None
        kept[0] = result
        try:
            return encode(result)
        except Exception as error:
            raise unencodable(name, result, error) from None

    return run
