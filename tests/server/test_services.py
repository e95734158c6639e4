"""Services from classes, groups and several at one server; what a handler can reach; where it runs."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import logging
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

import shmrpc
from shmrpc.server.executors import Executors
from shmrpc.service.marks import iter_marked
from tests.helpers import services, stream_service
from tests.helpers.server_process import PATIENCE, ServerProcess, eventually, is_alive
from tests.server import grouped_services

TARGET = "tests.helpers.stream_service:service"


async def test_a_service_from_classes_and_groups() -> None:
    async with shmrpc.serve(grouped_services.service), shmrpc.connect(grouped_services.service) as client:
        start = grouped_services.service.endpoints["value"].function
        before = await start()
        assert await client.increment(5) == before + 5
        assert await client.value() == before + 5
        assert await client.in_thread() == before + 5
        assert await client.double(4) == 8
        assert await client.other.increment() != before + 6, "each instance has its own state"
        assert await client.other.reset() == 0
        assert [x async for x in client.other.down()] == []
        assert await client.math.add(1, 2) == 3
        assert await client.math.deep.deeper.echo("down there") == "down there"
        assert await client.call("math.add", 1, 2) == 3
        assert await client.call(grouped_services.add, 1, 2) == 3, "a function is found in its group"
        assert await client.state() == ["tested.grouped began"]
        with pytest.raises(shmrpc.EndpointNotFound, match=r"did you mean 'math.add'"):
            client.math.ad(1, 2)
        assert "private" not in dir(client)
        assert "math" in dir(client)


def test_the_same_without_a_loop() -> None:
    with ServerProcess("tests.server.grouped_services:service"), shmrpc.sync.connect("tested.grouped") as client:
        assert client.increment(5) == 15
        assert client.math.deep.deeper.echo("x") == "x"
        assert list(client.down()) == list(range(14, -1, -1))
        assert client.other.value() == 100


def test_objects_that_cannot_be_included_or_grouped_are_rejected() -> None:
    service = shmrpc.Service("wrong")
    with pytest.raises(TypeError, match=r"make one, as in include\(Counter\(\)\)"):
        service.include(grouped_services.Counter)
    with pytest.raises(TypeError, match="methods marked @shmrpc.endpoint"):
        service.include(object())
    for prefix in ("_x", "a b", "a..b", ""):
        with pytest.raises(ValueError, match="prefix"):
            service.group(prefix)
    service.include(grouped_services.Counter())
    with pytest.raises(ValueError, match="has an endpoint or a group 'double' already"):
        service.include(grouped_services.Counter())
    with pytest.raises(ValueError, match="its prefix is an endpoint"):
        service.include(grouped_services.Counter(), prefix="value")
    service.group("g").endpoint(grouped_services.add)
    with pytest.raises(ValueError, match="a group 'g' already"):
        service.endpoint(name="g")(grouped_services.add)
    with pytest.raises(ValueError, match="run_in must be"):
        service.endpoint(run_in="cloud")(grouped_services.add)  # type: ignore[call-overload]


def test_an_include_that_fails_adds_no_endpoint() -> None:
    service = shmrpc.Service("half")
    names = [str(options.name) for _, options in iter_marked(grouped_services.Counter())]
    assert len(names) > 1
    service.endpoint(name=names[-1])(grouped_services.add)
    with pytest.raises(ValueError, match=f"has an endpoint or a group '{names[-1]}' already"):
        service.include(grouped_services.Counter())
    assert list(service.endpoints) == names[-1:]


async def test_executors_start_nothing_after_they_are_closed() -> None:
    service = shmrpc.Service("late")
    service.endpoint(run_in="thread")(grouped_services.add)
    executors = Executors()
    executors.close()
    await executors.close_processes()
    with pytest.raises(shmrpc.LocalProtocolError, match="the server is closed"):
        executors.threads(service, service.endpoints["add"])
    with pytest.raises(shmrpc.LocalProtocolError, match="the server is closed"):
        await executors.in_process(os.getpid, (), {})


async def test_one_server_offers_several_services() -> None:
    async with shmrpc.serve(grouped_services.service, grouped_services.math, stream_service.service) as server:
        assert server.health == "serving"
        async with shmrpc.connect("tested.grouped") as one, shmrpc.connect("tested.math") as two:
            async with shmrpc.connect("tested.flows") as three:
                sums = await asyncio.gather(one.math.add(1, 2), two.add(3, 4), three.add(5, 6))
                assert list(sums) == [3, 7, 11]
                assert await three.who() == (os.getpid(), os.getuid(), "who", "tested.flows")
                with pytest.raises(shmrpc.EndpointNotFound):
                    two.increment()
                assert server.connections == 3
        with pytest.raises(shmrpc.ServiceInUse):
            async with shmrpc.serve(shmrpc.Service("tested.new"), grouped_services.math):
                pass
        async with shmrpc.serve(shmrpc.Service("tested.new")):
            pass  # The names that the failed server took are free again.
    assert server.health is None


async def test_a_lifespan_is_entered_before_the_first_call_and_left_after_the_last() -> None:
    log: list[str] = []
    opened, waits = asyncio.Event(), asyncio.Event()

    @contextlib.asynccontextmanager
    async def lifespan(service: shmrpc.Service) -> AsyncIterator[str]:
        log.append("enters")
        await opened.wait()
        log.append("entered")
        try:
            yield "the state"
        finally:
            log.append("left")

    service = shmrpc.Service("tested.life", lifespan=lifespan)

    @service.endpoint
    async def state() -> str:
        try:
            await asyncio.sleep(0)
            return str(shmrpc.current_call().state)
        finally:
            log.append("called")

    @service.endpoint
    async def wait() -> None:
        waits.set()
        try:
            await asyncio.sleep(60)
        finally:
            log.append("cancelled")

    async def run() -> None:
        async with shmrpc.serve(service) as server:
            assert server.health == "serving"
            async with shmrpc.connect("tested.life") as client:
                assert await client.state() == "the state"
                waiting = asyncio.create_task(client.wait())
                await connecting
                await waits.wait()
                await server.close()
                with pytest.raises(shmrpc.ConnectionLost):
                    await waiting

    connecting = asyncio.create_task(_connect("tested.life"))
    running = asyncio.create_task(run())
    await asyncio.sleep(0.1)
    assert not connecting.done(), "clients wait while the server starts"
    opened.set()
    await running
    assert log == ["enters", "entered", "called", "cancelled", "left"]


async def _connect(name: str) -> None:
    async with shmrpc.connect(name):
        pass


async def test_a_lifespan_that_fails_frees_the_name() -> None:
    @contextlib.asynccontextmanager
    async def lifespan(service: shmrpc.Service) -> AsyncIterator[None]:
        raise LookupError("no database")
        yield

    for _ in range(2):
        with pytest.raises(LookupError, match="no database"):
            async with shmrpc.serve(shmrpc.Service("tested.life", lifespan=lifespan)):
                pass


@pytest.mark.parametrize("endpoint", ["who", "who_plainly"])
async def test_a_handler_knows_its_caller(client: shmrpc.Client, endpoint: str) -> None:
    expected = (os.getpid(), os.getuid(), endpoint, "tested.flows")
    assert await client.call(endpoint) == expected
    assert await client.with_options(timeout=60).call(endpoint) == expected
    assert await client.with_options(metadata={"a": "b"}).call(endpoint) == expected
    assert await asyncio.gather(*(client.call(endpoint) for _ in range(20))) == [expected] * 20


def test_there_is_no_current_call_outside_of_a_handler() -> None:
    with pytest.raises(shmrpc.LocalProtocolError, match="there is no current call"):
        shmrpc.current_call()


async def test_a_task_that_outlives_its_handler_keeps_its_own_call() -> None:
    service = shmrpc.Service("tested.tasks")
    seen: list[tuple[int, int]] = []
    tasks = []
    all_answered = asyncio.Event()

    @service.endpoint
    async def start(n: int) -> None:
        async def later() -> None:
            await all_answered.wait()
            seen.append((n, shmrpc.current_call().id))

        seen.append((n, shmrpc.current_call().id))
        tasks.append(asyncio.create_task(later()))
        if n % 2:
            await asyncio.sleep(0)

    async with shmrpc.serve(service), shmrpc.connect("tested.tasks") as client:
        await asyncio.gather(*(client.start(n) for n in range(10)))
        all_answered.set()
        await asyncio.gather(*tasks)
        with pytest.raises(shmrpc.LocalProtocolError):
            shmrpc.current_call()
    assert sorted(seen[:10]) == sorted(seen[10:])
    assert len(dict(seen)) == 10 and len({call_id for _, call_id in seen}) == 10


_variable: contextvars.ContextVar[str] = contextvars.ContextVar("variable", default="unset")


async def test_in_a_thread_and_in_a_process(client: shmrpc.Client, server: ServerProcess) -> None:
    name, pid = await client.in_thread(0.01)
    assert name.startswith("shmrpc-handler") and pid == os.getpid()
    assert len(set(await asyncio.gather(*(client.meet_in_thread() for _ in range(3))))) == 3, "side by side"
    pid, total = await client.in_process(1, 2)
    assert total == 3 and pid not in (server.pid, os.getpid())
    with pytest.raises(shmrpc.InvalidArguments):
        await client.in_process(1, "two")
    with pytest.raises(RuntimeError, match=r"the process that ran die_in_process\(\) died"):
        await client.die_in_process()
    assert (await client.in_process(3, 4))[1] == 7, "the next one gets new processes"


@pytest.mark.parametrize("end", ["kill", "stop"])
async def test_handlers_processes_end_with_their_server(end: str) -> None:
    with ServerProcess("tests.helpers.stream_service:service", "--grace", "0.05") as server:
        async with shmrpc.connect("tested.flows") as client:
            pid, _ = await client.in_process(1, 2)
            os.kill(pid, signal.SIGINT)  # A terminal's Ctrl-C, which is for the server, has the same effect.
            async with asyncio.timeout(60):
                while await client.in_process(1, 2) != (pid, 3):  # There may be another one by now; this one lives.
                    pass
            busy = asyncio.create_task(client.hold_in_process(60))
            await asyncio.sleep(0)
            await client.add(1, 2)  # Which the server takes after the other.
            server.kill() if end == "kill" else await asyncio.to_thread(server.stop)
            with pytest.raises(shmrpc.ConnectionLost):
                await busy
    assert eventually(lambda: not is_alive(pid))


async def test_a_handler_in_a_process_ends_with_its_call() -> None:
    service = shmrpc.Service("tested.pools")
    service.endpoint(run_in="process")(stream_service.hold_in_process)
    service.endpoint(run_in="process")(stream_service.in_process)
    async with shmrpc.serve(service), shmrpc.connect("tested.pools") as client:
        await client.in_process(1, 2)
        holding = [client.with_options(timeout=0.2).hold_in_process(1000) for _ in range(3 * (os.cpu_count() or 1))]
        ended = await asyncio.gather(*holding, return_exceptions=True)
        assert {type(each) for each in ended} == {shmrpc.DeadlineExceeded}
        async with asyncio.timeout(PATIENCE):
            assert (await client.in_process(1, 2))[1] == 3


ENDS_WITH_A_POOL = """
import asyncio, os, threading
import shmrpc
from shmrpc.server.executors import Executors
from shmrpc.service.marks import iter_marked
from tests.helpers import stream_service

service = shmrpc.Service("tested.pools.end")
service.endpoint(run_in="process")(stream_service.hold_in_process)
service.endpoint(run_in="process")(stream_service.in_process)

async def main():
    async with shmrpc.serve(service), shmrpc.connect(service) as client:
        print((await client.in_process(1, 2))[0])
        busy = asyncio.create_task(client.hold_in_process(1000))
        await asyncio.sleep(0.1)
    await asyncio.wait([busy])
    print(type(busy.exception()).__name__, [thread.name for thread in threading.enumerate() if not thread.daemon])

if __name__ == "__main__":
    asyncio.run(main())
"""


def test_a_program_ends_with_its_processes(tmp_path: Path) -> None:
    path = tmp_path / "program.py"
    path.write_text(ENDS_WITH_A_POOL)
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    ended = subprocess.run([sys.executable, path], capture_output=True, text=True, timeout=PATIENCE, env=environment)
    worker, how, *rest = ended.stdout.split()
    # A busy machine may hold the loop while the pool starts.
    errors = [line for line in ended.stderr.splitlines() if "blocked the server's event loop" not in line]
    assert (how, errors, ended.returncode) == ("ConnectionLost", [], 0), rest
    assert eventually(lambda: not is_alive(int(worker)))


@pytest.mark.parametrize("endpoint", ["hold", "hold_later"])
async def test_an_endpoint_that_holds_the_loop_is_named_once(
    endpoint: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    service = shmrpc.Service("tested.held")
    service.endpoint(getattr(stream_service, endpoint))
    with caplog.at_level(logging.WARNING, "shmrpc.server"):
        async with shmrpc.serve(service), shmrpc.connect("tested.held") as client:
            with monkeypatch.context() as patch:  # A busy machine holds the loop too, for as long as one tenth of it.
                for module in ("shmrpc.server.server", "shmrpc.server.eager_start"):
                    patch.setattr(f"{module}.BLOCKING_THRESHOLD", 10.0)
                await client.call(endpoint, 0.01)
            assert not caplog.records
            for _ in range(3):
                await client.call(endpoint, 0.15)
    held = [record for record in caplog.records if "blocked the server's event loop" in record.message]
    assert len(held) == 1
    assert f"tested.held.{endpoint}()" in held[0].message
    assert "run_in='thread'" in held[0].message


async def test_typed_results_of_a_client_of_the_service_itself() -> None:
    async with shmrpc.serve(services.service):
        async with shmrpc.connect(services.service) as typed, shmrpc.connect("tested") as plain:
            assert await typed.move(services.Point(1, 2)) == services.Point(2, 3)
            assert await plain.move(services.Point(1, 2)) == {"x": 2, "y": 3}
