"""Fixtures of all tests: each test has its own rendezvous directory and leaves /dev/shm as it was."""

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
    """Restore the default handler of SIGINT, and give NumPy one thread, in this process and its children.

    A shell starts background processes with SIGINT ignored, and children inherit that. A handler is not inherited: the
    programs that the tests start get the signal's default action.
    """
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    # No test has work for NumPy's threads, and they would spin for a while in each process that imports it.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")


def pytest_collection_finish() -> None:
    """Exclude the collected tests from garbage collection: with them, a full collection took 0.1 s."""
    _freeze_objects()


@pytest.fixture(scope="module", autouse=True)
def frozen_garbage() -> Iterator[None]:
    """Exclude from garbage collection the objects that survive a module's tests, such as imported modules."""
    yield
    _freeze_objects()


def _freeze_objects() -> None:
    gc.collect()
    gc.freeze()


#: The slowest modules. Workers start with them, so that none of them runs alone at the end.
LONGEST = (
    "test_benchmark_questions",
    "test_pool",
    "test_store_owner",
    "test_hostile_members",
    "test_serve",
    "test_docs",
    "test_host_partitions",
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
        texts = [each for each in _parameters(item) if isinstance(each, str)]
        if "nats" in getattr(item, "fixturenames", ()) or "nats" in texts:
            item.add_marker("nats")
    places = {name: place for place, name in enumerate(LONGEST)}
    items.sort(key=lambda item: places.get(item.path.stem, len(places)))


def _parameters(item: pytest.Item) -> tuple[object, ...]:
    return tuple(item.callspec.params.values()) if hasattr(item, "callspec") else ()


def pytest_asyncio_loop_factories(item: pytest.Item) -> dict[str, Callable[[], asyncio.AbstractEventLoop]]:
    """Return both event loops for an asyncio test, or one if the test or its module asks for one."""
    assert isinstance(item, pytest.Function)
    marked = any("loop_factories" in mark.kwargs for mark in item.iter_markers("asyncio"))
    return loops_of(None if marked else getattr(item.module, "LOOP", None), item.originalname)


@pytest.fixture(scope="session")
def rendezvous_root() -> Iterator[Path]:
    """Return the parent of all rendezvous directories: short, because a socket's path has at most 107 bytes."""
    with tempfile.TemporaryDirectory(prefix="t-", ignore_cleanup_errors=True) as directory:
        yield Path(directory)


@pytest.fixture(autouse=True)
def runtime(rendezvous_root: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Set up an empty rendezvous directory, and check afterwards that the test left nothing in /dev/shm."""
    base = Path(tempfile.mkdtemp(dir=rendezvous_root))
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(base))
    monkeypatch.delenv("SHMRPC_DIRECTORY", raising=False)
    before = ours_in_shm()
    yield base / "shmrpc"
    # Another run on the same machine may have names there during a handshake; only a leak stays.
    assert nothing_is_left(before)


def target_of(module: ModuleType) -> str:
    """Return the service of a module's server: its ``TARGET``, by default the tested service."""
    return getattr(module, "TARGET", "tests.helpers.services:service")


#: By target: the endpoint that resets the state of the last test.
FORGET = {"tests.helpers.array_service:service": "let_go"}


class SharedServers:
    """Servers that tests share: one for each target, with its own rendezvous directory, started on first use."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._servers: dict[str, tuple[ServerProcess, Path]] = {}

    @contextlib.contextmanager
    def use(self, target: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[ServerProcess]:
        """Start or reuse the server of a target, and use its rendezvous directory from now on.

        The test must leave the server as it was.
        """
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
        with contextlib.suppress(BlockingIOError):  # Drain its output, so that the server never blocks on a full pipe.
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
def shared_servers(rendezvous_root: Path) -> Iterator[SharedServers]:
    servers = SharedServers(rendezvous_root)
    yield servers
    servers.end()


@pytest.fixture
def shared_server(
    request: pytest.FixtureRequest, shared_servers: SharedServers, runtime: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[ServerProcess]:
    """Return the server of the module's target that all tests of this run share."""
    with shared_servers.use(target_of(request.module), monkeypatch) as server:
        yield server


@pytest.fixture
def server(request: pytest.FixtureRequest) -> Iterator[ServerProcess]:
    """Start the service in another process, which takes a third of a second.

    The tests of modules with ``SHARED_SERVER = True`` share a server per target, except tests marked ``own_server``:
    those end the server, or read its counters over all clients.
    """
    if getattr(request.module, "SHARED_SERVER", False) and request.node.get_closest_marker("own_server") is None:
        yield request.getfixturevalue("shared_server")
        return
    with ServerProcess(target_of(request.module)) as process:
        yield process


@pytest.fixture
async def client(server: ServerProcess) -> AsyncIterator[shmrpc.Client]:
    """Connect a client to the server in another process."""
    async with shmrpc.connect(server.name, timeout=PATIENCE) as client:
        yield client


@pytest.fixture
def wire(server: ServerProcess) -> Iterator[WireClient]:
    """Connect a client that is written from docs/wire.md alone to that server."""
    with WireClient(server.name) as client:
        yield client


@pytest.fixture
async def near() -> AsyncIterator[shmrpc.Client]:
    """Connect a client to a server in the same loop."""
    async with shmrpc.serve(service), shmrpc.connect("tested", timeout=PATIENCE) as client:
        yield client


@pytest.fixture
def sync_client(server: ServerProcess) -> Iterator[shmrpc.sync.Client]:
    """Connect a blocking client to the server in another process."""
    with shmrpc.sync.connect(server.name, timeout=PATIENCE) as client:
        yield client


@pytest.fixture
def other() -> Iterator[MemberProcess]:
    """Start another process that attaches to shared objects."""
    with MemberProcess() as member:
        yield member
    with host_to_oneself():  # A last member that was killed leaves files until a clean-up.
        cleanup.clean()


@pytest.fixture(scope="session")
def nats() -> Iterator[NatsServer]:
    """Start a NATS server that the tests of this process share; no test kills it."""
    server = NatsServer()
    yield server
    server.close()
