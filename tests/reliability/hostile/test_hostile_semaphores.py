"""A peer that overwrites the semaphores of its connection, which both sides write: no process aborts or hangs."""

from __future__ import annotations

import contextlib
import mmap
import os
import signal
import struct
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import posix_ipc
import pytest

import shmrpc
from shmrpc import _core
from shmrpc.transport.shm.segment import NewSegment
from tests.helpers.hostile_server import Died, ScriptedServer, connected, scripted_server
from tests.helpers.server_process import PATIENCE, eventually
from tests.helpers.time_bound import bounded
from tests.helpers.wire_client import ON_SEMAPHORE, READER_WAITS, WireClient
from tests.reliability import figures
from tests.reliability.hostile.hostile_peers import Polite, Watched, served


@pytest.fixture(autouse=True)
def in_time() -> Iterator[None]:
    with bounded():
        yield


def semaphore(value: int, waiters: int, private: int) -> bytes:
    """Return the contents of glibc's semaphore."""
    return struct.pack("=IIII16x", value, waiters, private, 0)


#: Contents of a semaphore, which glibc reads as a count of rings, a count of sleepers, and flags of its system call.
CONTENTS = {
    "garbage": b"\xa5" * 32,
    "ones": b"\xff" * 32,
    "zeros": bytes(32),
    "no such system call": semaphore(0, 1, 0x7FFF_FFFF),
    "a wake that is a wait": semaphore(0, 1, 0x81),
    "a wait that is a wake": semaphore(0, 0, 0x80 ^ 9 ^ 1),
    "all rings that fit": semaphore(2**31 - 1, 0, 0x80),
    "more rings": semaphore(2**32 - 1, 2**32 - 1, 0x80),
}


def test_a_client_that_overwrites_its_semaphores_and_closes_harms_no_other_client() -> None:
    with served() as process, Polite("tested") as polite, shmrpc.sync.connect("tested") as client:
        watched = Watched(process)
        before = client.descriptors()
        for contents in CONTENTS.values():
            with contextlib.closing(SemaphoreOverwriter("tested", semaphores=True)) as wire:
                wire.overwrite(contents)
                wire.into.set_flag(READER_WAITS, ON_SEMAPHORE)
                wire.request("add", 1, 2)
                assert eventually(lambda wire=wire: wire.into.available() > 0), "the server answers"  # type: ignore[misc]
                wire.overwrite(contents)
            # The client has closed as usual: the server rings its own semaphore then.
            assert client.add(1, 2) == 3
        assert eventually(lambda: client.descriptors() == before)
        growth = watched.check()
    figures.note("hostile peer: semaphores overwritten", polite_calls=polite.calls, server_grew=growth)


class SemaphoreOverwriter(WireClient):
    """A client that writes into the files of its semaphores."""

    def _map(self) -> None:
        self._files = [os.open(f"/dev/shm/sem.{name}", os.O_RDWR) for name in self.welcome["semaphores"]]
        super()._map()

    def overwrite(self, contents: bytes) -> None:
        for descriptor in self._files:
            os.pwrite(descriptor, contents, 0)

    def close(self, **goodbye: object) -> None:
        super().close(**goodbye)
        for descriptor in self._files:
            os.close(descriptor)


def overwrites(contents: bytes) -> Callable[[ScriptedServer, int], None]:
    def misdeed(hostile: ScriptedServer, call_id: int) -> None:
        for descriptor in hostile.files[1:]:
            os.pwrite(descriptor, contents, 0)

    return misdeed


@pytest.mark.parametrize("contents", CONTENTS)
async def test_a_client_of_a_server_that_overwrites_semaphores_gets_its_answers(runtime: Path, contents: str) -> None:
    """Closing rings the client's own semaphore."""
    with scripted_server(runtime, overwrites(CONTENTS[contents])):
        async with connected(True) as caller:
            for _ in range(3):
                assert await caller.call("add", 1, 2) == 3


@contextlib.contextmanager
def rung_without_end(runtime: Path) -> Iterator[threading.Event]:
    """Serve a client without answers, and ring whenever it waits.

    The connection ends with the event; the rings go on until the end of the block.
    """
    over, quiet = threading.Event(), threading.Event()

    def rings(shared: mmap.mmap) -> None:
        number = 0
        with shared, memoryview(shared).cast("Q") as words:
            while not quiet.is_set():
                number += 1
                words[0] = 2**31 - 1 if number % 2 else 2**64 - 1

    threads: list[threading.Thread] = []

    def misdeed(hostile: ScriptedServer, call_id: int) -> None:
        threads.append(threading.Thread(target=rings, args=(mmap.mmap(hostile.files[2], 0),)))
        threads[0].start()
        over.wait(2 * PATIENCE)
        raise Died

    with scripted_server(runtime, misdeed):
        try:
            yield over
        finally:
            over.set()
            quiet.set()
            for thread in threads:
                thread.join(PATIENCE)


class Alarm(Exception):
    """Raised by the handler of a signal."""


def test_a_client_that_is_woken_without_end_keeps_its_deadlines_signals_and_close(runtime: Path) -> None:
    def on_alarm(*_: object) -> None:
        raise Alarm

    with rung_without_end(runtime) as over, shmrpc.sync.connect("tested", timeout=PATIENCE) as client:
        with pytest.raises(shmrpc.DeadlineExceeded):
            client.with_options(timeout=0.1).add(1, 2)
        before = signal.signal(signal.SIGALRM, on_alarm)
        try:
            signal.setitimer(signal.ITIMER_REAL, 0.1)
            with pytest.raises(Alarm):
                client.add(1, 2)
        finally:
            signal.signal(signal.SIGALRM, before)
        timer = threading.Timer(0.1, over.set)
        timer.start()
        with pytest.raises(shmrpc.ConnectionLost):
            client.add(1, 2)
        timer.join()


# --- a correct peer that uses the functions of its C library ---


@contextlib.contextmanager
def channel() -> Iterator[tuple[_core.Channel, list[posix_ipc.Semaphore], mmap.mmap]]:
    """Make a channel that sleeps on a semaphore; yield it, both semaphores (the server's first) and the segment."""
    made = NewSegment("tested")
    assert made.semaphores is not None
    opened = [posix_ipc.Semaphore(f"/{name}") for name in made.semaphores]
    # Further parts that a channel needs and this test does not use.
    bell, lending = _core.Descriptor.pair()
    try:
        side = _core.Channel(
            segment=made.file,
            capacity=made.capacity,
            server=True,
            bell=bell,
            semaphores=made.semaphores,
            owner=os.geteuid(),
            loans=lending,
            blocking=True,
            max_frame=1000,
            max_memory=1 << 20,
            spin=0,
            reply_opcode=0,
        )
        with mmap.mmap(made.file.fileno(), 0) as segment:
            yield side, opened, segment
        side.close()
    finally:
        for each in opened:
            each.close()
        made.unlink()


#: Offsets of the flags by which the reader of each ring announces its sleep.
SERVER_SLEEPS, CLIENT_SLEEPS = 128 + 256, 640 + 256


def is_flag_set(segment: mmap.mmap, flag: int) -> bool:
    return bool(struct.unpack_from("=I", segment, flag)[0] == ON_SEMAPHORE)


def test_a_peer_that_posts_with_its_own_c_library_wakes_us() -> None:
    """The ring alone ends the wait; glibc's post wakes a sleeper only if the semaphore counts one."""
    with channel() as (side, (ours, _), segment):
        calls = _core.ThreadCalls(
            side,
            replies=[],
            others=b"",
            item=0,
            requests=b"",
            cancel=0,
            cancel_body=b"",
            window=0,
            overhead=0,
            check_interval=10 * PATIENCE,
        )
        for _ in range(20):
            sleeper = threading.Thread(target=calls.drive, args=(10 * PATIENCE,))
            sleeper.start()
            assert eventually(lambda: is_flag_set(segment, SERVER_SLEEPS))
            ours.release()
            sleeper.join(PATIENCE)
            assert not sleeper.is_alive()
            assert ours.value == 0, "the sleeper has taken the ring"


def test_a_peer_that_waits_with_its_own_c_library_is_woken_by_our_ring() -> None:
    with channel() as (side, (_, theirs), segment):
        for number in range(20):
            sleeper = threading.Thread(target=theirs.acquire)
            sleeper.start()
            struct.pack_into("=I", segment, CLIENT_SLEEPS, ON_SEMAPHORE)
            side.send(0, number, b"")
            sleeper.join(PATIENCE)
            assert not sleeper.is_alive()
            assert not is_flag_set(segment, CLIENT_SLEEPS)
