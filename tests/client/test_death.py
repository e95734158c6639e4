"""One side dies, stalls, leaves, forks: the other reads what happened, and nothing is left."""

from __future__ import annotations

import asyncio
import ctypes
import gc
import os
import signal
import socket
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import uvloop

import shmrpc
from shmrpc.host import cleanup
from shmrpc.wire.control import VERSION
from tests.helpers.host_names import ours_in_shm
from tests.helpers.server_process import Script, ServerProcess, eventually, eventually_in_loop
from tests.helpers.services import service
from tests.helpers.stopped_processes import PATIENCE, is_stopped, stopped, wait_for_answer
from tests.helpers.wire_client import Control


async def begun(client: shmrpc.Client) -> None:
    """Wait until the calls that tasks made before are in flight at the server, which takes requests in their order."""
    await asyncio.sleep(0)
    assert await client.add(1, 2) == 3


async def test_server_killed_with_calls_in_flight(server: ServerProcess) -> None:
    async with shmrpc.connect("tested") as client:
        calls = [asyncio.create_task(client.sleep(600)) for _ in range(20)]
        await begun(client)
        server.kill()
        results = await asyncio.wait_for(asyncio.gather(*calls, return_exceptions=True), PATIENCE)
        assert all(type(result) is shmrpc.ConnectionLost and result.maybe_executed for result in results)
        assert f"process {server.pid}" in str(results[0])
        assert len(set(map(id, results))) == 20
        with pytest.raises(shmrpc.ConnectionLost):
            await client.add(1, 2)


def outcomes_of_blocked_calls(client: shmrpc.sync.Client, end: Callable[[], None]) -> list[BaseException]:
    """Return the exceptions that five threads, each blocked in a call, get when ``end`` ends the calls."""
    outcomes: list[BaseException] = []

    def call() -> None:
        try:
            client.sleep(600)
        except BaseException as error:
            outcomes.append(error)

    threads = [threading.Thread(target=call) for _ in range(5)]
    for thread in threads:
        thread.start()
    time.sleep(0.1)
    end()
    for thread in threads:
        thread.join(PATIENCE)
    return outcomes


def test_server_killed_under_a_sync_call(server: ServerProcess) -> None:
    with shmrpc.sync.connect("tested") as client:
        outcomes = outcomes_of_blocked_calls(client, server.kill)
        assert [type(outcome) for outcome in outcomes] == [shmrpc.ConnectionLost] * 5
        with pytest.raises(shmrpc.ConnectionLost):
            client.add(1, 2)


async def test_a_server_that_stops_says_goodbye() -> None:
    with ServerProcess("tests.helpers.services:service", "--grace", "0.05") as server:
        client = await shmrpc.connect("tested")
        call = asyncio.create_task(client.sleep(600))
        await begun(client)  # Or it is refused.
        await asyncio.to_thread(server.stop)
        with pytest.raises(shmrpc.ConnectionLost, match="the server stopped"):
            await call
        await client.close()


async def test_answers_given_before_death_still_arrive(server: ServerProcess) -> None:
    async with shmrpc.connect("tested") as client:
        with stopped(server.pid):  # The server does not answer before the call waits.
            call = asyncio.create_task(client.sleep(0.001, "in time"))
            await asyncio.sleep(0)
        wait_for_answer(client)
        server.kill()
        assert not call.done()
        assert await call == "in time"


async def test_the_next_server_takes_over_from_a_killed_one(server: ServerProcess, runtime: Path) -> None:
    server.kill()
    assert (runtime / "tested.sock").exists()
    with ServerProcess():
        async with shmrpc.connect("tested") as client:
            assert await client.add(1, 2) == 3


async def test_a_forked_child_does_not_keep_a_dead_servers_name() -> None:
    script = """
        import asyncio, os, time, shmrpc
        from tests.helpers.services import service
        async def main():
            async with shmrpc.serve(service):
                if os.fork() == 0:
                    print("serving", flush=True)  # From here on the child has let go of what is the parent's.
                    time.sleep(600)
                    os._exit(0)
                await asyncio.sleep(600)
        asyncio.run(main())
    """
    with Script(script) as forking:
        assert forking.line() == "serving"
        client = await shmrpc.connect("tested")
        forking.kill()
        with pytest.raises(shmrpc.ConnectionLost):
            await asyncio.wait_for(client.sleep(600), PATIENCE)
        await client.close()
        async with shmrpc.serve(service), shmrpc.connect("tested") as again:
            assert await again.pid() == os.getpid()


async def test_a_second_live_server_is_refused(server: ServerProcess) -> None:
    with pytest.raises(shmrpc.ServiceInUse, match=f"'tested' is already served by process {server.pid}") as caught:
        async with shmrpc.serve(service):
            pass
    assert caught.value.pid == server.pid
    async with shmrpc.connect("tested") as client:
        assert await client.pid() == server.pid


def test_killed_clients_cost_the_server_nothing(sync_client: shmrpc.sync.Client) -> None:
    script = """
        import asyncio, shmrpc
        async def main():
            clients = [await shmrpc.connect("tested") for _ in range(5)]
            calls = [asyncio.ensure_future(client.sleep(600)) for client in clients]
            await asyncio.sleep(0.05)
            print("calling", flush=True)
            await asyncio.sleep(600)
        asyncio.run(main())
    """
    base = sync_client.descriptors(), sync_client.mapped()
    for _ in range(2):
        with Script(script) as calling:
            assert calling.line() == "calling"
            assert sync_client.mapped() == base[1] + 5
            calling.kill()
        assert eventually(lambda: (sync_client.descriptors(), sync_client.mapped()) == base, PATIENCE)


async def test_a_client_that_dies_before_it_is_welcomed_leaves_no_names_with_the_log(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level("DEBUG", logger="shmrpc.server")
    async with shmrpc.serve(service):
        control = Control("tested")
        control.send("hello", version=VERSION, max_frame=1 << 20, pickle=False, semaphores=True)
        control.socket.close()
        assert await eventually_in_loop(lambda: "Broken pipe" in caplog.text)  # The record has the exception.
        assert await eventually_in_loop(lambda: ours_in_shm() == [])
    assert not [each for each in caplog.records if each.levelname != "DEBUG" and "client" in each.getMessage()]


async def test_clients_that_come_and_go_leave_nothing(server: ServerProcess) -> None:
    async with shmrpc.connect("tested") as client:
        gc.collect()  # Garbage of an earlier test may have descriptors, too.
        ours, theirs = len(os.listdir("/proc/self/fd")), await client.descriptors()
        for _ in range(50):
            async with shmrpc.connect("tested") as passing:
                assert await passing.add(1, 2) == 3
        assert len(os.listdir("/proc/self/fd")) == ours
        for _ in range(1000):  # The server hears of the last ones' end in its own time.
            if await client.descriptors() == theirs:
                break
            await asyncio.sleep(0.01)
        assert await client.descriptors() == theirs


def test_nothing_has_a_name_while_connected(tmp_path: Path) -> None:
    """Of a service that no other test serves: theirs have names for moments."""
    name = f"tested.nameless.{os.getpid()}"
    (tmp_path / "nameless.py").write_text(f"import shmrpc\nservice = shmrpc.Service({name!r})\n")
    with ServerProcess("nameless:service", "--app-dir", str(tmp_path)), shmrpc.sync.connect(name):
        assert ours_in_shm(name) == []

        async def connect() -> None:
            async with shmrpc.connect(name):
                assert ours_in_shm(name) == []

        for loop in (asyncio.new_event_loop, uvloop.new_event_loop):
            with asyncio.Runner(loop_factory=loop) as runner:
                runner.run(connect())


async def test_a_server_can_be_served_again_after_it_stopped(runtime: Path) -> None:
    for _ in range(3):
        async with shmrpc.serve(service), shmrpc.connect("tested") as client:
            assert await client.add(1, 2) == 3
        assert os.listdir(runtime) == []


async def test_no_server() -> None:
    with pytest.raises(shmrpc.ServiceUnavailable, match=r"no server of 'absent'.*shmrpc serve MODULE:absent"):
        async with shmrpc.connect("absent", timeout=0.05):
            pass
    with pytest.raises(ConnectionError), shmrpc.sync.connect("absent", timeout=0):
        pass


async def test_a_server_that_comes_later() -> None:
    client = shmrpc.connect("tested", timeout=30)
    waiting = asyncio.ensure_future(client.__aenter__())
    await asyncio.sleep(0.1)
    assert not waiting.done()
    async with shmrpc.serve(service):
        await waiting
        assert await client.add(1, 2) == 3
        await client.close()


async def test_connecting_to_a_server_that_is_stopped(server: ServerProcess, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patched, stopped(server.pid):
        patched.setattr("shmrpc.wire.control.STEP_TIMEOUT", 0.2)
        with pytest.raises(shmrpc.ServiceUnavailable):
            async with shmrpc.connect("tested", timeout=0.3):
                pass
    async with shmrpc.connect("tested") as client:
        assert await client.add(1, 2) == 3


async def test_a_stopped_server_goes_on(server: ServerProcess) -> None:
    async with shmrpc.connect("tested") as client:
        with stopped(server.pid):
            calls = [asyncio.create_task(client.echo(bytes([i]) * 20_000)) for i in range(20)]
            await asyncio.sleep(0.1)
            assert not any(call.done() for call in calls)
        assert await asyncio.gather(*calls) == [bytes([i]) * 20_000 for i in range(20)]


async def test_a_client_that_stops_reading_does_not_delay_others(server: ServerProcess) -> None:
    script = """
        import asyncio, os, shmrpc, signal
        async def main():
            client = await shmrpc.connect("tested")
            calls = [asyncio.ensure_future(client.sleep(0.2, bytes(30_000))) for _ in range(50)]
            await asyncio.sleep(0.05)
            print("stopping", flush=True)
            os.kill(os.getpid(), signal.SIGSTOP)
            results = await asyncio.gather(*calls)
            print(sum(map(len, results)), flush=True)
        asyncio.run(main())
    """
    with Script(script) as stopping:
        assert stopping.line() == "stopping"
        assert eventually(lambda: is_stopped(stopping.process.pid), PATIENCE)  # Or it would stop after SIGCONT.
        async with shmrpc.connect("tested") as client:
            await asyncio.sleep(0.4)
            assert [await client.add(i, 1) for i in range(500)] == list(range(1, 501))
        os.kill(stopping.process.pid, signal.SIGCONT)
        assert await asyncio.to_thread(stopping.line) == "1500000"


async def test_a_cancelled_call_is_forgotten_and_its_answer_dropped(
    server: ServerProcess, client: shmrpc.Client
) -> None:
    for _ in range(20):
        call = asyncio.create_task(client.sleep(600))
        await asyncio.sleep(0.001)
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
    for _ in range(20):
        with stopped(server.pid):  # The server does not answer before the call waits.
            late = asyncio.create_task(client.sleep(0.001, "late"))
            await asyncio.sleep(0)
        wait_for_answer(client)
        assert late.cancel()
        with pytest.raises(asyncio.CancelledError):
            await late
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.01):
            await client.sleep(600)
    assert await client.add(1, 2) == 3


def test_ctrl_c_ends_a_sync_call(server: ServerProcess) -> None:
    with shmrpc.sync.connect("tested") as client:
        timer = threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGINT))
        with pytest.raises(KeyboardInterrupt):
            timer.start()  # In here: the signal may come sooner than the call, on a busy machine.
            client.sleep(600)
        timer.join()
        assert client.add(1, 2) == 3


def test_closing_from_another_thread_ends_a_sync_call(server: ServerProcess) -> None:
    client = shmrpc.sync.connect("tested")
    client.__enter__()
    outcomes = outcomes_of_blocked_calls(client, client.close)
    assert [type(outcome) for outcome in outcomes] == [shmrpc.ConnectionLost] * 5
    assert "closed" in str(outcomes[0])
    client.close()


@pytest.mark.parametrize("doing", ["complete", "check_stopped", "_next", "poll_close"])
def test_a_sync_call_that_was_sent_may_have_been_executed_whenever_its_client_is_closed(
    server: ServerProcess, monkeypatch: pytest.MonkeyPatch, doing: str
) -> None:
    """Also between a look whether the connection has ended and the next look for the answer."""
    client = shmrpc.sync.connect("tested")
    client.__enter__()
    session: Any = client._reconnector.session
    as_ever = getattr(session, doing)

    def closed_first(*arguments: Any) -> Any:
        client.close()
        return as_ever(*arguments)

    monkeypatch.setattr(session, doing, closed_first)
    with pytest.raises(shmrpc.ConnectionLost, match="closed") as caught:
        client.sleep(600)
    assert caught.value.maybe_executed


async def test_closing_a_client_ends_its_calls(client: shmrpc.Client) -> None:
    call = asyncio.create_task(client.sleep(600))
    await begun(client)
    await client.close()
    with pytest.raises(shmrpc.ConnectionLost, match="closed"):
        await call
    with pytest.raises(shmrpc.ConnectionLost, match="closed"):
        await client.add(1, 2)
    await client.close()
    with pytest.raises(shmrpc.LocalProtocolError, match="connected before"):
        await client.__aenter__()


async def test_using_a_client_that_is_not_connected() -> None:
    client = shmrpc.connect("tested")
    with pytest.raises(shmrpc.LocalProtocolError, match="async with"):
        await client.add(1, 2)
    with pytest.raises(shmrpc.LocalProtocolError, match="with"):
        shmrpc.sync.connect("tested").add(1, 2)


async def test_using_a_client_in_another_loop(server: ServerProcess) -> None:
    async with shmrpc.connect("tested") as client:

        async def elsewhere() -> None:
            with pytest.raises(shmrpc.LocalProtocolError, match="another event loop"):
                await client.sleep(0.1)

        await asyncio.to_thread(asyncio.run, elsewhere())
        assert await client.add(1, 2) == 3


async def test_a_child_cannot_use_the_parents_connection(client: shmrpc.Client) -> None:
    assert await client.add(1, 2) == 3
    pid = os.fork()
    if pid == 0:
        try:
            coroutine = client.add(1, 2)
            coroutine.send(None)
        except shmrpc.ShmrpcError:
            os._exit(7)
        finally:
            os._exit(1)
    _, status = os.waitpid(pid, 0)  # noqa: ASYNC222 - it ends at once
    assert os.waitstatus_to_exitcode(status) == 7
    assert await client.add(1, 2) == 3


async def test_a_busy_client_does_not_keep_others_out(server: ServerProcess) -> None:
    async with shmrpc.connect("tested") as busy:
        stop = False

        async def caller() -> None:
            while not stop:
                await busy.block(0.003)

        callers = [asyncio.create_task(caller()) for _ in range(16)]
        await asyncio.sleep(0.1)
        async with shmrpc.connect("tested") as other:
            assert await asyncio.wait_for(other.add(1, 2), PATIENCE) == 3
            assert await asyncio.wait_for(other.sleep(0.01, "slept"), PATIENCE) == "slept"
        os.kill(server.pid, signal.SIGTERM)
        results = await asyncio.wait_for(asyncio.gather(*callers, return_exceptions=True), PATIENCE)
        stop = True
        assert all(isinstance(result, shmrpc.ConnectionLost) for result in results)


def test_an_interrupted_receiver_loses_nobodys_answer(sync_client: shmrpc.sync.Client) -> None:
    session = sync_client._reconnector.session
    assert session is not None
    outcomes: dict[str, object] = {}

    def call(name: str, seconds: float) -> None:
        try:
            outcomes[name] = sync_client.sleep(seconds, name)
        except KeyboardInterrupt as error:
            outcomes[name] = error

    leader = threading.Thread(target=call, args=("leader", 600))
    follower = threading.Thread(target=call, args=("follower", 0.2))
    leader.start()
    assert eventually(lambda: not session.drive())  # Another thread receives: that one.
    follower.start()
    assert eventually(lambda: len(session.calls) == 2)
    interrupt(leader, KeyboardInterrupt)
    for thread in (leader, follower):
        thread.join(PATIENCE)
        assert not thread.is_alive()
    assert isinstance(outcomes["leader"], KeyboardInterrupt)
    assert outcomes["follower"] == "follower"
    assert sync_client.add(1, 2) == 3
    assert len(session.calls) == 0


def interrupt(thread: threading.Thread, kind: type[BaseException]) -> None:
    """Raise an exception in a thread, as the handler of a signal does in the main thread."""
    assert thread.ident is not None
    assert ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread.ident), ctypes.py_object(kind)) == 1


async def test_a_child_that_unwinds_leaves_the_parents_name(runtime: Path) -> None:
    script = """
        import asyncio, os, sys, shmrpc
        from tests.helpers.services import service
        async def main():
            loop, task = asyncio.get_running_loop(), asyncio.current_task()
            async with shmrpc.serve(service):
                if os.fork() == 0:
                    # From CPython 3.14 on, asyncio forgets both in a forked child, and the loop cannot end then.
                    if sys.version_info >= (3, 14):
                        asyncio._set_running_loop(loop)
                        asyncio.tasks._swap_current_task(loop, task)
                    sys.exit(0)
                os.wait()
                print("serving", flush=True)
                await asyncio.sleep(600)
        asyncio.run(main())
    """
    with Script(script) as forking:
        assert forking.line() == "serving"
        assert sorted(os.listdir(runtime)) == ["tested.lock", "tested.sock"]
        async with shmrpc.connect("tested") as client:
            assert await client.pid() == forking.process.pid


async def test_a_name_is_free_again_when_serving_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    def exhausted(*arguments: object) -> socket.socket:
        raise OSError(24, "Too many open files")

    with monkeypatch.context() as patched:
        patched.setattr("shmrpc.host.service_socket.socket.socket", exhausted)
        with pytest.raises(OSError, match="no descriptor left to serve 'tested'"):
            async with shmrpc.serve(service):
                pass
    async with shmrpc.serve(service), shmrpc.connect("tested") as client:
        assert await client.add(1, 2) == 3


async def test_a_clean_up_that_looks_does_not_keep_a_server_from_starting(
    runtime: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("shmrpc.host.service_socket._LOCK_TRIES", 6000)  # The timer may be late.
    os.mkdir(runtime, 0o700)
    lock = cleanup.take_lock(runtime / "tested.lock", create=True)
    assert lock is not None
    timer = threading.Timer(0.03, os.close, (lock,))
    timer.start()
    async with shmrpc.serve(service):
        pass
    timer.join()


async def test_each_call_on_a_dead_connection_has_its_own_error(server: ServerProcess) -> None:
    async with shmrpc.connect("tested") as client:
        server.kill()
        errors = await asyncio.gather(*(client.add(1, i) for i in range(20)), return_exceptions=True)
        errors += await asyncio.gather(*(client.add(1, i) for i in range(20)), return_exceptions=True)
        assert {type(error) for error in errors} == {shmrpc.ConnectionLost}
        assert len(set(map(id, errors))) == 40


async def test_a_program_that_cancels_every_task_goes_on_serving() -> None:
    async with shmrpc.serve(service), shmrpc.connect("tested") as client:
        assert await client.sleep(0.001, 1) == 1
        assert await client.greet("Ada") == "Hello, Ada!"
        for task in asyncio.all_tasks() - {asyncio.current_task()}:
            task.cancel()
        await asyncio.sleep(0.01)
        assert await client.sleep(0.001, 2) == 2
