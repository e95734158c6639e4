"""Every form of handler raises what ends programs, loops and generators: that call fails, and no other."""

from __future__ import annotations

import asyncio
import builtins
import contextlib
import logging
import os
import signal
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from typing import Any, NoReturn

import pytest

import shmrpc
from shmrpc.server import failure_log
from tests.helpers.server_process import PATIENCE, Script, ServerProcess, eventually_in_loop

service = shmrpc.Service("tested.raising")


class Stranger(BaseException):
    """Not an Exception, and none that Python knows."""


class OfTwo(Exception):
    """An exception that is pickled with one argument and made of two."""

    def __init__(self, first: str, second: str) -> None:
        super().__init__(f"{first} {second}")


#: Frames at which Python gives up, while that is asked for: with all 1000 a traceback takes a tenth of a second.
SHALLOW = 250
DEEP = sys.getrecursionlimit()


def deeper() -> None:
    deeper()


def too_deep() -> None:
    """Raise RecursionError, at a lower limit than Python's own."""
    sys.setrecursionlimit(SHALLOW)
    try:
        deeper()
    finally:
        sys.setrecursionlimit(DEEP)


def throw(kind: str) -> NoReturn:
    match kind:
        case "StopIteration":
            next(iter(()))
        case "SystemExit":
            sys.exit(3)
        case "RecursionError":
            too_deep()
        case "CancelledError":
            raise asyncio.CancelledError
        case "Stranger":
            raise Stranger("strange")
        case "OfTwo":
            raise OfTwo("one", "two")
        case _:
            raise getattr(builtins, kind)
    raise AssertionError(f"{kind} was not raised")


@service.endpoint
def add(a: int, b: int) -> int:
    return a + b


@service.endpoint
async def alarm() -> None:
    """Send the caller a signal, and never reply."""
    os.kill(shmrpc.current_call().pid, signal.SIGUSR1)
    await asyncio.Event().wait()


@service.endpoint
async def alarm_for(items: AsyncIterator[int]) -> None:
    """Once the caller's source has ended: until then, what is raised there is the source's failure."""
    async for _ in items:
        pass
    await alarm()


@service.endpoint
def server() -> int:
    return os.getpid()


@service.endpoint
def plain(kind: str) -> int:
    throw(kind)


@service.endpoint
async def at_once(kind: str) -> int:
    throw(kind)


@service.endpoint
async def later(kind: str) -> int:
    await asyncio.sleep(0)
    throw(kind)


@service.endpoint
async def when_cancelled(kind: str) -> int:
    try:
        return await asyncio.sleep(60, 1)
    except asyncio.CancelledError:
        throw(kind)


@service.endpoint
def generated(kind: str, where: int = 0) -> Iterator[int]:
    for number in range(3):
        if number == where:
            throw(kind)
        yield number


@service.endpoint
async def async_generated(kind: str, where: int = 0) -> AsyncIterator[int]:
    for number in range(3):
        if number == where:
            throw(kind)
        yield number


@service.endpoint(run_in="thread")
def generated_in_thread(kind: str, where: int = 0) -> Iterator[int]:
    for number in range(3):
        if number == where:
            throw(kind)
        yield number


closed: list[str] = []


@service.endpoint
def closing(kind: str) -> Iterator[int]:
    try:
        while True:
            yield 1
    finally:
        closed.append(kind)
        throw(kind)


@service.endpoint
async def async_closing(kind: str) -> AsyncIterator[int]:
    try:
        while True:
            yield 1
    finally:
        closed.append(kind)
        throw(kind)


@service.endpoint(run_in="thread")
def closing_in_thread(kind: str) -> Iterator[int]:
    try:
        while True:
            yield 1
    finally:
        closed.append(kind)
        throw(kind)


@service.endpoint
async def takes_stream(kind: str, items: AsyncIterator[int]) -> int:
    async for _ in items:
        throw(kind)
    return 0


@service.endpoint(run_in="thread")
def in_thread(kind: str) -> int:
    throw(kind)


@service.endpoint(run_in="process")
def in_process(kind: str) -> int:
    throw(kind)


@service.endpoint(run_in="process")
def process() -> int:
    return os.getpid()


@service.endpoint(run_in="process")
def not_unpickled() -> list[OfTwo]:
    return [OfTwo("one", "two")]


class Methods:
    @shmrpc.endpoint
    def method(self, kind: str) -> int:
        throw(kind)

    @shmrpc.endpoint
    async def method_later(self, kind: str) -> int:
        await asyncio.sleep(0)
        throw(kind)


service.include(Methods(), prefix="an_object")


async def items_of(stream: Any) -> list[Any]:
    return [item async for item in stream]


async def of_batch(client: shmrpc.Client, *names: str, kind: str) -> Any:
    """Raise the failure of the first call of a batch whose sums succeed."""
    async with client.batch() as batch:
        calls = [batch.call(name, kind) for name in names]
        sums = [batch.add(n, 1) for n in range(20)]
    assert [await each for each in sums] == list(range(1, 21))
    for call in calls[1:]:
        with pytest.raises(shmrpc.RemoteError):
            await call
    return await calls[0]


async def of_map(client: shmrpc.Client, name: str, kind: str) -> Any:
    return [result async for result in client.map(name, [kind] * 3)]


Form = Callable[[shmrpc.Client, str], Awaitable[Any]]
#: The ways in which a handler comes to raise an exception.
FORMS: dict[str, Form] = {
    "a plain def": lambda client, kind: client.plain(kind),
    "by keyword": lambda client, kind: client.plain(kind=kind),
    "with a deadline": lambda client, kind: client.with_options(timeout=60).plain(kind),
    "with metadata": lambda client, kind: client.with_options(metadata={"a": "b"}).plain(kind),
    "an async def that ends at once": lambda client, kind: client.at_once(kind),
    "an async def at once, with a deadline": lambda client, kind: client.with_options(timeout=60).at_once(kind),
    "an async def that has suspended": lambda client, kind: client.later(kind),
    "an async def later, with metadata": lambda client, kind: client.with_options(metadata={"a": "b"}).later(kind),
    "a method": lambda client, kind: client.an_object.method(kind),
    "a method that has suspended": lambda client, kind: client.an_object.method_later(kind),
    "a generator at once": lambda client, kind: items_of(client.generated(kind)),
    "a generator in the midst": lambda client, kind: items_of(client.generated(kind, 1)),
    "an async generator at once": lambda client, kind: items_of(client.async_generated(kind)),
    "an async generator in the midst": lambda client, kind: items_of(client.async_generated(kind, 1)),
    "a generator in a thread": lambda client, kind: items_of(client.generated_in_thread(kind)),
    "a generator in a thread, in the midst": lambda client, kind: items_of(client.generated_in_thread(kind, 1)),
    "one that takes a stream": lambda client, kind: client.takes_stream(kind, iter(range(3))),
    "in a thread": lambda client, kind: client.in_thread(kind),
    "in a batch": lambda client, kind: of_batch(client, "plain", "plain", kind=kind),
    "in a batch, at once": lambda client, kind: of_batch(client, "at_once", "at_once", kind=kind),
    "in a batch, later": lambda client, kind: of_batch(client, "later", "at_once", "plain", "in_thread", kind=kind),
    "in map()": lambda client, kind: of_map(client, "plain", kind),
    "in map(), later": lambda client, kind: of_map(client, "later", kind),
}
KINDS = [
    "StopIteration",
    "StopAsyncIteration",
    "SystemExit",
    "KeyboardInterrupt",
    "GeneratorExit",
    "RecursionError",
    "MemoryError",
    "CancelledError",
    "Stranger",
]
#: Exceptions that would have ended a program: the server's log has them.
LOGGED = {"SystemExit", "KeyboardInterrupt", "GeneratorExit", "Stranger"}


def expected_type(form: str, kind: str) -> tuple[str, ...]:
    """Return the possible type names of the exception that arrives."""
    if kind == "StopIteration":  # Python makes the other one of it where a coroutine or a generator is left.
        return "builtins.StopIteration", "builtins.RuntimeError"
    if kind == "StopAsyncIteration" and ("async generator" in form or form.startswith("a generator in a thread")):
        return ("builtins.RuntimeError",)
    if kind == "CancelledError":
        return ("asyncio.exceptions.CancelledError",)
    return (f"{__name__}.Stranger",) if kind == "Stranger" else (f"builtins.{kind}",)


@pytest.fixture(autouse=True)
def each_is_logged(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also those that are the same as one before."""
    monkeypatch.setattr(failure_log, "QUIET_PERIOD", 0)


def is_logged(caplog: pytest.LogCaptureFixture, kind: str) -> bool:
    """Return True if the server has logged an exception of this kind, with its traceback."""
    return any(record.exc_info is not None and record.exc_info[0].__name__ == kind for record in caplog.records)  # type: ignore[union-attr]


@pytest.mark.parametrize("kind", KINDS)
async def test_an_exception_of_a_handler_fails_its_own_call_alone(kind: str, caplog: pytest.LogCaptureFixture) -> None:
    async with shmrpc.serve(service), shmrpc.connect(service.name) as client, shmrpc.connect(service.name) as other:
        for form, call in FORMS.items():
            caplog.clear()
            with caplog.at_level(logging.ERROR, "shmrpc.server"):
                with pytest.raises(shmrpc.RemoteError) as caught:
                    async with asyncio.timeout(PATIENCE):
                        await call(client, kind)
                assert caught.value.type_name in expected_type(form, kind), form
                assert kind == "CancelledError" or "throw" in caught.value.remote_traceback, form
            assert await other.add(1, 2) == 3 and await client.add(1, 2) == 3, form
            assert kind not in LOGGED or is_logged(caplog, kind), form


@pytest.mark.parametrize("kind", KINDS)
async def test_an_exception_of_a_handler_fails_a_call_of_a_client_without_a_loop(kind: str) -> None:
    forms: dict[str, Callable[[shmrpc.sync.Client], Any]] = {
        "a plain def": lambda client: client.plain(kind),
        "an async def that has suspended": lambda client: client.later(kind),
        "a generator in the midst": lambda client: list(client.generated(kind, 1)),
        "in map()": lambda client: list(client.map("plain", [kind])),
    }

    def work() -> None:
        with shmrpc.sync.connect(service.name) as client:
            for form, call in forms.items():
                with pytest.raises(shmrpc.RemoteError) as caught:
                    call(client)
                assert caught.value.type_name in expected_type(form, kind), form

    async with shmrpc.serve(service):
        await asyncio.to_thread(work)


async def test_an_exception_of_a_handler_in_a_process_fails_its_call(caplog: pytest.LogCaptureFixture) -> None:
    async with shmrpc.serve(service), shmrpc.connect(service.name) as client:
        for kind in KINDS:
            caplog.clear()
            with caplog.at_level(logging.ERROR, "shmrpc.server"), pytest.raises(shmrpc.RemoteError) as caught:
                await client.in_process(kind)
            assert caught.value.type_name in expected_type("in a process", kind)
            assert kind not in LOGGED or is_logged(caplog, kind)
        process = await client.process()
        with pytest.raises(shmrpc.RemoteError, match="one two") as caught:  # The exception cannot be unpickled.
            await client.in_process("OfTwo")
        assert caught.value.type_name == f"{__name__}.OfTwo"
        with pytest.raises(RuntimeError, match=r"not_unpickled\(\): the result cannot be read.*OfTwo"):
            await client.not_unpickled()
        assert process in [await client.process() for _ in range(8)], "the process goes on"


@pytest.mark.parametrize("endpoint", ["plain", "at_once", "later", "in_thread"])
async def test_an_exception_of_a_one_way_call_is_logged(endpoint: str, caplog: pytest.LogCaptureFixture) -> None:
    async with shmrpc.serve(service), shmrpc.connect(service.name) as client:
        for kind in KINDS:
            caplog.clear()
            names = {name.removeprefix("builtins.").rpartition(".")[2] for name in expected_type(endpoint, kind)}
            with caplog.at_level(logging.ERROR, "shmrpc.server"):
                await client.notify(endpoint, kind)
                assert await eventually_in_loop(lambda names=names: any(is_logged(caplog, name) for name in names))  # type: ignore[misc]
                assert await client.add(1, 2) == 3


@pytest.mark.parametrize("endpoint", ["closing", "async_closing", "closing_in_thread"])
async def test_an_exception_of_a_handler_whose_stream_is_left_is_logged(
    endpoint: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with shmrpc.serve(service) as server, shmrpc.connect(service.name) as client:
        for kind in KINDS:
            closed.clear()
            caplog.clear()
            with caplog.at_level(logging.ERROR, "shmrpc.server"):
                async with contextlib.aclosing(client.call(endpoint, kind)) as items:
                    async for _ in items:
                        break
                assert await eventually_in_loop(lambda kind=kind: closed == [kind] and server.in_flight == 0)  # type: ignore[misc]
                assert await client.add(1, 2) == 3
            # Python closes generators with GeneratorExit.
            assert kind not in LOGGED - {"GeneratorExit"} or is_logged(caplog, kind)


async def test_an_exception_of_a_handler_that_is_cancelled_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    async with shmrpc.serve(service) as server, shmrpc.connect(service.name) as client:
        for kind in KINDS:
            caplog.clear()
            with caplog.at_level(logging.ERROR, "shmrpc.server"):
                waiting = asyncio.create_task(client.when_cancelled(kind))
                assert await eventually_in_loop(lambda: server.in_flight == 1)
                waiting.cancel()
                await asyncio.wait([waiting])
                assert await eventually_in_loop(lambda: server.in_flight == 0)
                assert await client.add(1, 2) == 3
            assert kind not in LOGGED or is_logged(caplog, kind)


@pytest.mark.parametrize("moment", ["before", "after"])
@pytest.mark.parametrize("endpoint", ["add", "add_later"])
async def test_an_interceptor_that_raises(endpoint: str, moment: str, caplog: pytest.LogCaptureFixture) -> None:
    raising: list[str] = []

    class Raising(contextlib.AbstractContextManager[None]):
        def __enter__(self) -> None:
            if moment == "before" and raising:
                throw(*raising)

        def __exit__(self, *_: object) -> None:
            if moment == "after" and raising:
                throw(*raising)

    inner = shmrpc.Service("tested.intercepted")
    inner.include(service)

    @inner.endpoint
    async def add_later(a: int, b: int) -> int:
        await asyncio.sleep(0)
        return a + b

    async with shmrpc.serve(inner, interceptors=[lambda call: Raising()]), shmrpc.connect(inner.name) as client:
        for kind in KINDS:
            caplog.clear()
            raising.append(kind)
            with caplog.at_level(logging.ERROR, "shmrpc.server"), pytest.raises(shmrpc.RemoteError) as caught:
                await client.call(endpoint, 1, 2)
            assert caught.value.type_name in expected_type("an interceptor", kind)
            assert kind not in LOGGED or is_logged(caplog, kind)
            raising.clear()
            assert await client.add(1, 2) == 3


@pytest.mark.parametrize("kind", ["SystemExit", "KeyboardInterrupt", "Stranger"])
@pytest.mark.parametrize("moment", ["before", "after"])
async def test_a_lifespan_that_raises_ends_the_program_that_serves(kind: str, moment: str) -> None:
    @contextlib.asynccontextmanager
    async def lifespan(service: shmrpc.Service) -> AsyncIterator[None]:
        if moment == "before":
            throw(kind)
        yield
        throw(kind)

    served = False
    with pytest.raises((SystemExit, KeyboardInterrupt, Stranger)) as caught:
        async with shmrpc.serve(shmrpc.Service("tested.lifespan", lifespan=lifespan)):
            served = True
    assert caught.type.__name__ == kind and served == (moment == "after")
    async with shmrpc.serve(shmrpc.Service("tested.lifespan")):
        """The name is free."""


class Alarm(Exception):
    """An exception that a signal's handler raises."""


class Alarming:
    """A codec: while it encodes an item, a signal comes whose handler raises."""

    def __init__(self, codec: Any, error: BaseException) -> None:
        self._codec = codec
        self._error = error

    def encode(self, item: object) -> NoReturn:
        raise self._error

    @property
    def encoder(self) -> Callable[[object], NoReturn]:
        return self.encode

    def __getattr__(self, name: str) -> Any:
        return getattr(self._codec, name)


def summing(name: str, seen: list[str]) -> shmrpc.Service:
    """Return a service that adds up a stream, and notes the exception that ends the stream."""
    service = shmrpc.Service(name)

    @service.endpoint
    async def total(items: AsyncIterator[int]) -> int:
        try:
            return sum([item async for item in items])
        except Exception as error:
            seen.append(type(error).__name__)
            raise

    @service.endpoint
    def add(a: int, b: int) -> int:
        return a + b

    return service


RAISED = [
    ValueError("own"),
    TypeError("own"),
    OverflowError("own"),
    RecursionError("own"),
    UnicodeDecodeError("utf-8", b"own", 0, 1, "own"),
    KeyError("own"),
    Alarm("own"),
    TimeoutError("own"),
]


@pytest.mark.parametrize("raised", RAISED, ids=lambda raised: type(raised).__name__)
async def test_an_exception_of_a_source_is_raised_unchanged(raised: Exception) -> None:
    def source() -> Iterator[int]:
        yield 1
        raise raised

    def work() -> None:
        with shmrpc.sync.connect("tested.raising") as client:
            with pytest.raises(type(raised)) as caught:
                client.total(source())
            assert caught.value is raised
            assert client.add(1, 2) == 3

    async with shmrpc.serve(summing("tested.raising", [])), shmrpc.connect("tested.raising") as client:
        with pytest.raises(type(raised)) as caught:
            await client.total(source())
        assert caught.value is raised
        assert await client.add(1, 2) == 3
        await asyncio.to_thread(work)


@pytest.mark.parametrize("raised", [Alarm("own"), KeyboardInterrupt("own")], ids=lambda raised: type(raised).__name__)
def test_an_exception_of_a_signal_handler_while_an_item_is_encoded_is_raised_unchanged(raised: BaseException) -> None:
    with ServerProcess("tests.helpers.stream_service:service") as server, shmrpc.sync.connect(server.name) as client:
        with pytest.raises(shmrpc.EncodeError, match="object"):
            client.total([1, object()])
        binds = client._clone()
        codec, binds._codec = binds._codec, Alarming(binds._codec, raised)  # type: ignore[assignment]
        with pytest.raises(type(raised)) as caught:
            client.call("total", [1])
        assert caught.value is raised
        binds._codec = codec
        assert client.add(1, 2) == 3


async def test_an_exception_of_a_signal_handler_while_a_loop_encodes_an_item_is_raised_unchanged() -> None:
    async with shmrpc.serve(summing("tested.raising", [])), shmrpc.connect("tested.raising") as client:
        with pytest.raises(shmrpc.EncodeError, match="object"):
            await client.total([1, object()])
        alarm = Alarm("own")
        binds = client._clone()
        codec, binds._codec = binds._codec, Alarming(binds._codec, alarm)  # type: ignore[assignment]
        with pytest.raises(Alarm) as caught:
            await client.call("total", [1])
        assert caught.value is alarm
        binds._codec = codec
        assert await client.add(1, 2) == 3


@pytest.mark.parametrize("raised", [ValueError("own"), TypeError("own")], ids=lambda raised: type(raised).__name__)
def test_an_exception_of_a_signal_handler_while_a_call_waits_is_raised_unchanged(raised: Exception) -> None:
    def handler(signum: int, frame: object) -> None:
        raise raised

    before = signal.signal(signal.SIGUSR1, handler)
    try:
        with (
            ServerProcess("tests.server.test_handlers_that_raise:service") as server,
            shmrpc.sync.connect(server.name) as client,
        ):
            for wait in (client.alarm, client.with_options(timeout=PATIENCE).alarm, lambda: client.alarm_for([])):
                with pytest.raises(type(raised)) as caught:
                    wait()
                assert caught.value is raised
            assert client.add(1, 2) == 3
    finally:
        signal.signal(signal.SIGUSR1, before)


@pytest.mark.parametrize("kind", ["RecursionError", "UnicodeDecodeError"])
async def test_a_stream_that_fails_as_an_unreadable_one_would(kind: str) -> None:
    def source() -> Iterator[int]:
        yield 1
        b"\xff".decode() if kind == "UnicodeDecodeError" else throw(kind)

    inner = shmrpc.Service("tested.sources")
    seen: list[str] = []

    @inner.endpoint
    async def total(items: AsyncIterator[int]) -> int:
        try:
            return sum([item async for item in items])
        except Exception as error:
            seen.append(type(error).__name__)
            raise

    @inner.endpoint
    def count() -> Iterator[int]:
        yield from source()

    def work() -> None:
        with shmrpc.sync.connect("tested.sources") as client, pytest.raises(shmrpc.RemoteError) as caught:
            list(client.count())
        assert caught.value.type_name == f"builtins.{kind}"

    async with shmrpc.serve(inner), shmrpc.connect("tested.sources") as client:
        with pytest.raises(shmrpc.RemoteError) as caught:
            await items_of(client.count())
        assert caught.value.type_name == f"builtins.{kind}"
        with pytest.raises(getattr(builtins, kind)) as failed:
            await client.total(source())
        assert not isinstance(failed.value, shmrpc.ShmrpcError), "it is the source's own"
        await asyncio.to_thread(work)
    assert seen == [f"Remote{kind}"]


@pytest.mark.parametrize("options", [(), ("--workers", "2")], ids=["alone", "workers"])
def test_a_server_program_goes_on_and_logs_the_failures(options: tuple[str, ...]) -> None:
    with ServerProcess("tests.server.test_handlers_that_raise:service", *options) as process:
        with shmrpc.sync.connect(process.name, timeout=PATIENCE) as client:
            served_by = client.server()
            for kind in ("SystemExit", "KeyboardInterrupt"):
                for endpoint in ("plain", "at_once", "later", "in_thread"):
                    with pytest.raises(shmrpc.RemoteError) as caught:
                        client.call(endpoint, kind)
                    assert caught.value.type_name == f"builtins.{kind}"
            assert client.server() == served_by
        said = process.stop()
        assert process.process.returncode == 0
    assert said.count("failed: its SystemExit ended that call, and nothing else") == 4
    assert said.count("failed: its KeyboardInterrupt ended that call, and nothing else") == 4
    for endpoint in ("plain", "at_once", "later", "in_thread"):
        assert said.count(f"tested.raising.{endpoint}() failed") == 2


_PROGRAM = """
import asyncio, signal, sys
import shmrpc
service = shmrpc.Service("tested.program")

@service.endpoint
def add(a: int, b: int) -> int:
    return a + b

@service.endpoint
def interrupted(name: str) -> None:
    signal.raise_signal(getattr(signal, name))
    signal.raise_signal(getattr(signal, name))  # asyncio.run() cancels the main task at the first Ctrl-C.

@service.endpoint
async def interrupted_later(name: str) -> None:
    await asyncio.sleep(0)
    signal.raise_signal(getattr(signal, name))
    signal.raise_signal(getattr(signal, name))  # asyncio.run() cancels the main task at the first Ctrl-C.

@service.endpoint
def raises(name: str) -> None:
    raise KeyboardInterrupt if name == "SIGINT" else SystemExit

def end(number, frame):
    sys.exit(7)

async def main():
    async with shmrpc.serve(service):
        print("serving", flush=True)
        await asyncio.sleep({patience})

signal.signal(signal.SIGTERM, end)
try:
    {run}
except KeyboardInterrupt:
    print("interrupted", flush=True)
"""
_RUNS = {
    "asyncio.run": "asyncio.run(main())",
    "uvloop.run": "import uvloop; uvloop.run(main())",
    "a loop of its own": "asyncio.new_event_loop().run_until_complete(main())",
}


@pytest.mark.parametrize("run", list(_RUNS))
@pytest.mark.parametrize("endpoint", ["interrupted", "interrupted_later"])
@pytest.mark.parametrize("name", ["SIGINT", "SIGTERM"])
def test_a_signal_that_comes_while_a_handler_runs_ends_the_program(name: str, endpoint: str, run: str) -> None:
    with Script(_PROGRAM.format(patience=PATIENCE, run=_RUNS[run])) as program:
        assert program.line() == "serving"
        with shmrpc.sync.connect("tested.program", timeout=PATIENCE) as client:
            if run != "a loop of its own":  # There the server cannot tell the handler's exception from a Ctrl-C.
                with pytest.raises(shmrpc.RemoteError):
                    client.raises(name)
            with pytest.raises(shmrpc.ShmrpcError):
                client.call(endpoint, name)
        code = program.process.wait(PATIENCE)
        assert code == (7 if name == "SIGTERM" else 0)
        assert name == "SIGTERM" or program.line() == "interrupted"
