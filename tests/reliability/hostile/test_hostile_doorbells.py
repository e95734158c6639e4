"""A peer that misuses the doorbell: reads no rings, shuts it down, rings without end. No other caller waits for it."""

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
from shmrpc.transport.shm.loop_connection import LoopConnection
from shmrpc.transport.shm.peer import ShmPeer
from shmrpc.transport.shm.server import ShmListener
from shmrpc.wire import control
from shmrpc.wire.frames import CALL, RESULT
from tests.helpers import traces
from tests.helpers.hostile_server import SUM, Died, ScriptedServer, connected, scripted_server
from tests.helpers.scale import scaled
from tests.helpers.server_process import eventually, eventually_in_loop
from tests.helpers.services import service
from tests.helpers.wire_client import ON_BELL, READER_WAITS, WireClient
from tests.reliability import figures
from tests.reliability.hostile.hostile_peers import Polite, Watched, served

LOOP = "either"

#: Rings that the peer leaves unread; a socket holds some hundreds.
RINGS = scaled(300, 3000)

ENDED = "the bell was closed, and the connection was not"


def count_unread(bell: socket.socket) -> int:
    """Read the rings that a doorbell holds; return their number."""
    count = 0
    with contextlib.suppress(BlockingIOError):
        while bell.recv(1, socket.MSG_DONTWAIT):
            count += 1
    return count


def make_blocking(bell: socket.socket) -> None:
    """Make the doorbell blocking, as each holder of a descriptor can: all of them share the flags."""
    flags = fcntl.fcntl(bell, fcntl.F_GETFL)
    fcntl.fcntl(bell, fcntl.F_SETFL, flags & ~os.O_NONBLOCK)


def test_a_client_that_requests_rings_and_reads_none_delays_no_other_client() -> None:
    """The client announces its sleep before each answer, but reads no ring, even when its doorbell is full."""
    with served() as process, Polite("tested"), WireClient("tested") as wire:
        watched = Watched(process)
        make_blocking(wire.bell)
        for number in range(RINGS):
            wire.into.set_flag(READER_WAITS, ON_BELL)
            call = wire.request("add", number, 1)
            answer = None
            while answer is None:
                assert eventually(lambda: wire.into.available() > 0, 20), "the server answers"
                answer = wire._pull()
            assert answer[1] == call
        rings = count_unread(wire.bell)
        assert 1 < rings < RINGS, "the bell was full"
        growth = watched.check()
        assert wire.call("add", 1, 2) == 3, "the client lost only rings"
    figures.note(
        "hostile peer: a doorbell with unread rings", rings=RINGS, kept_by_the_socket=rings, server_grew=growth
    )


def shut(how: int) -> Callable[[socket.socket], object]:
    return lambda bell: bell.shutdown(how)


#: Ways to end a doorbell, all of which the other side sees in the same way.
ENDS: dict[str, Callable[[socket.socket], object]] = {
    "closed": socket.socket.close,
    "shut down": shut(socket.SHUT_RDWR),
    "shut down for writing": shut(socket.SHUT_WR),
    "an empty packet": lambda bell: bell.send(b""),
}


@contextlib.contextmanager
def counted(monkeypatch: pytest.MonkeyPatch, cls: type, name: str) -> Iterator[list[int]]:
    """Count the calls of a method without arguments, as the length of the list."""
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
async def test_a_client_that_ends_its_doorbell_breaks_the_protocol_or_has_died(
    monkeypatch: pytest.MonkeyPatch, end: Callable[[socket.socket], object], dies: bool
) -> None:
    """A living client reads its fault, a dead one is reported as lost; the server's loop does not spin."""
    lost: list[Exception] = []

    def note(self: ShmListener, peer: ShmPeer, error: shmrpc.ShmrpcError) -> None:
        lost.append(error)
        really(self, peer, error)

    really = ShmListener.notify_lost
    monkeypatch.setattr(ShmListener, "notify_lost", note)
    monkeypatch.setattr(control, "DEATH_TIMEOUT", 20 if dies else 0.3)
    with counted(monkeypatch, ShmPeer, "_on_bell") as rings:
        async with shmrpc.serve(service) as server, shmrpc.connect("tested") as other:
            assert await other.add(1, 2) == 3
            before = traces.settled_descriptors()
            wire = await asyncio.to_thread(WireClient, "tested")
            assert await asyncio.to_thread(wire.call, "add", 1, 2) == 3
            rang = len(rings)
            end(wire.bell)
            assert await eventually_in_loop(lambda: len(rings) > rang, 20), "the server reads the end"
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


def test_a_client_that_shuts_its_doorbell_for_reading_is_served_like_others() -> None:
    """The server's rings fail, without further effects."""
    with served() as process, Polite("tested"), WireClient("tested") as wire:
        wire.bell.shutdown(socket.SHUT_RD)
        for number in range(50):
            wire.into.set_flag(READER_WAITS, ON_BELL)
            wire.request("add", number, 1)
            assert eventually(lambda: wire.into.available() > 0, 20), "the server answers"
            assert wire._pull() is not None
        assert process.process.poll() is None


def ring_all(bell: socket.socket, over: threading.Event) -> int:
    """Ring as fast as possible until the event is set, with long packets and with descriptors; return the number."""
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
    """A thread that rings a doorbell until the end of the block."""

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
def test_a_client_that_rings_without_end_does_not_stop_other_clients() -> None:
    """The calls of other clients go on, and the server keeps nothing of the rings."""
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
    figures.note("hostile peer: rings without end", rings=ringer.rings, polite_calls=polite.calls, server_grew=growth)


def bell_of(hostile: ScriptedServer) -> socket.socket:
    """Return a socket of the server's end of the doorbell."""
    return socket.socket(fileno=os.dup(hostile.bell))


def answer_without_reading_rings(hostile: ScriptedServer, call_id: int) -> None:
    """Answer many calls, announce a sleep before each, and read no ring."""
    channel, number = hostile.channel, 0
    with bell_of(hostile) as bell:
        make_blocking(bell)
        channel.send(RESULT, call_id, SUM)
        while number < RINGS:
            channel.park()
            if not eventually(channel.has_frame, 20):
                return
            frame = channel.receive()
            assert frame is not None and frame[0] & 0xFF == CALL
            channel.send(RESULT, frame[1], SUM)
            number += 1
        hostile.unread_rings = count_unread(bell)


@pytest.mark.parametrize("blocking", [False, True], ids=["loop", "threads"])
async def test_a_server_that_requests_rings_and_reads_none_delays_no_client(runtime: Path, blocking: bool) -> None:
    with scripted_server(runtime, answer_without_reading_rings) as hostile:
        async with connected(blocking) as caller:
            # The helper answers the first call a second time; no call waits for that answer.
            for _ in range(RINGS + 1):
                assert await asyncio.wait_for(caller.call("add", 1, 2), 20) == 3
            assert await eventually_in_loop(lambda: hostile.unread_rings > 0, 20)
    assert 1 < hostile.unread_rings < RINGS, "the bell was full"


def end_doorbell(hostile: ScriptedServer, call_id: int) -> None:
    with bell_of(hostile) as bell:
        bell.shutdown(socket.SHUT_RDWR)


def end_doorbell_and_die(hostile: ScriptedServer, call_id: int) -> None:
    end_doorbell(hostile, call_id)
    raise Died


@pytest.mark.slow
@pytest.mark.parametrize("blocking", [False, True], ids=["loop", "threads"])
async def test_a_server_that_ends_its_doorbell_loses_its_connection(
    runtime: Path, monkeypatch: pytest.MonkeyPatch, blocking: bool
) -> None:
    """An answer that came before counts; then the connection ends for a fault of the server.

    Threads sleep on the semaphore, and check the doorbell before a request to a server that was quiet for a while.
    """
    monkeypatch.setattr(control, "DEATH_TIMEOUT", 1.5)
    counting = counted(monkeypatch, LoopConnection, "_on_bell")
    with counting as rings, scripted_server(runtime, end_doorbell) as hostile:
        async with connected(blocking) as caller:
            assert await caller.call("add", 1, 2) == 3
            with pytest.raises(shmrpc.RemoteProtocolError, match=ENDED):
                while True:
                    assert await caller.call("add", 1, 2) == 3
                    await asyncio.sleep(0.01)
        hostile.join()
    assert isinstance(hostile.heard, control.Goodbye) and hostile.heard.fault
    assert len(rings) < 400, "the loop did not spin"


@pytest.mark.parametrize("blocking", [False, True], ids=["loop", "threads"])
async def test_a_server_whose_doorbell_ends_as_it_dies_is_a_lost_connection(
    runtime: Path, monkeypatch: pytest.MonkeyPatch, blocking: bool
) -> None:
    """The doorbell ends first, and the connection after it: the server has died, without a fault."""
    monkeypatch.setattr(control, "DEATH_TIMEOUT", 20)
    with scripted_server(runtime, end_doorbell_and_die):
        async with connected(blocking) as caller:
            with pytest.raises(shmrpc.ConnectionLost):
                await caller.call("add", 1, 2)


def ring_without_end(hostile: ScriptedServer, call_id: int) -> None:
    """Ring and answer calls, until the client closes."""
    with bell_of(hostile) as bell, Ringer(bell):
        hostile.channel.send(RESULT, call_id, SUM)
        for _ in range(200):
            if not eventually(hostile.channel.has_frame, 20):
                return
            frame = hostile.channel.receive()
            assert frame is not None
            hostile.channel.send(RESULT, frame[1], SUM)


@pytest.mark.parametrize("blocking", [False, True], ids=["loop", "threads"])
async def test_a_server_that_rings_without_end_answers_its_client(runtime: Path, blocking: bool) -> None:
    """The client gets its answers, and all other tasks of its loop go on."""
    before = traces.settled_descriptors()
    with scripted_server(runtime, ring_without_end):
        async with connected(blocking) as caller:
            for _ in range(201):
                assert await asyncio.wait_for(caller.call("add", 1, 2), 20) == 3
                await asyncio.sleep(0)
    assert await eventually_in_loop(lambda: traces.descriptors() == before, 20)
