"""No descriptor left, on either side: the error names the process and its limit; other clients go on."""

from __future__ import annotations

import contextlib
import errno
import functools
import itertools
import logging
import os
import re
import resource
import socket
import time
from collections.abc import Iterator
from unittest.mock import Mock

import pytest

import shmrpc
from shmrpc.host.log_throttle import LogThrottle
from shmrpc.supervisor import messages
from shmrpc.supervisor.worker import SupervisedWorker
from tests.helpers import traces
from tests.helpers.server_process import ServerProcess, eventually, timeouts
from tests.helpers.time_bound import bounded
from tests.reliability import figures

TARGET = "tests.reliability.watched_service:service"

NAME = "tested.watched"


@pytest.fixture(autouse=True)
def in_time() -> Iterator[None]:
    with bounded():
        yield


def words(pid: int, limit: int) -> str:
    """Return the client's error text for a process without descriptors."""
    return (
        rf"no descriptor left for a connection: process {pid} has as many files open as it may: {limit} \(RLIMIT_NOFIL"
    )


def limit_of(server: ServerProcess, limit: int) -> None:
    _, most = resource.prlimit(server.pid, resource.RLIMIT_NOFILE)
    resource.prlimit(server.pid, resource.RLIMIT_NOFILE, (limit, most))


@contextlib.contextmanager
def own_limit(limit: int) -> Iterator[None]:
    soft, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (limit, most))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, most))


def test_a_server_at_its_limit_refuses_new_clients_and_serves_the_others(server: ServerProcess) -> None:
    with contextlib.ExitStack() as stack:
        clients = [stack.enter_context(shmrpc.sync.connect(NAME)) for _ in range(3)]
        limit = clients[0].holds()["descriptors"] + 12
        limit_of(server, limit)
        with pytest.raises(shmrpc.ServiceUnavailable, match=words(server.pid, limit)):
            for _ in range(20):
                clients.append(stack.enter_context(shmrpc.sync.connect(NAME, timeout=1)))
        assert 3 < len(clients) < 10
        for i, client in enumerate(clients):
            assert client.add(i, 1) == i + 1
        clients.pop(0).close()
        with shmrpc.sync.connect(NAME, timeout=20) as next_one:
            assert next_one.add(1, 2) == 3
        figures.note("a server at its limit of descriptors", connections=len(clients) + 1, limit=limit)


def refusal_text() -> str:
    """Return the error of a refused client, from an attempt in which the server got a CPU in time."""
    for timeout in timeouts():
        with pytest.raises(shmrpc.ServiceUnavailable) as refused:
            shmrpc.sync.connect(NAME, timeout=timeout).__enter__()
        if "it gets no CPU" not in str(refused.value):
            return str(refused.value)
    raise AssertionError


def test_a_server_without_any_descriptor_refuses_with_the_reason(server: ServerProcess) -> None:
    """The server accepts a client with the one descriptor that it reserves for this."""
    with shmrpc.sync.connect(NAME) as client:
        base = client.holds()["descriptors"]
        limit = base + 10
        limit_of(server, limit)
        for _ in range(3):
            assert eventually(lambda: client.holds()["descriptors"] == base, 30)
            assert client.take_descriptors() > 0
            said = rf"no server of '{NAME}'.*the last server refused: .*{words(server.pid, limit)}"
            for _ in range(3):
                assert re.search(said, refusal_text())
            assert client.add(1, 2) == 3
            client.give_descriptors(1000)
            with shmrpc.sync.connect(NAME, timeout=20) as other:
                assert other.add(1, 2) == 3
        assert "turned away" in server_log(server)


@pytest.mark.slow
def test_a_worker_without_any_descriptor_refuses_with_the_reason() -> None:
    """The kernel silently drops the descriptor of a client that does not fit into the worker's table."""
    with ServerProcess(TARGET, "--workers", "1") as server:
        with shmrpc.sync.connect(NAME) as client:
            worker = client.pid()
            base = client.holds()["descriptors"]
            _, most = resource.prlimit(worker, resource.RLIMIT_NOFILE)
            limit = base + 10
            resource.prlimit(worker, resource.RLIMIT_NOFILE, (limit, most))
            assert client.take_descriptors() > 0
            with pytest.raises(shmrpc.ServiceUnavailable, match=words(worker, limit)):
                shmrpc.sync.connect(NAME, timeout=1).__enter__()  # On a busy machine a worker answers late.
            client.give_descriptors(1000)
            with shmrpc.sync.connect(NAME, timeout=20) as other:
                assert other.add(1, 2) == 3
        log = server_log(server)
        assert "a client was lost" not in log
        assert log.count("no descriptor left") == 1, log


async def test_a_client_whose_descriptor_a_worker_cannot_take_is_counted_and_logged(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The reserved descriptor is missing, as if another thread had just taken it."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    worker, hoard = SupervisedWorker(theirs.detach()), list[int]()
    worker._loop = Mock()
    monkeypatch.setattr(worker._spare_descriptor, "close", lambda: None)
    with ours:
        socket.send_fds(ours, [messages.encode(messages.AdoptClient(NAME))], [ours.fileno()])
        with own_limit(max(map(int, os.listdir("/proc/self/fd"))) + 1), contextlib.suppress(OSError):
            while True:
                hoard.append(os.dup(0))
        try:
            with own_limit(max(hoard) + 1):
                worker._on_message()
        finally:
            for each in hoard:
                os.close(each)
        monkeypatch.undo()
        worker.abandon()
    assert worker._adopted == 1, "the supervisor would wait for this client for ever"
    assert re.search(words(os.getpid(), max(hoard) + 1), caplog.text)


@pytest.mark.slow
@pytest.mark.parametrize("some", [True, False], ids=["too few left", "none left"])
def test_the_log_reports_missing_descriptors_once_and_not_at_each_retry(server: ServerProcess, some: bool) -> None:
    with shmrpc.sync.connect(NAME) as client:
        limit_of(server, client.holds()["descriptors"] + 5)
        if not some:
            assert client.take_descriptors() > 0
        for _ in range(3):
            with pytest.raises(shmrpc.ServiceUnavailable, match="no descriptor left"):
                shmrpc.sync.connect(NAME, timeout=0.5).__enter__()
        client.give_descriptors(1000)
    log = server_log(server)
    assert log.count("no descriptor left") == 1, log


def test_each_episode_of_refusals_is_logged_once(monkeypatch: pytest.MonkeyPatch) -> None:
    refusals = LogThrottle()
    levels = []
    for now in (0.0, 1.0, 9.0, 18.0, 40.0, 41.0):
        monkeypatch.setattr(time, "monotonic", functools.partial(float, now))
        levels.append(refusals.level_for("full", logging.WARNING))
        refusals.level_for("another reason", logging.WARNING)
    monkeypatch.undo()
    warning, debug = logging.WARNING, logging.DEBUG
    assert levels == [warning, debug, debug, debug, warning, debug]


def server_log(server: ServerProcess) -> str:
    """Stop the server; return its log."""
    return server.stop()


async def test_a_waiting_client_connects_when_descriptors_are_free_again(server: ServerProcess) -> None:
    async with shmrpc.connect(NAME) as client:
        limit_of(server, (await client.holds())["descriptors"] + 10)
        await client.take_descriptors()
        with pytest.raises(shmrpc.ServiceUnavailable, match="no descriptor left"):
            await shmrpc.connect(NAME, timeout=0.05)
        waiting = shmrpc.connect(NAME, timeout=30)
        await client.notify("give_descriptors", 1000)
        async with waiting:
            assert await waiting.add(1, 2) == 3


def is_unused(descriptor: int) -> bool:
    """Return True if no open file has this number. The limit applies to numbers, and lower numbers may be unused."""
    return not os.path.exists(f"/proc/self/fd/{descriptor}")


@pytest.mark.parametrize("blocking", [False, True])
async def test_a_client_at_its_limit_names_its_own_process(server: ServerProcess, blocking: bool) -> None:
    """Descriptors may run out at each step of connecting: the error is the same, and no descriptor stays open."""
    base = traces.settled_descriptors()
    unused = list(itertools.islice(filter(is_unused, itertools.count()), 20))
    refused = 0

    async def connect() -> None:
        if blocking:
            with shmrpc.sync.connect(NAME, timeout=30) as client:
                client.add(1, 2)
        else:
            async with shmrpc.connect(NAME, timeout=30) as near:
                await near.add(1, 2)

    for limit in unused:
        said: list[str] = []
        with own_limit(limit):
            try:
                await connect()
            except shmrpc.SharedMemoryError as error:
                said.append(str(error))
        if not said:
            break
        refused += 1
        assert re.search(words(os.getpid(), limit), said[0])
        assert traces.descriptors() == base
    assert 3 < refused < 12
    assert eventually(lambda: traces.descriptors() == base, 30)
    await connect()


#: The end of the error text of a loan whose descriptor a process cannot receive.
UNTAKEN = r"cannot be read: the process to receive it cannot take the descriptor of extent 0 .*RLIMIT_NOFILE.*ulimit -n"
LARGE = 1 << 20


def test_a_server_that_cannot_receive_a_loan_refuses_that_call_and_no_other(server: ServerProcess) -> None:
    with shmrpc.sync.connect(NAME) as client, shmrpc.sync.connect(NAME) as other:
        other.add(1, 2)  # From here on the server has all descriptors that it keeps for this client.
        limit_of(server, client.holds()["descriptors"] + 10)
        assert client.take_descriptors() > 0
        for _ in range(2):
            with pytest.raises(shmrpc.Overloaded, match=UNTAKEN):
                client.length(bytes(LARGE))
            assert client.add(1, 2) == other.add(1, 2) == 3
        other.give_descriptors(1000)
        for each in (client, other):
            assert each.length(bytes(LARGE)) == LARGE, "on the same connection, once there are some"


@contextlib.contextmanager
def none_left() -> Iterator[None]:
    """Use up all descriptors of this process during the block."""
    hoard: list[int] = []
    with own_limit(traces.settled_descriptors() + 10):
        try:
            with contextlib.suppress(OSError):
                while True:
                    hoard.append(os.dup(0))
            yield
        finally:
            for descriptor in hoard:
                os.close(descriptor)


def test_a_thread_client_that_cannot_receive_a_loan_loses_only_that_answer(server: ServerProcess) -> None:
    with shmrpc.sync.connect(NAME) as client:
        client.add(1, 2)
        with none_left():
            for _ in range(2):
                with pytest.raises(shmrpc.SharedMemoryError, match=UNTAKEN) as raised:
                    client.body_of(LARGE)
                assert raised.value.errno == errno.EMFILE
                with pytest.raises(shmrpc.SharedMemoryError, match=UNTAKEN):
                    next(client.flood(LARGE))
                assert client.add(1, 2) == 3
        assert len(client.body_of(LARGE)) == LARGE


async def test_a_loop_client_that_cannot_receive_a_loan_loses_only_that_answer(server: ServerProcess) -> None:
    async with shmrpc.connect(NAME) as client:
        await client.add(1, 2)
        with none_left():
            for _ in range(2):
                with pytest.raises(shmrpc.SharedMemoryError, match=UNTAKEN) as raised:
                    await client.body_of(LARGE)
                assert raised.value.errno == errno.EMFILE
                with pytest.raises(shmrpc.SharedMemoryError, match=UNTAKEN):
                    async for _ in client.flood(LARGE):
                        pass
                assert await client.add(1, 2) == 3
        assert len(await client.body_of(LARGE)) == LARGE


def test_a_client_without_a_descriptor_to_lend_raises_for_a_buffer_and_copies_arguments(server: ServerProcess) -> None:
    """A buffer in shared memory needs a descriptor; a copied argument travels in the frame."""
    with shmrpc.sync.connect(NAME) as client:
        client.add(1, 2)
        with none_left():
            with pytest.raises(
                shmrpc.SharedMemoryError, match="no descriptor left for a buffer in shared memory: .*ulimit -n"
            ) as raised:
                client.buffer(LARGE)
            assert raised.value.errno == errno.EMFILE
            assert client.length(bytes(LARGE)) == LARGE
        assert len(client.buffer(LARGE)) == LARGE
