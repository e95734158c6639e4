"""Interceptors that trace and measure calls with OpenTelemetry; they need ``shmrpc[otel]``.

::

    from shmrpc import otel

    shmrpc.serve(calculator, interceptors=[otel.server_interceptor()])
    shmrpc.connect("calculator", interceptors=[otel.client_interceptor()])

Spans and metrics follow the semantic conventions for RPC, version 1.44.0 (release candidate):

- A span of kind CLIENT at the caller and one of kind SERVER at the server, as its child; both are named
  ``service/endpoint``. A stream has one span for its whole life. The context travels in the call's metadata, by
  the global propagator.
- ``rpc.system.name`` is ``shmrpc``, ``rpc.method`` is ``service/endpoint``, ``server.address`` the service's name.
  ``shmrpc.peer.pid`` and ``shmrpc.peer.uid`` are the process and the user at the other end; a process that is
  not visible from here, such as one outside of this container, has the id 0.
- ``rpc.client.call.duration`` and ``rpc.server.call.duration`` are in seconds and have the recommended buckets. The
  lowest bucket ends at 5 ms, far above what a call here takes: configure a View in your SDK for finer ones.
- ``error.type`` is ``cancelled``, ``deadline_exceeded``, or the name of the exception's class, which for an exception
  raised by an endpoint is the same on both sides. There is no ``rpc.response.status_code``: shmrpc has none.
- The span of a call that failed has the status ERROR and the exception as an event. Where a cancellation is no
  failure, the status stays unset: at the server, and for a reader that leaves a stream.

In an endpoint that runs in another process (``run_in="process"``) there is no current span.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from typing import Final

from shmrpc.basics.import_hints import describe_import_failure
from shmrpc.basics.version import VERSION
from shmrpc.service.call import Call
from shmrpc.service.interceptors import SyncInterceptor
from shmrpc.service.outcome import CANCELLED, OK, outcome_of

try:
    # Not `from opentelemetry`: that folder may exist because of another distribution.
    import opentelemetry.context as contexts
    from opentelemetry import metrics, propagate, trace
except ImportError as _error:
    _absent = "shmrpc.otel needs the OpenTelemetry API: pip install 'shmrpc[otel]'"
    raise ImportError(describe_import_failure("opentelemetry.context", _error, _absent)) from _error

__all__ = ["client_interceptor", "server_interceptor"]

_SCHEMA: Final = "https://opentelemetry.io/schemas/1.44.0"
_BUCKETS: Final = (0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0)


def client_interceptor(
    tracer_provider: trace.TracerProvider | None = None, meter_provider: metrics.MeterProvider | None = None
) -> SyncInterceptor:
    """Return an interceptor for clients of event loops and of threads. None for a provider means the global one."""
    calls = _Calls(trace.SpanKind.CLIENT, "rpc.client.call.duration", "outgoing", tracer_provider, meter_provider)

    @contextlib.contextmanager
    def traced(call: Call) -> Iterator[None]:
        # The span does not become the current one: a stream's interceptors share the context of its reader,
        # whose own spans are not part of the call.
        with calls.observe(call, contexts.get_current()) as context:
            propagate.inject(call.metadata, context)
            yield

    return traced


def server_interceptor(
    tracer_provider: trace.TracerProvider | None = None, meter_provider: metrics.MeterProvider | None = None
) -> SyncInterceptor:
    """Return an interceptor for :func:`shmrpc.serve`. In a handler, the current span is the span of its call.

    None for a provider means the global one.
    """
    calls = _Calls(trace.SpanKind.SERVER, "rpc.server.call.duration", "incoming", tracer_provider, meter_provider)

    @contextlib.contextmanager
    def traced(call: Call) -> Iterator[None]:
        texts = {key: value for key, value in call.metadata.items() if isinstance(value, str)}
        # A call without a caller's span begins a trace: the span in which the server started is not its parent.
        nowhere = trace.set_span_in_context(trace.INVALID_SPAN)
        with calls.observe(call, propagate.extract(texts, nowhere)) as context:
            token = contexts.attach(context)
            try:
                yield
            finally:
                contexts.detach(token)

    return traced


class _Calls:
    """Tracing and measurement of the calls of one side."""

    def __init__(
        self,
        kind: trace.SpanKind,
        metric: str,
        direction: str,
        tracer_provider: trace.TracerProvider | None,
        meter_provider: metrics.MeterProvider | None,
    ) -> None:
        self._kind = kind
        self._tracer = trace.get_tracer("shmrpc", VERSION, tracer_provider, _SCHEMA)
        self._durations = metrics.get_meter("shmrpc", VERSION, meter_provider, _SCHEMA).create_histogram(
            metric,
            "s",
            f"Measures the duration of an {direction} Remote Procedure Call (RPC).",
            explicit_bucket_boundaries_advisory=_BUCKETS,
        )

    @contextlib.contextmanager
    def observe(self, call: Call, parent: contexts.Context) -> Iterator[contexts.Context]:
        """Trace and measure the call that runs inside. Yields the OpenTelemetry context with the call's span.

        Does not attach that context, and passes on exceptions of the call.
        """
        method = f"{call.service}/{call.endpoint}"
        attributes = {"rpc.system.name": "shmrpc", "rpc.method": method}
        address = {"server.address": call.service}
        began, clock = time.time_ns(), time.perf_counter_ns()
        span = self._tracer.start_span(method, parent, self._kind, {**attributes, **address}, start_time=began)
        context = trace.set_span_in_context(span, parent)
        if self._kind is trace.SpanKind.CLIENT:  # The conventions make this attribute opt-in at the server.
            attributes |= address
        error: BaseException | None = None
        try:
            yield context
        except BaseException as raised:
            error = raised
            raise
        finally:
            # Span and measurement agree even if the wall clock is set meanwhile.
            elapsed = time.perf_counter_ns() - clock
            outcome = outcome_of(call, error)
            if outcome != OK:
                attributes["error.type"] = outcome
            if span.is_recording():
                self._describe_end(span, call, outcome, error)
            span.end(began + elapsed)
            self._durations.record(elapsed / 1e9, attributes, context)

    def _describe_end(self, span: trace.Span, call: Call, outcome: str, error: BaseException | None) -> None:
        """Add the peer, the outcome and the error of a call that has ended to its span."""
        span.set_attribute("shmrpc.peer.pid", call.pid)  # Not earlier: the call may go to another server.
        span.set_attribute("shmrpc.peer.uid", call.uid)
        if error is None:
            return
        span.set_attribute("error.type", outcome)
        if outcome != CANCELLED:
            span.set_status(trace.StatusCode.ERROR)
            with contextlib.suppress(Exception):  # Some exceptions cannot be turned into text.
                span.set_status(trace.StatusCode.ERROR, str(error))
                span.record_exception(error)
        elif self._kind is trace.SpanKind.CLIENT and not isinstance(error, GeneratorExit):
            span.set_status(trace.StatusCode.ERROR)
