"""A peer that shortens the files of its connection, where our next look is a SIGBUS: its connection ends, no more."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
from pathlib import Path

import msgpack
import pytest

import shmrpc
from tests.helpers import traces
from tests.helpers.lying_server import Babbler, Died, Misdeed, babbling, connected
from tests.helpers.scale import scaled
from tests.helpers.server_process import eventually, eventually_in_loop
from tests.helpers.wire_client import CALL, ON_SEMAPHORE, READER_WAITS, WireClient, frame
from tests.reliability import figures
from tests.reliability.hostile.liars import Polite, Watched, served

CUT_OFF = "the peer has cut off the memory of the connection"


class Cutter(WireClient):
    """A client that keeps descriptors of its connection's files."""

    def _map(self) -> None:
        self.segment = os.open(f"/dev/shm/{self.welcome['segment']}", os.O_RDWR)
        self.semaphores = [os.open(f"/dev/shm/sem.{name}", os.O_RDWR) for name in self.welcome["semaphores"] or ()]
        super()._map()

    def ended(self) -> str:
        """Why the server has ended the connection."""
        self.control.socket.settimeout(30)
        message, _ = self.control.expect("goodbye")
        assert message["fault"], message
        return str(message["reason"])

    def leave(self) -> None:
        """Without a look at what it has cut off itself."""
        self.control.socket.close()
        self.bell.close()
        self.theirs.close()
        for descriptor in (self.segment, self._segment, *self.semaphores):
            os.close(descriptor)
        for ring in (self.out, self.into):
            ring.release()
        self._view.release()
        self._mmap.close()


def test_a_client_that_cuts_off_its_segment_ends_its_own_connection_alone() -> None:
    with served() as process, Polite("tested") as polite, shmrpc.sync.connect("tested") as client:
        watched = Watched(process)
        before = client.descriptors()
        for number in range(scaled(20, 500)):
            wire = Cutter("tested")
            if number % 2:
                assert wire.call("add", 1, 2) == 3
            # All of it, or but for the header and the control: those are looked at first.
            os.ftruncate(wire.segment, number % 3 * 4096)
            wire.wake_server()
            if number % 3 == 0:
                assert wire.ended() == CUT_OFF
            wire.leave()
            assert client.add(number, 1) == number + 1
        assert eventually(lambda: client.descriptors() == before, 20)
        growth = watched.check()
    figures.note("lies: a segment cut off, at rest", polite_calls=polite.calls, server_grew=growth)


@pytest.mark.slow
def test_a_client_that_cuts_off_its_segment_while_traffic_runs() -> None:
    """The server is in the midst of many calls, reads one or writes an answer."""
    with served() as process, Polite("tested") as polite:
        watched = Watched(process)
        times = scaled(15, 400)
        for number in range(times):
            wire = Cutter("tested")
            flood(wire, threading.Timer(number % 10 / 1000, os.ftruncate, (wire.segment, 0)))
            assert wire.ended() == CUT_OFF
            wire.leave()
        growth = watched.check()
    figures.note("lies: a segment cut off, busy", connections=times, polite_calls=polite.calls, server_grew=growth)


def flood(wire: Cutter, cut: threading.Timer) -> None:
    """Many calls at once, and the cut a moment later. The liar writes to the file: its own mapping would end it."""
    data = b"".join(request(wire, number) for number in range(60))
    assert len(data) < wire.out.used
    os.pwrite(wire.segment, data, wire.out.start)
    os.pwrite(wire.segment, len(data).to_bytes(8, "little"), 128)
    cut.start()
    wire.wake_server()
    cut.join()
    wire.wake_server()


def request(wire: Cutter, number: int) -> bytes:
    return frame(CALL | wire.number("later") << 8, number + 1, msgpack.packb([number]))


def test_a_client_that_cuts_off_its_semaphores_ends_its_own_connection_alone() -> None:
    with served() as process, Polite("tested") as polite, shmrpc.sync.connect("tested") as client:
        watched = Watched(process)
        before = client.descriptors()
        for _ in range(scaled(20, 500)):
            wire = Cutter("tested", semaphores=True)
            for semaphore in wire.semaphores:
                os.ftruncate(semaphore, 0)
            wire.into.set_flag(READER_WAITS, ON_SEMAPHORE)
            wire.request("add", 1, 2)
            assert wire.ended() == CUT_OFF
            wire.leave()
        assert eventually(lambda: client.descriptors() == before, 20)
        assert client.add(1, 2) == 3
        growth = watched.check()
    figures.note("lies: semaphores cut off", polite_calls=polite.calls, server_grew=growth)


def cuts(files: slice, over: threading.Event) -> Misdeed:
    """Cuts some of the files off, rings, and waits for the client to have enough."""

    def misdeed(babbler: Babbler, call_id: int) -> None:
        for descriptor in babbler.files[files]:
            os.ftruncate(descriptor, 0)
        with socket.socket(fileno=os.dup(babbler.bell)) as bell:
            bell.send(b"\1")
        assert over.wait(30)
        raise Died

    return misdeed


@pytest.mark.parametrize(
    ("blocking", "files"),
    [(False, slice(0, 1)), (True, slice(0, 1)), (True, slice(1, 3))],
    ids=["segment, loop", "segment, threads", "semaphores, threads"],
)
async def test_a_server_that_cuts_off_what_a_client_shares_with_it(runtime: Path, blocking: bool, files: slice) -> None:
    over = threading.Event()
    before = traces.settled_descriptors()
    with babbling(runtime, cuts(files, over)):
        try:
            async with connected(blocking) as caller:
                with pytest.raises(shmrpc.RemoteProtocolError, match=CUT_OFF):
                    await caller.call("add", 1, 2)
        finally:
            over.set()
    assert await eventually_in_loop(lambda: traces.descriptors() == before, 30)


#: Faults in a mapping of its own while it has a connection, or is sent the signal.
OTHER = """
import mmap, os, signal, sys
import shmrpc
with shmrpc.sync.connect("tested") as client:
    print(client.add(1, 2), flush=True)
    if sys.argv[1] == "kill":
        os.kill(os.getpid(), signal.SIGBUS)
    file = os.memfd_create("other")
    os.truncate(file, 4096)
    mapped = mmap.mmap(file, 4096)
    os.truncate(file, 0)
    mapped[0]
"""


@pytest.mark.slow
@pytest.mark.parametrize("with_traceback", [False, True])
@pytest.mark.parametrize("cause", ["mapping", "kill"])
def test_any_other_sigbus_is_what_it_was(with_traceback: bool, cause: str) -> None:
    """It ends the process by that signal; a handler that was there before says its words."""
    with served():
        command = [sys.executable, "-c", OTHER, cause]
        ended = subprocess.run(
            [*command[:1], *(["-X", "faulthandler"] if with_traceback else []), *command[1:]],
            capture_output=True,
            text=True,
            timeout=60,
        )
    assert ended.stdout == "3\n"
    assert ended.returncode == -signal.SIGBUS
    assert ("Fatal Python error: Bus error" in ended.stderr) == with_traceback
