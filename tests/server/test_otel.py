"""Traces and metrics of calls: the parents of spans, their names and attributes, and the report of failures."""

from __future__ import annotations

import asyncio
import contextlib
import os
import subprocess
import sys
import textwrap
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest
from opentelemetry import trace
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import HistogramDataPoint, InMemoryMetricReader
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode

import shmrpc
from shmrpc import otel
from tests.helpers.server_process import eventually_in_loop, forever_expires


class Telemetry:
    """An SDK of its own, whose spans and measurements can be read."""

    def __init__(self) -> None:
        self._spans = InMemorySpanExporter()
        self.tracers = TracerProvider()
        self.tracers.add_span_processor(SimpleSpanProcessor(self._spans))
        self._reader = InMemoryMetricReader()
        self.meters = MeterProvider([self._reader])
        self.tracer = self.tracers.get_tracer("test")

    def spans(self, kind: SpanKind) -> list[ReadableSpan]:
        return [span for span in self._spans.get_finished_spans() if span.kind is kind]

    def span(self, kind: SpanKind) -> ReadableSpan:
        """Return the only span of this kind."""
        (span,) = self.spans(kind)
        return span

    def durations(self, metric: str) -> list[HistogramDataPoint]:
        data = self._reader.get_metrics_data()
        assert data is not None
        (resource,) = data.resource_metrics
        (scope,) = resource.scope_metrics
        (found,) = (each for each in scope.metrics if each.name == metric)
        assert found.unit == "s"
        return [point for point in found.data.data_points if isinstance(point, HistogramDataPoint)]

    def forget(self) -> None:
        """Forget the spans so far."""
        self._spans.clear()

    @contextlib.asynccontextmanager
    async def connected(self, service: shmrpc.Service) -> AsyncIterator[shmrpc.Client]:
        """Yield a client of a server in the same loop; both are traced."""
        server = otel.server_interceptor(self.tracers, self.meters)
        client = otel.client_interceptor(self.tracers, self.meters)
        async with shmrpc.serve(service, interceptors=[server]):
            async with shmrpc.connect("tested", interceptors=[client]) as near:
                yield near


@pytest.fixture
def telemetry() -> Iterator[Telemetry]:
    sdk = Telemetry()
    yield sdk
    sdk.tracers.shutdown()
    sdk.meters.shutdown()


class Unprintable(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no text")


service = shmrpc.Service("tested")


@service.endpoint
def add(a: int, b: int) -> int:
    return a + b


@service.endpoint
def current_span() -> int:
    return trace.get_current_span().get_span_context().span_id


@service.endpoint(run_in="thread")
def current_span_of_thread() -> int:
    return trace.get_current_span().get_span_context().span_id


@service.endpoint
async def nested() -> int:
    await asyncio.sleep(0)
    return int(await _nested[0].add(1, 2))


#: The client that ``nested`` calls by.
_nested: list[shmrpc.Client] = []


@service.endpoint
async def ticks(count: int) -> AsyncIterator[int]:
    for number in range(count):
        await asyncio.sleep(0.001)
        yield number


@service.endpoint
async def whether_the_span_is_open(times: int) -> AsyncIterator[bool]:
    for _ in range(times):
        await asyncio.sleep(0.001)
        yield trace.get_current_span().is_recording()


@service.endpoint
def fail(kind: str) -> None:
    raise Unprintable if kind == "unprintable" else ValueError("no such thing")


@service.endpoint
async def forever() -> None:
    _waiting.append(True)
    _begun.append(True)
    try:
        await asyncio.Event().wait()
    finally:
        _waiting.clear()


#: Not empty while a call of ``forever`` is under way; and one for each that has ever begun.
_waiting: list[bool] = []
_begun: list[bool] = []


@service.endpoint
async def unencodable_items() -> AsyncIterator[Any]:
    yield object()


def is_child(span: ReadableSpan, parent: ReadableSpan) -> bool:
    assert span.context is not None
    assert parent.context is not None
    return (
        span.parent is not None
        and span.parent.span_id == parent.context.span_id
        and span.context.trace_id == parent.context.trace_id
    )


async def test_spans_and_measurements_are_as_the_conventions_have_them(telemetry: Telemetry) -> None:
    async with telemetry.connected(service) as near:
        assert await near.add(1, 2) == 3
    common = {"rpc.system.name": "shmrpc", "rpc.method": "tested/add"}
    for kind, metric in (
        (SpanKind.CLIENT, "rpc.client.call.duration"),
        (SpanKind.SERVER, "rpc.server.call.duration"),
    ):
        span = telemetry.span(kind)
        assert span.name == "tested/add"
        attributes = dict(span.attributes or {})
        assert attributes.pop("shmrpc.peer.pid") > 0  # type: ignore[operator]
        assert attributes.pop("shmrpc.peer.uid") >= 0  # type: ignore[operator]
        assert attributes == common | {"server.address": "tested"}
        assert span.status.status_code is StatusCode.UNSET
        assert not span.events
        assert span.instrumentation_scope is not None
        assert span.instrumentation_scope.name == "shmrpc"
        assert span.instrumentation_scope.schema_url == "https://opentelemetry.io/schemas/1.44.0"
        (point,) = telemetry.durations(metric)
        assert point.attributes == common | ({"server.address": "tested"} if kind is SpanKind.CLIENT else {})
        assert span.end_time is not None
        assert span.start_time is not None
        assert point.sum == pytest.approx((span.end_time - span.start_time) / 1e9)
        assert tuple(point.explicit_bounds) == (
            *(0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.25, 0.5, 0.75),
            *(1, 2.5, 5, 7.5, 10),
        )


@pytest.mark.parametrize("endpoint", ["current_span", "current_span_of_thread"])
async def test_the_servers_span_is_a_child_of_the_clients_and_current_in_the_handler(
    telemetry: Telemetry, endpoint: str
) -> None:
    async with telemetry.connected(service) as near:
        with telemetry.tracer.start_as_current_span("outer"):
            seen = await near.call(endpoint)
    client, server = telemetry.span(SpanKind.CLIENT), telemetry.span(SpanKind.SERVER)
    assert is_child(client, telemetry.span(SpanKind.INTERNAL))
    assert is_child(server, client)
    assert server.context is not None
    assert server.context.span_id == seen


async def test_the_span_of_a_nested_call_is_a_child_of_the_handlers(telemetry: Telemetry) -> None:
    async with telemetry.connected(service) as near:
        _nested[:] = [near]
        assert await asyncio.gather(*(near.nested() for _ in range(3))) == [3, 3, 3]
    servers = telemetry.spans(SpanKind.SERVER)
    inner_clients = [span for span in telemetry.spans(SpanKind.CLIENT) if span.parent is not None]
    assert len(inner_clients) == 3
    for inner in inner_clients:
        assert sum(is_child(inner, server) for server in servers) == 1
        assert sum(is_child(server, inner) for server in servers) == 1
    assert len({span.context.trace_id for span in servers if span.context is not None}) == 3


async def test_a_client_without_a_loop_is_traced_alike(telemetry: Telemetry) -> None:
    def work() -> None:
        interceptor = otel.client_interceptor(telemetry.tracers, telemetry.meters)
        with shmrpc.sync.connect("tested", interceptors=[interceptor]) as client:
            assert client.add(1, 2) == 3
            assert list(client.ticks(2)) == [0, 1]

    async with shmrpc.serve(service, interceptors=[otel.server_interceptor(telemetry.tracers)]):
        await asyncio.to_thread(work)
    clients, servers = telemetry.spans(SpanKind.CLIENT), telemetry.spans(SpanKind.SERVER)
    assert [span.name for span in clients] == ["tested/add", "tested/ticks"]
    assert all(is_child(server, client) for server, client in zip(servers, clients, strict=True))


async def test_a_call_of_a_client_that_traces_nothing_is_no_part_of_what_started_the_server(
    telemetry: Telemetry,
) -> None:
    with telemetry.tracer.start_as_current_span("startup"):
        async with shmrpc.serve(service, interceptors=[otel.server_interceptor(telemetry.tracers)]):
            async with shmrpc.connect("tested") as near:
                await near.add(1, 2)
    assert telemetry.span(SpanKind.SERVER).parent is None


async def test_a_trace_context_that_cannot_be_read_does_not_fail_the_call(telemetry: Telemetry) -> None:
    async with shmrpc.serve(service, interceptors=[otel.server_interceptor(telemetry.tracers)]):
        async with shmrpc.connect("tested") as near:
            for odd in (b"00-bytes", "nonsense", b"\xff"):
                assert await near.with_options(metadata={"traceparent": odd, "baggage": odd}).add(1, 2) == 3
    assert [span.parent for span in telemetry.spans(SpanKind.SERVER)] == [None] * 3


async def test_a_stream_has_one_span_for_its_whole_life(telemetry: Telemetry) -> None:
    async with telemetry.connected(service) as near:
        with telemetry.tracer.start_as_current_span("reader") as reader:
            async for of_handler_is_open in near.whether_the_span_is_open(5):
                assert of_handler_is_open
                # Its span is not the current one of who reads it.
                assert trace.get_current_span() is reader
                assert not telemetry.spans(SpanKind.CLIENT)
    assert is_child(telemetry.span(SpanKind.SERVER), telemetry.span(SpanKind.CLIENT))


@pytest.mark.parametrize("closes", [True, False])
async def test_a_stream_that_is_left_is_no_error(
    telemetry: Telemetry, closes: bool, caplog: pytest.LogCaptureFixture
) -> None:
    async with telemetry.connected(service) as near:
        if closes:
            async with contextlib.aclosing(near.ticks(1000)) as items:
                async for _ in items:
                    break
        else:
            async for _ in near.ticks(1000):
                break
        assert await eventually_in_loop(lambda: len(telemetry.spans(SpanKind.SERVER)) == 1)
    for span in (telemetry.span(SpanKind.CLIENT), telemetry.span(SpanKind.SERVER)):
        assert span.attributes is not None
        assert span.attributes["error.type"] == "cancelled"
        assert span.status.status_code is StatusCode.UNSET
        assert not span.events
    # OpenTelemetry would log that a context is detached where it was not attached. A busy machine has logs of shmrpc.
    assert not [record for record in caplog.records if record.name.startswith("opentelemetry")]


async def test_an_exception_is_named_alike_on_both_sides_and_recorded(telemetry: Telemetry) -> None:
    async with telemetry.connected(service) as near:
        with pytest.raises(ValueError, match="no such thing"):
            await near.fail("value")
    for kind, exception in ((SpanKind.CLIENT, "shmrpc.errors.RemoteValueError"), (SpanKind.SERVER, "ValueError")):
        span = telemetry.span(kind)
        assert span.attributes is not None
        assert span.attributes["error.type"] == "ValueError"
        assert span.status.status_code is StatusCode.ERROR
        assert span.status.description == "no such thing"
        (event,) = span.events
        assert event.attributes is not None
        assert event.attributes["exception.type"] == exception
    for metric in ("rpc.client.call.duration", "rpc.server.call.duration"):
        (point,) = telemetry.durations(metric)
        assert point.attributes is not None
        assert point.attributes["error.type"] == "ValueError"


async def test_an_exception_without_a_text_is_an_error_and_no_second_one(telemetry: Telemetry) -> None:
    async with telemetry.connected(service) as near:
        with pytest.raises(shmrpc.RemoteError, match="Unprintable"):
            await near.fail("unprintable")
    server = telemetry.span(SpanKind.SERVER)
    assert server.status.status_code is StatusCode.ERROR
    assert server.attributes is not None
    assert server.attributes["error.type"] == f"{__name__}.Unprintable"


async def test_an_item_that_cannot_be_sent_is_named_as_the_caller_sees_it(telemetry: Telemetry) -> None:
    async with telemetry.connected(service) as near:
        with pytest.raises(shmrpc.EncodeError):
            [item async for item in near.unencodable_items()]
    for kind in (SpanKind.CLIENT, SpanKind.SERVER):
        attributes = telemetry.span(kind).attributes
        assert attributes is not None
        assert attributes["error.type"] == "shmrpc.errors.EncodeError"


async def test_both_sides_distinguish_a_deadline_from_a_cancellation(telemetry: Telemetry) -> None:
    async with telemetry.connected(service) as near:

        def forget() -> None:
            telemetry.forget()
            _begun.clear()

        await forever_expires(near, lambda: bool(_begun), forget)
        assert await eventually_in_loop(lambda: len(telemetry.spans(SpanKind.SERVER)) == 1)
        task = asyncio.create_task(near.with_options(timeout=60).forever())
        assert await eventually_in_loop(lambda: bool(_waiting))
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert await eventually_in_loop(lambda: len(telemetry.spans(SpanKind.SERVER)) == 2)
    for kind, of_cancelled in ((SpanKind.CLIENT, StatusCode.ERROR), (SpanKind.SERVER, StatusCode.UNSET)):
        late, cancelled = telemetry.spans(kind)
        assert late.attributes is not None
        assert late.attributes["error.type"] == "deadline_exceeded"
        assert late.status.status_code is StatusCode.ERROR
        assert cancelled.attributes is not None
        assert cancelled.attributes["error.type"] == "cancelled"
        assert cancelled.status.status_code is of_cancelled


async def test_without_an_sdk_calls_go_on_as_ever() -> None:
    async with shmrpc.serve(service, interceptors=[otel.server_interceptor()]):
        async with shmrpc.connect("tested", interceptors=[otel.client_interceptor()]) as near:
            assert await near.add(1, 2) == 3
            assert [item async for item in near.ticks(2)] == [0, 1]


@pytest.mark.parametrize(
    ("written", "words"),
    [
        ("", "shmrpc.otel needs the OpenTelemetry API: pip install 'shmrpc[otel]'"),
        ("import no_such_thing", "opentelemetry cannot be imported here: ModuleNotFoundError: No module named "),
    ],
)
def test_an_opentelemetry_that_is_broken_is_not_said_to_be_missing(tmp_path: Path, written: str, words: str) -> None:
    package = tmp_path / "opentelemetry"
    package.mkdir()
    (package / "__init__.py").touch()  # A package of another distribution.
    if written:
        (package / "context.py").write_text(written)
    command = [sys.executable, "-c", "import shmrpc.otel"]
    environment = {**os.environ, "PYTHONPATH": f"{tmp_path}:{os.getcwd()}"}
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, env=environment, check=False)
    assert done.stderr.splitlines()[-1].startswith(f"ImportError: {words}")


def test_without_tracing_opentelemetry_is_not_needed() -> None:
    source = """
        import sys

        sys.modules["opentelemetry"] = None  # As if it were not installed.
        import shmrpc
        import shmrpc.access_log

        try:
            import shmrpc.otel
        except ImportError as error:
            print(error)
    """
    command = [sys.executable, "-c", textwrap.dedent(source)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    assert done.stdout == "shmrpc.otel needs the OpenTelemetry API: pip install 'shmrpc[otel]'\n"
