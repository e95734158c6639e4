"""Every test meets in a directory of its own and leaves /dev/shm as it found it."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import os
import signal
import tempfile
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from types import ModuleType

import pytest

import shmrpc
from shmrpc.host import cleanup
from tests.helpers.host_names import host_to_oneself, nothing_is_left, ours_in_shm
from tests.helpers.loops import in_order_of_loops, loops_of
from tests.helpers.member_process import MemberProcess
from tests.helpers.nats_servers import NatsServer
from tests.helpers.server_process import PATIENCE, ServerProcess
from tests.helpers.services import service
from tests.helpers.wire_client import WireClient


def pytest_configure() -> None:
    """Gives SIGINT its default, and NumPy one thread, here and in what the tests start.

    A shell starts what is to run in the background with SIGINT ignored, and its children inherit that. A handler is
    not inherited: the programs that the tests start get the signal's default.
    """
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    # NumPy's threads, of which no test has work, would spin for a while in each process that imports it.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")


def pytest_collection_finish() -> None:
    """Spares the garbage collector thousands of tests, and what they import: a full collection took 0.1 s of them."""
    _spare_the_collector()


@pytest.fixture(scope="module", autouse=True)
def spared_collector() -> Iterator[None]:
    """Spares it what a module of tests leaves to stay, as what it has imported."""
    yield
    _spare_the_collector()


def _spare_the_collector() -> None:
    gc.collect()
    gc.freeze()


#: Modules that take longest. They are begun first, so that no worker is left with one when the others are done.
LONGEST = (
    "test_benchmark_questions",
    "test_pool",
    "test_store_owner",
    "test_hostile_members",
    "test_serve",
    "test_docs",
    "test_hosts_apart",
    "test_death_points",
    "test_example_app",
    "test_benchmark_rivals",
    "test_queue_death",
    "test_lifecycle",
    "test_testing_process",
    "test_death",
    "test_large_streams",
    "test_address_space",
    "test_stopped_while_connecting",
    "test_typing",
    "test_handlers_that_raise",
    "test_object_deaths",
    "test_many_clients",
    "test_interruptions",
    "test_model",
    "test_describe",
)


@pytest.hookimpl(tryfirst=True)  # Before pytest deselects by mark.
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark tests by what they need, and put the longest modules first; xdist hands them out in this order."""
    ids = {item.nodeid for item in items}
    for item in items:
        first, second = in_order_of_loops(getattr(item, "originalname", item.name))
        if second in item.nodeid and item.nodeid.replace(second, first) in ids:
            item.add_marker("second_loop")
        if "nats" in getattr(item, "fixturenames", ()) or any(
            each == "nats" for each in _parameters(item) if isinstance(each, str)
        ):
            item.add_marker("nats")
    places = {name: place for place, name in enumerate(LONGEST)}
    items.sort(key=lambda item: places.get(item.path.stem, len(places)))


def _parameters(item: pytest.Item) -> tuple[object, ...]:
    return tuple(item.callspec.params.values()) if hasattr(item, "callspec") else ()


def pytest_asyncio_loop_factories(item: pytest.Item) -> dict[str, Callable[[], asyncio.AbstractEventLoop]]:
    """Every asyncio test runs on both loops, unless it or its module says that this makes no difference."""
    assert isinstance(item, pytest.Function)
    marked = any("loop_factories" in mark.kwargs for mark in item.iter_markers("asyncio"))
    return loops_of(None if marked else getattr(item.module, "LOOP", None), item.originalname)


@pytest.fixture(scope="session")
def meeting_places() -> Iterator[Path]:
    """Where the directories are in which services meet: a socket's path has room for 107 bytes, tmp_path takes most."""
    with tempfile.TemporaryDirectory(prefix="t-", ignore_cleanup_errors=True) as directory:
        yield Path(directory)


@pytest.fixture(autouse=True)
def runtime(meeting_places: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The directory where services meet."""
    base = Path(tempfile.mkdtemp(dir=meeting_places))
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(base))
    monkeypatch.delenv("SHMRPC_DIRECTORY", raising=False)
    before = ours_in_shm()
    yield base / "shmrpc"
    # Names live for the moments of a handshake, also those of another run on the same machine. A leak stays.
    assert nothing_is_left(before)


def target_of(module: ModuleType) -> str:
    """What a module's server serves: the tested service, or what the module names as its ``TARGET``."""
    return getattr(module, "TARGET", "tests.helpers.services:service")


#: By target: the endpoint that forgets what the last test left there.
FORGET = {"tests.helpers.array_service:service": "let_go"}


class LastingServers:
    """Servers that tests share: one of each target, each met in a directory of its own, begun when a test wants it."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._servers: dict[str, tuple[ServerProcess, Path]] = {}

    @contextlib.contextmanager
    def met(self, target: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[ServerProcess]:
        """The server of a target, for a test: from now on this meets where that does, and has to leave it as it was."""
        if target not in self._servers:
            directory = Path(tempfile.mkdtemp(dir=self._directory))
            monkeypatch.setenv("XDG_RUNTIME_DIR", str(directory))
            self._servers[target] = ServerProcess(target), directory
        server, directory = self._servers[target]
        monkeypatch.setenv("XDG_RUNTIME_DIR", str(directory))
        if target in FORGET:
            with shmrpc.sync.connect(server.name, timeout=PATIENCE) as client:
                client.call(FORGET[target])
        yield server
        assert server.process.stderr is not None
        os.set_blocking(server.process.stderr.fileno(), False)
        with contextlib.suppress(BlockingIOError):  # What it says is read, so that it never waits for that.
            while os.read(server.process.stderr.fileno(), 1 << 16):
                pass
        if server.process.poll() is not None:
            del self._servers[target]
            pytest.fail("the server has ended, and is not this test's own")

    def end(self) -> None:
        with contextlib.ExitStack() as stack:
            for server, _ in self._servers.values():
                stack.enter_context(server)


@pytest.fixture(scope="session")
def lasting_servers(meeting_places: Path) -> Iterator[LastingServers]:
    servers = LastingServers(meeting_places)
    yield servers
    servers.end()


@pytest.fixture
def lasting_server(
    request: pytest.FixtureRequest, lasting_servers: LastingServers, runtime: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[ServerProcess]:
    """The server of the module's target that all tests of this run share."""
    with lasting_servers.met(target_of(request.module), monkeypatch) as server:
        yield server


@pytest.fixture
def server(request: pytest.FixtureRequest) -> Iterator[ServerProcess]:
    """The service in another process, which takes a third of a second to start.

    The tests of modules that say ``LASTING = True`` share one of each target, but for tests marked as ``own_server``:
    those that end it, or look at what it counts over all of its clients.
    """
    if getattr(request.module, "LASTING", False) and request.node.get_closest_marker("own_server") is None:
        yield request.getfixturevalue("lasting_server")
        return
    with ServerProcess(target_of(request.module)) as process:
        yield process


@pytest.fixture
async def client(server: ServerProcess) -> AsyncIterator[shmrpc.Client]:
    """A client of the server in another process."""
    async with shmrpc.connect(server.name, timeout=PATIENCE) as client:
        yield client


@pytest.fixture
def wire(server: ServerProcess) -> Iterator[WireClient]:
    """A client of it that is made of docs/wire.md alone."""
    with WireClient(server.name) as client:
        yield client


@pytest.fixture
async def near() -> AsyncIterator[shmrpc.Client]:
    """A client of a server in the same loop."""
    async with shmrpc.serve(service), shmrpc.connect("tested", timeout=PATIENCE) as client:
        yield client


@pytest.fixture
def sync_client(server: ServerProcess) -> Iterator[shmrpc.sync.Client]:
    """A client without a loop of the server in another process."""
    with shmrpc.sync.connect(server.name, timeout=PATIENCE) as client:
        yield client


@pytest.fixture
def other() -> Iterator[MemberProcess]:
    """Another process, which opens names."""
    with MemberProcess() as member:
        yield member
    with host_to_oneself():  # What a last member leaves that was killed is there until a clean-up.
        cleanup.clean()


@pytest.fixture(scope="session")
def nats() -> Iterator[NatsServer]:
    """A server of NATS that the tests of this process share: none of them kills it."""
    server = NatsServer()
    yield server
    server.close()
