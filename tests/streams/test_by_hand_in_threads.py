"""Streams that threads write and read by hand; what holds in a loop too is in tests/contract."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

import pytest

import shmrpc
from tests.helpers.server_process import PATIENCE, ServerProcess

TARGET = "tests.helpers.stream_service:service"
SHARED_SERVER = True


@pytest.fixture
def client(sync_client: shmrpc.sync.Client) -> shmrpc.sync.Client:
    return sync_client


def eventually(client: shmrpc.sync.Client, name: str, count: int) -> bool:
    end = time.monotonic() + PATIENCE
    while client.seen().get(name, 0) < count and time.monotonic() < end:
        time.sleep(0.01)
    return bool(client.seen().get(name, 0) >= count)


def run(*works: Callable[[], object]) -> None:
    """Each in a thread of its own; raises what one raises."""
    raised: list[BaseException] = []

    def guarded(work: Callable[[], object]) -> None:
        try:
            work()
        except BaseException as error:
            raised.append(error)

    threads = [threading.Thread(target=guarded, args=(work,), daemon=True) for work in works]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE)
        assert not thread.is_alive(), "it hangs"
    if raised:
        raise raised[0]


def test_one_thread_writes_while_another_reads_and_others_call(client: shmrpc.sync.Client) -> None:
    items = range(20_000)
    read: list[int] = []
    with client.open("doubled") as call:

        def write() -> None:
            for n in items:
                call.write(n)
            call.done_writing()

        def add() -> None:
            assert [client.add(n, 1) for n in range(500)] == list(range(1, 501))

        run(write, lambda: read.extend(call), add, add)
    assert read == [2 * n for n in items]


class OvertakenLock:
    """A lock that another thread acquires and releases before the first acquisition."""

    def __init__(self, lock: Any, first: Callable[[], None]) -> None:
        self._lock, self._first = lock, first

    def try_acquire(self) -> Any:
        first, self._first = self._first, lambda: None
        first()
        return self._lock.try_acquire()


def test_a_reader_does_not_wait_for_items_that_another_thread_has_received(client: shmrpc.sync.Client) -> None:
    with client.open("doubled") as call:
        call.write(1)
        conversation: Any = call._stream_exchange

        def receive() -> None:
            while not conversation._items:
                assert conversation._receive(conversation._next_frame, 0.0)

        def read() -> None:
            assert call.read() == 2

        conversation._receiving = OvertakenLock(conversation._receiving, receive)
        run(read)


def test_a_reader_that_has_used_up_the_credit_grants_more_before_it_waits(client: shmrpc.sync.Client) -> None:
    many = 200_000
    with client.open("count", many) as call:
        conversation: Any = call._stream_exchange
        received, before = 0, -1
        while received != before:
            time.sleep(0.2)
            conversation.receive_all()
            before, received = received, len(conversation._items)
        assert 0 < received < many, "all that there was credit for"
        read: list[int] = []
        run(lambda: read.extend(call))
    assert read == list(range(many))


class LateCredit:
    """A window for which another thread receives credit just after its writer has looked."""

    closed = is_open = False

    def try_spend(self, size: int) -> bool:
        had, self.is_open = self.is_open, True
        return had


def test_a_writer_does_not_wait_for_credit_that_another_thread_has_received(
    client: shmrpc.sync.Client,
) -> None:
    with client.open("doubled") as call:
        call.write(1)
        assert call.read() == 2
        given: Any = call
        window, given._window = given._window, LateCredit()
        run(lambda: call.write(2))
        given._window = window
        assert call.read() == 4


def test_stop_ends_who_reads(client: shmrpc.sync.Client) -> None:
    before = client.seen().get("doubled:left", 0)
    begun = threading.Event()

    def read() -> None:
        with client.open("doubled") as call:
            begun.set()
            with pytest.raises(shmrpc.CallStopped):
                call.read()

    def stop() -> None:
        assert begun.wait(PATIENCE)
        client.stop()

    run(read, stop)
    client.resume()
    assert eventually(client, "doubled:left", before + 1)


def test_an_exception_of_a_signal_handler_ends_the_call(
    client: shmrpc.sync.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = client.seen().get("doubled:left", 0)
    with client.open("doubled") as call:
        call.write(1)

        def interrupted(*args: object) -> None:
            raise KeyboardInterrupt

        with monkeypatch.context() as patched:
            patched.setattr(call._stream_exchange, "_feed", interrupted)
            with pytest.raises(KeyboardInterrupt):
                call.read()
        with pytest.raises(shmrpc.LocalProtocolError, match="KeyboardInterrupt"):
            call.read()
    assert client.add(1, 2) == 3
    assert eventually(client, "doubled:left", before + 1)


def test_a_connection_that_ends_ends_who_waits() -> None:
    with ServerProcess("tests.helpers.stream_service:service") as server, shmrpc.sync.connect(server.name) as client:
        with client.open("doubled") as call:
            server.kill()
            with pytest.raises(shmrpc.ConnectionLost):
                call.read()
            with pytest.raises(shmrpc.ConnectionLost):
                call.write(1)


def test_an_opened_call_cannot_be_used_outside_its_block(client: shmrpc.sync.Client) -> None:
    opened = client.open("total")
    for use in (lambda: opened.write(1), opened.done_writing, opened.read, opened.result):
        with pytest.raises(shmrpc.LocalProtocolError, match=r"is not open: use `with client\.open"):
            use()
