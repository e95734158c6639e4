"""Streams that threads write and read by hand: in step with the handler, exact, and with an end on both sides."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

import pytest

import shmrpc
from tests.helpers.server_process import PATIENCE, ServerProcess

TARGET = "tests.helpers.stream_service:service"
LASTING = True


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


def test_ping_and_pong(client: shmrpc.sync.Client) -> None:
    before = client.seen().get("doubled:finished", 0)
    with client.open("doubled") as call:
        for n in range(100):
            call.write(n)
            assert call.read() == 2 * n
        call.done_writing()
        for _ in range(2):
            with pytest.raises(shmrpc.EndOfStream):
                call.read()
        with pytest.raises(shmrpc.LocalProtocolError, match="after done_writing"):
            call.write(1)
        call.done_writing()
    assert eventually(client, "doubled:finished", before + 1)


def test_one_result(client: shmrpc.sync.Client) -> None:
    with client.open("total", scale=2) as call:
        for n in range(10):
            call.write(n)
        call.done_writing()
        assert [call.result(), call.result()] == [90, 90]
        with pytest.raises(shmrpc.LocalProtocolError, match="one result"):
            call.read()


def test_items_to_read_alone(client: shmrpc.sync.Client) -> None:
    with client.open("count", 20_000) as call:
        assert [call.read(), call.read()] == [0, 1]
        assert list(call) == list(range(2, 20_000))
        with pytest.raises(shmrpc.LocalProtocolError, match="takes no stream"):
            call.write(1)
        with pytest.raises(shmrpc.LocalProtocolError, match="no result"):
            call.result()


def test_a_write_waits_while_the_handler_has_enough(client: shmrpc.sync.Client) -> None:
    with client.open("tolerate_slowly", 3) as call:
        written = 0
        with pytest.raises(shmrpc.EndOfStream, match="no more"):
            while True:
                call.write(bytes(10_000))
                written += 1
        assert call.result() == 3
    assert written < 30, "credit bounds what is under way"


def test_leaving_the_block_cancels_the_handler(client: shmrpc.sync.Client) -> None:
    before = client.seen().get("ticks:left", 0)
    with client.open("ticks", 60) as call:
        call.read()
    assert eventually(client, "ticks:left", before + 1)
    with pytest.raises(shmrpc.EndOfStream):
        call.read()


def test_what_the_handler_raises(client: shmrpc.sync.Client) -> None:
    with client.open("fail_after", 2) as call:
        assert [call.read(), call.read()] == [0, 1]
        for _ in range(2):
            with pytest.raises(ValueError, match="after 2"):
                call.read()
    with client.open("refuse") as call:
        with pytest.raises(ValueError, match="three"):
            while True:
                call.write(3)
        with pytest.raises(ValueError, match="three"):
            call.result()


def test_a_deadline_ends_who_reads_and_who_writes(client: shmrpc.sync.Client) -> None:
    with client.with_options(timeout=0.5).open("idle") as call:
        with pytest.raises(shmrpc.DeadlineExceeded):
            while True:
                call.write(bytes(10_000))
        with pytest.raises(shmrpc.DeadlineExceeded):
            call.result()
    assert client.add(1, 2) == 3


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


def test_several_threads_write_and_read(client: shmrpc.sync.Client) -> None:
    read: list[int] = []
    with client.open("doubled") as call:

        def write() -> None:
            for n in range(500):
                call.write(n)

        def write_all() -> None:
            run(write, write, write)
            call.done_writing()

        run(write_all, *[lambda: read.extend(call)] * 2)
    assert sorted(read) == sorted(2 * n for n in [*range(500)] * 3)


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


def test_an_item_that_cannot_be_sent(client: shmrpc.sync.Client) -> None:
    with client.open("total") as call:
        with pytest.raises(shmrpc.EncodeError, match="object"):
            call.write(object())
        call.write(1)
        call.done_writing()
        assert call.result() == 1


def test_what_the_handler_of_a_signal_raises_ends_the_call(
    client: shmrpc.sync.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = client.seen().get("doubled:left", 0)
    with client.open("doubled") as call:
        call.write(1)

        def interrupted(*args: object) -> None:
            raise KeyboardInterrupt

        with monkeypatch.context() as patched:
            patched.setattr(call._conversation, "_feed", interrupted)
            with pytest.raises(KeyboardInterrupt):
                call.read()
        with pytest.raises(shmrpc.LocalProtocolError, match="KeyboardInterrupt"):
            call.read()
    assert client.add(1, 2) == 3
    assert eventually(client, "doubled:left", before + 1)


def test_what_cannot_be_opened(client: shmrpc.sync.Client) -> None:
    for wrong, words in (("add", "no streams"), ("zipped", "takes 2 streams")):
        with pytest.raises(shmrpc.InvalidArguments, match=words), client.open(wrong):
            pass
    with pytest.raises(shmrpc.InvalidArguments, match="leave out 'numbers'"), client.open("total", numbers=[1]):
        pass
    assert client.add(1, 2) == 3


def test_what_a_handler_sets_as_metadata_is_there_with_the_first_item(client: shmrpc.sync.Client) -> None:
    replies: dict[str, str | bytes] = {}
    with client.with_options(reply_metadata=replies).open("metadata_and_items", 2) as call:
        call.read()
        assert call.reply_metadata


def test_a_connection_that_ends_ends_who_waits() -> None:
    with ServerProcess("tests.helpers.stream_service:service") as server, shmrpc.sync.connect(server.name) as client:
        with client.open("doubled") as call:
            server.kill()
            with pytest.raises(shmrpc.ConnectionLost):
                call.read()
            with pytest.raises(shmrpc.ConnectionLost):
                call.write(1)


def test_a_call_that_is_opened_without_its_block_says_so(client: shmrpc.sync.Client) -> None:
    opened = client.open("total")
    for use in (lambda: opened.write(1), opened.done_writing, opened.read, opened.result):
        with pytest.raises(shmrpc.LocalProtocolError, match=r"not called.*`with client\.open"):
            use()
