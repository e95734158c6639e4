"""A peer that overwrites the semaphores of its connection, which both sides write: nobody aborts, hangs or spins."""

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
from tests.helpers.lying_server import Babbler, Died, babbling, connected
from tests.helpers.server_process import PATIENCE, eventually
from tests.helpers.time_bound import bounded
from tests.helpers.wire_client import ON_SEMAPHORE, READER_WAITS, WireClient
from tests.reliability import figures
from tests.reliability.hostile.liars import Polite, Watched, served


@pytest.fixture(autouse=True)
def in_time() -> Iterator[None]:
    with bounded():
        yield


def semaphore(value: int, waiters: int, private: int) -> bytes:
    """What glibc has in a semaphore's file."""
    return struct.pack("=IIII16x", value, waiters, private, 0)


#: What glibc takes for a number of rings, a number of sleepers, and bits of the system call that it makes.
LIES = {
    "garbage": b"\xa5" * 32,
    "ones": b"\xff" * 32,
    "zeros": bytes(32),
    "no such system call": semaphore(0, 1, 0x7FFF_FFFF),
    "a wake that is a wait": semaphore(0, 1, 0x81),
    "a wait that is a wake": semaphore(0, 0, 0x80 ^ 9 ^ 1),
    "all rings that fit": semaphore(2**31 - 1, 0, 0x80),
    "more rings": semaphore(2**32 - 1, 2**32 - 1, 0x80),
}


def test_a_client_that_overwrites_its_semaphores_and_closes_harms_nobody_else() -> None:
    with served() as process, Polite("tested") as polite, shmrpc.sync.connect("tested") as client:
        watched = Watched(process)
        before = client.descriptors()
        for lie in LIES.values():
            with contextlib.closing(Liar("tested", semaphores=True)) as wire:
                wire.overwrite(lie)
                wire.into.set_flag(READER_WAITS, ON_SEMAPHORE)
                wire.request("add", 1, 2)
                assert eventually(lambda wire=wire: wire.into.available() > 0), "the server answers"  # type: ignore[misc]
                wire.overwrite(lie)
            # It has closed as the honest do: the server rings its own semaphore then.
            assert client.add(1, 2) == 3
        assert eventually(lambda: client.descriptors() == before)
        growth = watched.check()
    figures.note("lies: semaphores overwritten", polite_calls=polite.calls, server_grew=growth)


class Liar(WireClient):
    """A client that writes into the files of its semaphores."""

    def _map(self) -> None:
        self._files = [os.open(f"/dev/shm/sem.{name}", os.O_RDWR) for name in self.welcome["semaphores"]]
        super()._map()

    def overwrite(self, lie: bytes) -> None:
        for descriptor in self._files:
            os.pwrite(descriptor, lie, 0)

    def close(self, **goodbye: object) -> None:
        super().close(**goodbye)
        for descriptor in self._files:
            os.close(descriptor)


def overwrites(lie: bytes) -> Callable[[Babbler, int], None]:
    def misdeed(babbler: Babbler, call_id: int) -> None:
        for descriptor in babbler.files[1:]:
            os.pwrite(descriptor, lie, 0)

    return misdeed


@pytest.mark.parametrize("lie", LIES)
async def test_a_server_that_overwrites_the_semaphores_of_its_client(runtime: Path, lie: str) -> None:
    """It has its answers, and closes as ever: which rings the client's own semaphore."""
    with babbling(runtime, overwrites(LIES[lie])):
        async with connected(True) as caller:
            for _ in range(3):
                assert await caller.call("add", 1, 2) == 3


@contextlib.contextmanager
def rung_without_end(runtime: Path) -> Iterator[threading.Event]:
    """A server that answers nothing, and lets its client hear a ring whenever it looks.

    Its connection ends with the event, and its rings do not.
    """
    over, quiet = threading.Event(), threading.Event()

    def rings(shared: mmap.mmap) -> None:
        number = 0
        with shared, memoryview(shared).cast("Q") as words:
            while not quiet.is_set():
                number += 1
                words[0] = 2**31 - 1 if number % 2 else 2**64 - 1

    threads: list[threading.Thread] = []

    def misdeed(babbler: Babbler, call_id: int) -> None:
        threads.append(threading.Thread(target=rings, args=(mmap.mmap(babbler.files[2], 0),)))
        threads[0].start()
        over.wait(2 * PATIENCE)
        raise Died

    with babbling(runtime, misdeed):
        try:
            yield over
        finally:
            over.set()
            quiet.set()
            for thread in threads:
                thread.join(PATIENCE)


class Alarm(Exception):
    """A signal came."""


def test_who_is_always_woken_has_its_deadlines_its_signals_and_its_end(runtime: Path) -> None:
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


# An honest peer that uses the functions of its C library.


@contextlib.contextmanager
def channel() -> Iterator[tuple[_core.Channel, list[posix_ipc.Semaphore], mmap.mmap]]:
    """A side that sleeps in threads, as it says; both semaphores, to the server first; and the segment."""
    made = NewSegment("tested")
    assert made.semaphores is not None
    opened = [posix_ipc.Semaphore(f"/{name}") for name in made.semaphores]
    # What else it needs to be a channel, and nobody uses.
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


#: Where in a segment the reader of each ring says that it sleeps.
SERVER_SLEEPS, CLIENT_SLEEPS = 128 + 256, 640 + 256


def is_said(segment: mmap.mmap, flag: int) -> bool:
    return bool(struct.unpack_from("=I", segment, flag)[0] == ON_SEMAPHORE)


def test_a_peer_that_posts_with_its_own_c_library_wakes_us() -> None:
    """Which wakes nobody, unless the semaphore says that somebody waits: there is no end of the wait but the ring."""
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
            assert eventually(lambda: is_said(segment, SERVER_SLEEPS))
            ours.release()
            sleeper.join(PATIENCE)
            assert not sleeper.is_alive()
            assert ours.value == 0, "what was heard is taken"


def test_a_peer_that_waits_with_its_own_c_library_is_woken_by_us() -> None:
    with channel() as (side, (_, theirs), segment):
        for number in range(20):
            sleeper = threading.Thread(target=theirs.acquire)
            sleeper.start()
            struct.pack_into("=I", segment, CLIENT_SLEEPS, ON_SEMAPHORE)
            side.send(0, number, b"")
            sleeper.join(PATIENCE)
            assert not sleeper.is_alive()
            assert not is_said(segment, CLIENT_SLEEPS)
