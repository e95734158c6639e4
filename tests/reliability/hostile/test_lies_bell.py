"""A peer that misuses the bell: is deaf, shuts it down, rings without end. It may lose its connection; nobody waits."""

from __future__ import annotations

import array
import asyncio
import contextlib
import fcntl
import os
import socket
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import shmrpc
from shmrpc.transport.shm import loop_client
from shmrpc.transport.shm import server as shm_server
from shmrpc.wire import control
from shmrpc.wire.frames import CALL, RESULT
from tests.helpers import traces
from tests.helpers.lying_server import SUM, Babbler, Died, babbling, connected
from tests.helpers.scale import scaled
from tests.helpers.server_process import eventually, eventually_in_loop
from tests.helpers.services import service
from tests.helpers.wire_client import ON_BELL, READER_WAITS, WireClient
from tests.reliability import figures
from tests.reliability.hostile.liars import Polite, Watched, served

LOOP = "either"

#: Rings that go unheard, of which a socket holds some hundreds.
RINGS = scaled(300, 3000)

ENDED = "the bell was closed, and the connection was not"


def unheard(bell: socket.socket) -> int:
    """How many rings lie in a bell."""
    count = 0
    with contextlib.suppress(BlockingIOError):
        while bell.recv(1, socket.MSG_DONTWAIT):
            count += 1
    return count


def let_block(bell: socket.socket) -> None:
    """As the holder of a descriptor can: the flags are those of all who have this end open."""
    flags = fcntl.fcntl(bell, fcntl.F_GETFL)
    fcntl.fcntl(bell, fcntl.F_SETFL, flags & ~os.O_NONBLOCK)


def test_a_client_that_asks_for_rings_and_hears_none_holds_nobody_up() -> None:
    """It says that it sleeps before each answer, and never takes a ring: until its bell is full, and beyond."""
    with served() as process, Polite("tested"), WireClient("tested") as wire:
        watched = Watched(process)
        let_block(wire.bell)
        for number in range(RINGS):
            wire.into.set_flag(READER_WAITS, ON_BELL)
            call = wire.request("add", number, 1)
            answer = None
            while answer is None:
                assert eventually(lambda: wire.into.available() > 0, 20), "the server answers"
                answer = wire._pull()
            assert answer[1] == call
        rings = unheard(wire.bell)
        assert 1 < rings < RINGS, "the bell was full"
        growth = watched.check()
        assert wire.call("add", 1, 2) == 3, "a ring was all that it lost"
    figures.note("lies: a bell that nobody hears", rings=RINGS, kept_by_the_socket=rings, server_grew=growth)


def shut(how: int) -> Callable[[socket.socket], object]:
    return lambda bell: bell.shutdown(how)


#: Ways to end a bell, all of which the other side sees in the same way.
ENDS: dict[str, Callable[[socket.socket], object]] = {
    "closed": socket.socket.close,
    "shut down": shut(socket.SHUT_RDWR),
    "shut down for writing": shut(socket.SHUT_WR),
    "an empty packet": lambda bell: bell.send(b""),
}


@contextlib.contextmanager
def counted(monkeypatch: pytest.MonkeyPatch, cls: type, name: str) -> Iterator[list[int]]:
    """How often a method without arguments was called, as the length of the list."""
    calls: list[int] = []
    method = getattr(cls, name)

    def count(self: object) -> None:
        calls.append(1)
        method(self)

    with monkeypatch.context() as patched:
        patched.setattr(cls, name, count)
        yield calls


@pytest.mark.parametrize("end", ENDS.values(), ids=ENDS)
@pytest.mark.parametrize("dies", [False, True], ids=["lives on", "dies"])
async def test_a_client_that_ends_its_bell(
    monkeypatch: pytest.MonkeyPatch, end: Callable[[socket.socket], object], dies: bool
) -> None:
    """It is told of its fault if it lives on, and is a client that died if it does not; the loop does not spin."""
    lost: list[Exception] = []

    def note(self: shm_server.ShmListener, peer: shm_server.ShmPeer, error: shmrpc.ShmrpcError) -> None:
        lost.append(error)
        really(self, peer, error)

    really = shm_server.ShmListener.notify_lost
    monkeypatch.setattr(shm_server.ShmListener, "notify_lost", note)
    monkeypatch.setattr(control, "DEATH_TIMEOUT", 20 if dies else 0.3)
    with counted(monkeypatch, shm_server.ShmPeer, "_on_bell") as rings:
        async with shmrpc.serve(service) as server, shmrpc.connect("tested") as other:
            assert await other.add(1, 2) == 3
            before = traces.settled_descriptors()
            wire = await asyncio.to_thread(WireClient, "tested")
            assert await asyncio.to_thread(wire.call, "add", 1, 2) == 3
            rang = len(rings)
            end(wire.bell)
            assert await eventually_in_loop(lambda: len(rings) > rang, 20), "the server has noticed"
            if dies:
                wire.control.socket.shutdown(socket.SHUT_RDWR)
            else:
                wire.control.socket.settimeout(30)
                message, _ = await asyncio.to_thread(wire.control.expect, "goodbye")
                assert message["fault"] and message["reason"] == ENDED, message
            assert await eventually_in_loop(lambda: server.connections == 1, 20)
            assert len(rings) - rang < 5
            assert await other.add(3, 4) == 7
            wire.close()
            assert await eventually_in_loop(lambda: traces.descriptors() == before, 20)
    kind = shmrpc.ConnectionLost if dies else shmrpc.RemoteProtocolError
    assert [type(error) for error in lost[:1]] == [kind], lost


def test_a_client_that_is_deaf_to_the_end_of_its_bell_is_served_no_worse() -> None:
    """It has shut down its end for reading alone: our rings fail, and that is all."""
    with served() as process, Polite("tested"), WireClient("tested") as wire:
        wire.bell.shutdown(socket.SHUT_RD)
        for number in range(50):
            wire.into.set_flag(READER_WAITS, ON_BELL)
            wire.request("add", number, 1)
            assert eventually(lambda: wire.into.available() > 0, 20), "the server answers"
            assert wire._pull() is not None
        assert process.process.poll() is None


def ring_all(bell: socket.socket, over: threading.Event) -> int:
    """Rings as fast as it can: long packets, and such with descriptors. How often."""
    rings = 0
    with open("/dev/null") as null:
        files = array.array("i", [null.fileno()] * 20)
        while not over.is_set():
            with contextlib.suppress(BlockingIOError, BrokenPipeError, ConnectionResetError):
                match rings % 3:
                    case 0:
                        bell.send(b"\1", socket.MSG_DONTWAIT)
                    case 1:
                        bell.send(b"\1" * 10_000, socket.MSG_DONTWAIT)
                    case _:
                        rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, files)]
                        bell.sendmsg([b"\1"], rights, socket.MSG_DONTWAIT)
            rings += 1
    return rings


class Ringer(threading.Thread):
    """Rings a bell until it is told that it is enough."""

    def __init__(self, bell: socket.socket) -> None:
        super().__init__(daemon=True)
        self._bell = bell
        self._over = threading.Event()
        self.rings = 0

    def run(self) -> None:
        self.rings = ring_all(self._bell, self._over)

    def __enter__(self) -> Ringer:
        self.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._over.set()
        self.join(20)
        assert not self.is_alive()


@pytest.mark.slow
def test_a_client_that_rings_without_end_is_one_of_many() -> None:
    """Others get their calls through meanwhile, and what came with its rings is not kept."""
    with served() as process, shmrpc.sync.connect("tested") as client, Polite("tested") as polite:
        watched = Watched(process)
        before = client.descriptors()
        with WireClient("tested") as wire:
            with Ringer(wire.bell) as ringer:
                goal = polite.calls + scaled(400, 4000)
                assert eventually(lambda: polite.calls > goal or polite.error is not None, 120)
            assert wire.call("add", 1, 2) == 3
        assert eventually(lambda: client.descriptors() == before, 20)
        growth = watched.check()
    figures.note("lies: a bell without end", rings=ringer.rings, polite_calls=polite.calls, server_grew=growth)


def bell_of(babbler: Babbler) -> socket.socket:
    """The server's end once more."""
    return socket.socket(fileno=os.dup(babbler.bell))


def deaf(babbler: Babbler, call_id: int) -> None:
    """Answers many calls, says before each that it sleeps, and hears no ring."""
    channel, number = babbler.channel, 0
    with bell_of(babbler) as bell:
        let_block(bell)
        channel.send(RESULT, call_id, SUM)
        while number < RINGS:
            channel.park()
            if not eventually(channel.has_frame, 20):
                return
            frame = channel.receive()
            assert frame is not None and frame[0] & 0xFF == CALL
            channel.send(RESULT, frame[1], SUM)
            number += 1
        babbler.unheard = unheard(bell)


@pytest.mark.parametrize("blocking", [False, True], ids=["loop", "threads"])
async def test_a_server_that_asks_for_rings_and_hears_none_holds_nobody_up(runtime: Path, blocking: bool) -> None:
    with babbling(runtime, deaf) as babbler:
        async with connected(blocking) as caller:
            # The answer of the babbler itself, to the first call, comes twice; nobody waits for it.
            for _ in range(RINGS + 1):
                assert await asyncio.wait_for(caller.call("add", 1, 2), 20) == 3
            assert await eventually_in_loop(lambda: babbler.unheard > 0, 20)
    assert 1 < babbler.unheard < RINGS, "the bell was full"


def ends_it(babbler: Babbler, call_id: int) -> None:
    with bell_of(babbler) as bell:
        bell.shutdown(socket.SHUT_RDWR)


def ends_it_and_dies(babbler: Babbler, call_id: int) -> None:
    ends_it(babbler, call_id)
    raise Died


@pytest.mark.slow
@pytest.mark.parametrize("blocking", [False, True], ids=["loop", "threads"])
async def test_a_server_that_ends_its_bell(runtime: Path, monkeypatch: pytest.MonkeyPatch, blocking: bool) -> None:
    """The answer that was there before counts; then the connection is at an end, for a fault of the server's.

    Threads sleep on the semaphore, and look at the bell before a request to a server that was quiet for a while.
    """
    monkeypatch.setattr(control, "DEATH_TIMEOUT", 1.5)
    with counted(monkeypatch, loop_client.LoopConnection, "_on_bell") as rings, babbling(runtime, ends_it) as babbler:
        async with connected(blocking) as caller:
            assert await caller.call("add", 1, 2) == 3
            with pytest.raises(shmrpc.RemoteProtocolError, match=ENDED):
                while True:
                    assert await caller.call("add", 1, 2) == 3
                    await asyncio.sleep(0.01)
        babbler.join()
    assert isinstance(babbler.heard, control.Goodbye) and babbler.heard.fault
    assert len(rings) < 400, "the loop did not spin"


@pytest.mark.parametrize("blocking", [False, True], ids=["loop", "threads"])
async def test_a_server_whose_bell_ends_as_it_dies(
    runtime: Path, monkeypatch: pytest.MonkeyPatch, blocking: bool
) -> None:
    """The bell ends first, and the connection after it: the server has died, and has broken no rule."""
    monkeypatch.setattr(control, "DEATH_TIMEOUT", 20)
    with babbling(runtime, ends_it_and_dies):
        async with connected(blocking) as caller:
            with pytest.raises(shmrpc.ConnectionLost):
                await caller.call("add", 1, 2)


def rings_without_end(babbler: Babbler, call_id: int) -> None:
    """Answers calls meanwhile, until the client has had enough of them."""
    with bell_of(babbler) as bell, Ringer(bell):
        babbler.channel.send(RESULT, call_id, SUM)
        for _ in range(200):
            if not eventually(babbler.channel.has_frame, 20):
                return
            frame = babbler.channel.receive()
            assert frame is not None
            babbler.channel.send(RESULT, frame[1], SUM)


@pytest.mark.parametrize("blocking", [False, True], ids=["loop", "threads"])
async def test_a_server_that_rings_without_end(runtime: Path, blocking: bool) -> None:
    """Its own client has its answers, and everything else in that loop goes on."""
    before = traces.settled_descriptors()
    with babbling(runtime, rings_without_end):
        async with connected(blocking) as caller:
            for _ in range(201):
                assert await asyncio.wait_for(caller.call("add", 1, 2), 20) == 3
                await asyncio.sleep(0)
    assert await eventually_in_loop(lambda: traces.descriptors() == before, 20)
