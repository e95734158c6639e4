"""The calls that the core runs by itself: of functions of plain types, around which nothing stands."""

from __future__ import annotations

from collections.abc import Coroutine, Sequence
from typing import Any, Final

from shmrpc import _core
from shmrpc.basics.clock import AHEAD
from shmrpc.server.call_runner import CallRunner
from shmrpc.server.eager import Suspended
from shmrpc.server.served_client import ServedClient, Underway
from shmrpc.server.served_endpoint import ServedEndpoint
from shmrpc.service.call import Call, inheriting
from shmrpc.wire import frames

#: In the place of a result that comes later.
_LATER: Final = object()


def core_handlers(endpoints: Sequence[ServedEndpoint], runner: CallRunner) -> _core.Handlers:
    """What runs the calls of those endpoints that the core can run, by their numbers."""
    coroutines = _coroutines(runner)
    return _core.Handlers(
        [_handler(endpoint, coroutines) if endpoint.is_plain else None for endpoint in endpoints],
        encoder=runner.codec.encoder,
        isolation=runner.isolation,
        running=runner.running,
        inheriting=inheriting,
        clock_ahead=AHEAD,
        encode=runner.encode_result,
        fail=runner.fail_in_core,
        positional=frames.CALL,
        keywords=frames.CALL_KEYWORDS,
        timed=frames.CALL_DEADLINE,
    )


def _handler(endpoint: ServedEndpoint, coroutines: _core.Coroutines) -> _core.Handler:
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


def _coroutines(runner: CallRunner) -> _core.Coroutines:
    run, running = runner.start, runner.running

    def start(
        coroutine: Coroutine[Any, Any, Any],
        client: ServedClient,
        name: str,
        call_id: int,
        deadline: int | None,
        size: int,
    ) -> Any:
        running.frame = call = Call(client, name, call_id, deadline)
        result = run(coroutine, call)
        if type(result) is Suspended:
            runner.suspend(Underway(client, call, size), result.task)
            return _LATER
        return result

    return _core.Coroutines(is_full=runner.limiter.is_full, start=start, later=_LATER)
