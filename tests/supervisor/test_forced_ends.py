"""A server that gets a stop signal ends in time, whatever hangs, and leaves nothing behind."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

import pytest

import shmrpc
from shmrpc.host.status import collect_reports
from shmrpc.supervisor import forced_exit
from shmrpc.supervisor.runner import ServerRunner
from tests.helpers.server_process import PATIENCE, STOPPING, InThread, ServerProcess, eventually, is_alive

SERVICE = """
    import asyncio, atexit, contextlib, os, pathlib, shmrpc, signal, threading

    name = os.environ["NAME"]
    never = threading.Event()
    begun = pathlib.Path(os.environ["BEGUN"])

    @contextlib.asynccontextmanager
    async def lifespan(service):
        yield
        if "lifespan" in name:
            await swallow()

    service = shmrpc.Service(name, lifespan=lifespan)

    if "exit-handler" in name:
        atexit.register(never.wait)
    if "own-thread" in name:
        threading.Thread(target=lambda: never.wait(), name="users-own").start()

    async def swallow():
        while True:
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.sleep(1000)

    @service.endpoint(run_in="thread")
    def thread():
        begun.touch()
        never.wait()

    @service.endpoint(run_in="process")
    def child_pid() -> int:
        return os.getpid()

    @service.endpoint
    async def stubborn():
        begun.touch()
        await swallow()

    @service.endpoint
    async def pool():
        begun.touch()
        await asyncio.to_thread(never.wait)

    @service.endpoint
    def hold():
        begun.touch()
        never.wait()

    @service.endpoint
    def hold_and_miss_signals():
        before, orders = signal.getsignal(signal.SIGQUIT), iter(range(3))
        signal.signal(signal.SIGQUIT, lambda *signal_: next(orders, None) is None and before(*signal_))
        hold()

    @service.endpoint
    async def hold_later():
        await asyncio.sleep(0.001)
        hold()
"""


class Case(NamedTuple):
    """Code that hangs, its description in the log, and the signals that stop the server."""

    name: str
    #: Endpoint to call; "" for none.
    endpoint: str
    words: str
    options: tuple[str, ...] = ()
    twice: bool = False

    def __str__(self) -> str:
        return self.name


WORKERS, ASYNCIO = ("--workers", "1"), ("--loop", "asyncio")
CASES = [
    Case("thread", "thread", "1 call: thread.thread (1); thread shmrpc-handler"),
    Case("thread-twice", "thread", "1 call: thread-twice.thread (1)", ASYNCIO, twice=True),
    Case("thread-worker", "thread", "1 call: thread-worker.thread (1)", WORKERS),
    Case("stubborn", "stubborn", "1 call: stubborn.stubborn (1)"),
    Case("stubborn-reload", "stubborn", "1 call: stubborn-reload.stubborn (1)", ("--reload",), twice=True),
    Case("pool", "pool", "thread asyncio_0 in", ASYNCIO),
    Case("hold", "hold", "1 call: hold.hold (1); the main thread in hold() ("),
    Case(
        "hold-asyncio",
        "hold_later",
        "1 call: hold-asyncio.hold_later (1); the main thread in hold() (",
        ASYNCIO,
        twice=True,
    ),
    Case("hold-worker", "hold", "1 call: hold-worker.hold (1); the main thread in hold() (", WORKERS, twice=True),
    Case(
        "missing-worker",
        "hold_and_miss_signals",
        "1 call: missing-worker.hold_and_miss_signals (1); the main thread in hold() (",
        WORKERS,
        twice=True,
    ),
    Case("lifespan", "", "the lifespan of service 'lifespan'"),
    Case("lifespan-worker", "", "the lifespan of service 'lifespan-worker'", WORKERS, twice=True),
    Case("exit-handler", "", "an exit handler", ASYNCIO, twice=True),
    Case("exit-handler-worker", "", "an exit handler", WORKERS),
    Case("exit-handler-worker-twice", "", "an exit handler", WORKERS, twice=True),
    Case("own-thread", "", "thread users-own in <lambda>() (", twice=True),
]


class Ended(NamedTuple):
    """The end of a server."""

    code: int
    errors: str
    #: Outcome of the call.
    outcome: object
    children: list[int]


def _stop(case: Case, base: Path) -> Ended:
    """Lets a server hang and tells it to stop."""
    begun = base / f"{case.name}-begun"
    environment = {**os.environ, "NAME": case.name, "BEGUN": str(begun), "PYTHONPATH": os.pathsep.join(sys.path)}
    grace = "1000" if case.twice else "0.1"
    command = [sys.executable, "-m", "shmrpc", "serve", "hanging:service", "--app-dir", str(base), "--grace", grace]
    server = subprocess.Popen([*command, *case.options], stderr=subprocess.PIPE, text=True, env=environment)
    try:
        children, calling = [], None
        if case.endpoint:
            client = shmrpc.sync.connect(case.name, timeout=PATIENCE).__enter__()
            if case.name == "hold":  # Its loop does not get to ending them.
                children.append(client.child_pid())
            calling = InThread(lambda: client.call(case.endpoint))
            assert eventually(begun.exists)
        else:
            shmrpc.sync.connect(case.name, timeout=PATIENCE).__enter__().close()
        server.terminate()
        if case.twice:
            server.send_signal(signal.SIGINT)  # Two signals of one kind may arrive as one.
        _, errors = server.communicate(timeout=STOPPING)
    finally:
        server.kill()
    return Ended(server.returncode, errors, calling and calling.join(), children)


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where all of them are served."""
    base = tmp_path_factory.mktemp("hanging")
    (base / "hanging.py").write_text(textwrap.dedent(SERVICE))
    return base


@pytest.fixture(scope="module")
def ended(base: Path) -> dict[str, Ended]:
    """All cases at once: each takes seconds in which nothing is computed."""
    with pytest.MonkeyPatch.context() as patch, ThreadPoolExecutor(len(CASES)) as threads:
        patch.setenv("XDG_RUNTIME_DIR", str(base))
        patch.delenv("SHMRPC_DIRECTORY", raising=False)
        ends = list(threads.map(lambda case: _stop(case, base), CASES))
    return {case.name: end for case, end in zip(CASES, ends, strict=True)}


@pytest.mark.parametrize("case", CASES, ids=str)
def test_code_that_hangs_is_logged_and_does_not_delay_the_end(case: Case, ended: dict[str, Ended], base: Path) -> None:
    end = ended[case.name]
    assert end.code == 1, end.errors
    assert f"ended by force, because this did not end: {case.words}" in end.errors
    assert "Traceback" not in end.errors
    assert not case.endpoint or isinstance(end.outcome, shmrpc.ConnectionLost)
    if case.options in (WORKERS, ("--reload",)):
        assert "did not end by itself, and was ended by force" in end.errors
    assert os.listdir(base / "shmrpc") == []
    assert eventually(lambda: not any(map(is_alive, end.children)))


async def test_closing_waits_for_no_handler_that_will_not_end(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("shmrpc.server.server.CLOSE_TIMEOUT", 0.05)
    left: list[str] = []
    release = asyncio.Event()

    @contextlib.asynccontextmanager
    async def lifespan(service: shmrpc.Service) -> AsyncIterator[None]:
        yield
        left.append(service.name)

    service = shmrpc.Service("stubborn", lifespan=lifespan)
    begun = asyncio.Event()

    @service.endpoint
    async def swallow() -> None:
        begun.set()
        while not release.is_set():
            with contextlib.suppress(asyncio.CancelledError):
                await release.wait()

    with caplog.at_level(logging.ERROR):
        async with shmrpc.serve(service), shmrpc.connect("stubborn") as client:
            calling = asyncio.ensure_future(client.swallow())
            await begun.wait()
    assert "0.05 s after their cancellation these calls have not ended: stubborn.swallow (1)" in caplog.text
    assert left == ["stubborn"]
    release.set()
    with pytest.raises(shmrpc.ConnectionLost):
        await calling


FORKING = """
    import os, shmrpc, time

    service = shmrpc.Service("forking")

    @service.endpoint
    def fork() -> int:
        child = os.fork()
        if child:
            return child
        time.sleep(1000)

    @service.endpoint
    def pid() -> int:
        return os.getpid()
"""


@pytest.mark.parametrize("loop", ["uvloop", "asyncio"])
def test_a_signal_to_a_forked_child_is_none_to_the_server(tmp_path: Path, loop: str) -> None:
    (tmp_path / "forking.py").write_text(textwrap.dedent(FORKING))
    with ServerProcess("forking:service", "--app-dir", str(tmp_path), "--loop", loop) as server:
        with shmrpc.sync.connect("forking") as client:
            child = client.fork()
            try:
                os.kill(child, signal.SIGTERM)
                assert [client.pid() for _ in range(3)] == [server.pid] * 3
                assert [report.health for report in collect_reports()] == ["serving"]
            finally:
                os.kill(child, signal.SIGKILL)


def test_a_signal_delivered_twice_is_one(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 100.0
    monkeypatch.setattr(time, "monotonic", lambda: now)
    signals = forced_exit.StopSignals()
    assert not signals.is_repeat(signal.SIGTERM)
    now += 0.4
    assert signals.is_repeat(signal.SIGTERM)
    assert not signals.is_repeat(signal.SIGINT)
    now += 0.6
    assert not signals.is_repeat(signal.SIGINT)


@pytest.mark.parametrize(("kinds", "ways"), [("TERM TERM", "gently"), ("TERM INT", "gently at once")])
async def test_a_server_that_hears_a_signal_twice_stops_gently(kinds: str, ways: str) -> None:
    runner = ServerRunner(shmrpc.serve(shmrpc.Service("unused")), 1000)
    heard: list[str] = []
    runner._loop = asyncio.get_running_loop()
    runner._forced_exit.schedule = lambda seconds: None  # type: ignore[method-assign]
    runner.drain = lambda: heard.append("gently")  # type: ignore[method-assign]
    runner._stop_at_once = lambda: heard.append("at once")  # type: ignore[method-assign]
    for kind in kinds.split():
        runner._on_signal(signal.Signals[f"SIG{kind}"], None)
    await asyncio.sleep(0)
    assert " ".join(heard) == ways
