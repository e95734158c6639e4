"""A signal during a blocking wait: its handler runs, and the wait goes on or ends cleanly."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import shmrpc
from tests.helpers.server_process import ServerProcess
from tests.helpers.stopped_processes import stopped
from tests.helpers.time_bound import bounded
from tests.reliability import figures
from tests.reliability.watched_service import as_new

TARGET = "tests.reliability.watched_service:service"

NAME = "tested.watched"
#: Seconds after which a wait counts as hung.
HANGS = 30.0
#: Signals during a wait before it may end.
SIGNALS = 5


@pytest.fixture
def server(shared_server: ServerProcess) -> ServerProcess:
    return as_new(shared_server)


@pytest.fixture(autouse=True)
def in_time() -> Iterator[None]:
    with bounded():
        yield


class Interrupted(Exception):
    """Raised by the handler of a signal."""


class Signals:
    """A thread that repeatedly sends SIGUSR1 to the main thread."""

    def __init__(self) -> None:
        self.handled: list[float] = []
        self._sent = 0.0
        self._over = threading.Event()
        self._raise = False
        #: True if a signal was not handled in time.
        self._missed = False

    def _handle(self, number: int, frame: object) -> None:
        self.handled.append(time.monotonic() - self._sent)
        if self._raise:
            self._over.set()
            raise Interrupted

    @contextlib.contextmanager
    def coming(self, then: Callable[[], object] = lambda: None, *, raising: bool = False) -> Iterator[None]:
        """Send signals while the block runs, each after the last was handled; then call ``then``, which ends the wait.

        With ``raising`` the first handler raises, and it is the only signal.
        """
        self._over.clear()
        self._raise = raising
        before = signal.signal(signal.SIGUSR1, self._handle)
        sender = threading.Thread(target=self._send, args=(len(self.handled), then), daemon=True)
        sender.start()
        try:
            yield
        finally:
            self._over.set()
            sender.join(HANGS)
            signal.signal(signal.SIGUSR1, before)
        assert not sender.is_alive()
        assert not self._missed, "a handler did not run while the main thread waited"

    def _send(self, base: int, then: Callable[[], object]) -> None:
        for count in range(base, base + SIGNALS):
            if self._over.wait(0.02):
                return
            self._sent = time.monotonic()
            os.kill(os.getpid(), signal.SIGUSR1)
            end = time.monotonic() + HANGS
            while len(self.handled) == count:
                if self._over.wait(0.001):
                    return
                if time.monotonic() > end:
                    self._missed = True
                    break
        then()


#: Seconds from a signal to its handler, of all tests here.
_times: list[float] = []


@pytest.fixture
def signals() -> Iterator[Signals]:
    made = Signals()
    yield made
    _times.extend(made.handled)
    figures.note("signals while something blocks", until_the_handler_runs=figures.times(_times))


@pytest.fixture
def two(server: ServerProcess) -> Iterator[tuple[shmrpc.sync.Client, shmrpc.sync.Client]]:
    """Connect a client that waits, and another one that ends its waits."""
    with shmrpc.sync.connect(NAME) as client, shmrpc.sync.connect(NAME) as other:
        yield client, other


Two = tuple[shmrpc.sync.Client, shmrpc.sync.Client]

#: Waits in the main thread until ``open_gate`` is called, each of which returns the gate.
WAITS: dict[str, Callable[[shmrpc.sync.Client], Any]] = {
    "call": lambda client: client.wait_for("gate"),
    "call-with-deadline": lambda client: client.with_options(timeout=HANGS).wait_for("gate"),
    "stream": lambda client: list(client.items_after("gate"))[1],
    "map": lambda client: next(client.map("wait_for", ["gate"])),
}


@pytest.mark.parametrize("wait", WAITS)
@pytest.mark.parametrize("leading", [True, False])
def test_handlers_run_while_a_call_waits_and_it_goes_on(two: Two, signals: Signals, wait: str, leading: bool) -> None:
    """The call waits in both roles: as the thread that receives, and behind another thread that receives."""
    client, other = two
    with contextlib.ExitStack() as stack:
        if not leading:
            stack.enter_context(another_leads(client, other))
        with signals.coming(lambda: other.open_gate("gate")):
            assert WAITS[wait](client) == "gate"
        assert len(signals.handled) == SIGNALS, "not all signals were handled before the end of the wait"
        assert client.add(1, 2) == 3


@pytest.mark.parametrize("wait", WAITS)
@pytest.mark.parametrize("leading", [True, False])
def test_an_exception_of_a_handler_ends_the_wait_alone(two: Two, signals: Signals, wait: str, leading: bool) -> None:
    client, other = two
    with contextlib.ExitStack() as stack:
        if not leading:
            stack.enter_context(another_leads(client, other))
        for _ in range(3):
            with pytest.raises(Interrupted), signals.coming(raising=True):
                WAITS[wait](client)
            assert client.add(1, 2) == 3
        other.open_gate("gate")
        assert WAITS[wait](client) == "gate"


@contextlib.contextmanager
def another_leads(client: shmrpc.sync.Client, other: shmrpc.sync.Client) -> Iterator[None]:
    """Let another thread wait for a call of its own, so that it receives for all threads."""
    results: list[object] = []
    thread = threading.Thread(target=lambda: results.append(client.wait_for("of the leader")), daemon=True)
    thread.start()
    session = client._reconnector.session
    assert session is not None
    while session.drive():  # This thread receives: the other one has not begun.
        time.sleep(0.001)
    yield
    other.open_gate("of the leader")
    thread.join(HANGS)
    assert results == ["of the leader"], "the call of the other thread has failed"


#: An exception between the creation of a socket and its first reference leaves the closing to the interpreter.
INTERRUPTED_AS_IT_DIALS = pytest.mark.filterwarnings("ignore:unclosed <socket.socket:ResourceWarning")


@INTERRUPTED_AS_IT_DIALS
def test_handlers_run_while_a_client_waits_for_a_first_server(signals: Signals) -> None:
    with contextlib.ExitStack() as servers:
        with signals.coming(lambda: servers.enter_context(ServerProcess(TARGET))):
            with shmrpc.sync.connect(NAME, timeout=HANGS) as client:
                assert client.add(1, 2) == 3
        assert len(signals.handled) == SIGNALS
    with pytest.raises(Interrupted), signals.coming(raising=True):
        shmrpc.sync.connect(NAME, timeout=HANGS).__enter__()


@INTERRUPTED_AS_IT_DIALS
def test_handlers_run_while_the_handshake_waits_for_a_server_that_is_stopped(
    server: ServerProcess, signals: Signals
) -> None:
    descriptors = len(os.listdir("/proc/self/fd"))
    with stopped(server.pid):
        with pytest.raises(Interrupted), signals.coming(raising=True):
            shmrpc.sync.connect(NAME, timeout=HANGS).__enter__()
        assert len(os.listdir("/proc/self/fd")) == descriptors
        with signals.coming(lambda: os.kill(server.pid, signal.SIGCONT)):
            with shmrpc.sync.connect(NAME, timeout=HANGS) as client:
                assert client.add(1, 2) == 3


def test_handlers_run_while_a_call_waits_for_room(two: Two, server: ServerProcess, signals: Signals) -> None:
    client, _ = two
    with stopped(server.pid):
        with pytest.raises(Interrupted), signals.coming(raising=True):
            for i in range(100):
                client.notify("mark", i, bytes(8_000))
        with signals.coming(lambda: os.kill(server.pid, signal.SIGCONT)):
            client.notify("mark", 100, bytes(8_000))
        assert len(signals.handled) == SIGNALS + 1
    assert client.add(1, 2) == 3
    assert client.marks()[-1] == 100


def test_handlers_run_while_a_client_waits_for_the_next_server(signals: Signals) -> None:
    with contextlib.ExitStack() as servers:
        first = servers.enter_context(ServerProcess(TARGET))
        with shmrpc.sync.connect(NAME, reconnect=True, timeout=HANGS) as client:
            assert client.add(1, 2) == 3
            first.kill()
            with pytest.raises(Interrupted), signals.coming(raising=True):
                client.wait_for_ready()
            with signals.coming(lambda: servers.enter_context(ServerProcess(TARGET))):
                client.wait_for_ready()
            assert client.add(1, 2) == 3


def test_a_client_closes_during_many_signals(server: ServerProcess, signals: Signals) -> None:
    done = threading.Event()
    with signals.coming(done.set):
        while not done.is_set():
            with shmrpc.sync.connect(NAME) as client:
                assert client.add(1, 2) == 3


async def test_handlers_run_while_a_loop_waits(client: shmrpc.Client, signals: Signals) -> None:
    """Both kinds of loops wait in system calls, which are interrupted and go on."""
    opened = threading.Event()
    with signals.coming(opened.set):
        while not opened.is_set():
            assert await client.sleep(0.01, "slept") == "slept"
    assert len(signals.handled) == SIGNALS


def test_a_server_goes_on_during_many_signals(two: Two, server: ServerProcess) -> None:
    """SIGHUP and SIGWINCH end nothing at any moment of the server."""
    client, other = two
    waiting: list[object] = []
    thread = threading.Thread(target=lambda: waiting.append(client.wait_for("gate")), daemon=True)
    thread.start()
    for i in range(50):
        os.kill(server.pid, signal.SIGWINCH)
        os.kill(server.pid, signal.SIGHUP)
        assert other.add(i, 1) == i + 1
    other.open_gate("gate")
    thread.join(HANGS)
    assert waiting == ["gate"]
