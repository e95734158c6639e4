"""The calls that the core runs by itself: of functions of plain types, around which nothing stands."""

from __future__ import annotations

from collections.abc import Sequence

from shmrpc import _core
from shmrpc.basics.clock import AHEAD
from shmrpc.server.call_runner import LATER, CallRunner
from shmrpc.server.served_endpoint import ServedEndpoint
from shmrpc.service.call import inheriting
from shmrpc.wire import frames


def core_handlers(endpoints: Sequence[ServedEndpoint], runner: CallRunner) -> _core.HandlerTable:
    """What runs the calls of those endpoints that the core can run, by their numbers."""
    coroutines = _core.CoroutineRunner(is_full=runner.limiter.is_full, start=runner.start_plain, later=LATER)
    return _core.HandlerTable(
        [_handler(endpoint, coroutines) if endpoint.is_plain else None for endpoint in endpoints],
        encoder=runner.codec.encoder,
        contexts=runner.isolation,
        current_call=runner.running,
        inheriting=inheriting,
        clock_ahead=AHEAD,
        encode=runner.encode_result,
        fail=runner.fail_in_core,
        note=runner.note_one_way_in_core,
        positional=frames.CALL,
        keywords=frames.CALL_KEYWORDS,
        timed=frames.CALL_DEADLINE,
        headed=frames.CALL_WITH,
    )


def _handler(endpoint: ServedEndpoint, coroutines: _core.CoroutineRunner) -> _core.Handler:
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
