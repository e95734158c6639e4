"""The native path: calls that the core runs without Python code of ours around the function."""

from __future__ import annotations

from collections.abc import Sequence

from shmrpc import _core
from shmrpc.basics.clock import AHEAD
from shmrpc.server.call_runner import PENDING, CallRunner
from shmrpc.server.served_endpoint import ServedEndpoint
from shmrpc.service.call import deadlines_seen
from shmrpc.wire import frames


def native_handlers(endpoints: Sequence[ServedEndpoint], runner: CallRunner) -> _core.HandlerTable:
    """Return the table of the endpoints that the core can call, by number, with None for the others."""
    coroutines = _core.CoroutineRunner(is_full=runner.limiter.is_full, start=runner.start_coroutine, later=PENDING)
    return _core.HandlerTable(
        [_handler(endpoint, coroutines) if endpoint.is_plain else None for endpoint in endpoints],
        encoder=runner.codec.encoder,
        contexts=runner.contexts,
        current_call=runner.current_call,
        inheriting=deadlines_seen,
        clock_ahead=AHEAD,
        encode=runner.encode_result,
        fail=runner.fail_in_core,
        note=runner.log_one_way_in_core,
        positional=frames.CALL,
        keywords=frames.CALL_KEYWORDS,
        timed=frames.CALL_DEADLINE,
        headed=frames.CALL_WITH,
    )


def _handler(endpoint: ServedEndpoint, coroutines: _core.CoroutineRunner) -> _core.Handler:
    """Return the description by which the core calls a plain endpoint."""
    decoders = endpoint.decoders
    parameters, places = decoders.expected_by_name()
    return _core.Handler(
        endpoint.name,
        endpoint.function,
        by_count=decoders.expected_by_count(),
        parameters=parameters,
        places=places,
        coroutines=coroutines if endpoint.is_coroutine else None,
    )
