"""A peer that truncates the files of its connection, so that the next access is a SIGBUS: only that connection ends."""

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
from tests.helpers.hostile_server import Died, Misdeed, ScriptedServer, connected, scripted_server
from tests.helpers.scale import scaled
from tests.helpers.server_process import eventually, eventually_in_loop
from tests.helpers.wire_client import CALL, ON_SEMAPHORE, READER_WAITS, WireClient, frame
from tests.reliability import figures
from tests.reliability.hostile.hostile_peers import Polite, Watched, served

TRUNCATED = "the peer has truncated the memory of the connection"


class Truncator(WireClient):
    """A client that keeps descriptors of its connection's files."""

    def _map(self) -> None:
        self.segment = os.open(f"/dev/shm/{self.welcome['segment']}", os.O_RDWR)
        self.semaphores = [os.open(f"/dev/shm/sem.{name}", os.O_RDWR) for name in self.welcome["semaphores"] or ()]
        super()._map()

    def fault_reason(self) -> str:
        """Return the reason with which the server ended the connection."""
        self.control.socket.settimeout(30)
        message, _ = self.control.expect("goodbye")
        assert message["fault"], message
        return str(message["reason"])

    def leave(self) -> None:
        """Close the connection without access to the truncated memory."""
        self.control.socket.close()
        self.bell.close()
        self.theirs.close()
        for descriptor in (self.segment, self._segment, *self.semaphores):
            os.close(descriptor)
        for ring in (self.out, self.into):
            ring.release()
        self._view.release()
        self._mmap.close()


def test_a_client_that_truncates_its_segment_ends_only_its_own_connection() -> None:
    with served() as process, Polite("tested") as polite, shmrpc.sync.connect("tested") as client:
        watched = Watched(process)
        before = client.descriptors()
        for number in range(scaled(20, 500)):
            wire = Truncator("tested")
            if number % 2:
                assert wire.call("add", 1, 2) == 3
            # All of the segment, or all but its header and control words, which the server reads first.
            os.ftruncate(wire.segment, number % 3 * 4096)
            wire.wake_server()
            if number % 3 == 0:
                assert wire.fault_reason() == TRUNCATED
            wire.leave()
            assert client.add(number, 1) == number + 1
        assert eventually(lambda: client.descriptors() == before, 20)
        growth = watched.check()
    figures.note("hostile peer: a segment cut off, at rest", polite_calls=polite.calls, server_grew=growth)


@pytest.mark.slow
def test_a_client_that_truncates_its_segment_under_load_ends_only_its_own_connection() -> None:
    """The server has many calls in flight, reads a call or writes an answer."""
    with served() as process, Polite("tested") as polite:
        watched = Watched(process)
        times = scaled(15, 400)
        for number in range(times):
            wire = Truncator("tested")
            flood(wire, threading.Timer(number % 10 / 1000, os.ftruncate, (wire.segment, 0)))
            assert wire.fault_reason() == TRUNCATED
            wire.leave()
        growth = watched.check()
    figures.note(
        "hostile peer: a segment cut off, busy", connections=times, polite_calls=polite.calls, server_grew=growth
    )


def flood(wire: Truncator, cut: threading.Timer) -> None:
    """Send many calls at once, and truncate a moment later. The client writes to the file: its mapping would fault."""
    data = b"".join(request(wire, number) for number in range(60))
    assert len(data) < wire.out.used
    os.pwrite(wire.segment, data, wire.out.start)
    os.pwrite(wire.segment, len(data).to_bytes(8, "little"), 128)
    cut.start()
    wire.wake_server()
    cut.join()
    wire.wake_server()


def request(wire: Truncator, number: int) -> bytes:
    return frame(CALL | wire.number("later") << 8, number + 1, msgpack.packb([number]))


def test_a_client_that_truncates_its_semaphores_ends_only_its_own_connection() -> None:
    with served() as process, Polite("tested") as polite, shmrpc.sync.connect("tested") as client:
        watched = Watched(process)
        before = client.descriptors()
        for _ in range(scaled(20, 500)):
            wire = Truncator("tested", semaphores=True)
            for semaphore in wire.semaphores:
                os.ftruncate(semaphore, 0)
            wire.into.set_flag(READER_WAITS, ON_SEMAPHORE)
            wire.request("add", 1, 2)
            assert wire.fault_reason() == TRUNCATED
            wire.leave()
        assert eventually(lambda: client.descriptors() == before, 20)
        assert client.add(1, 2) == 3
        growth = watched.check()
    figures.note("hostile peer: semaphores cut off", polite_calls=polite.calls, server_grew=growth)


def truncates(files: slice, over: threading.Event) -> Misdeed:
    """Return a script that truncates some of the files, rings, and waits until the client has left."""

    def misdeed(hostile: ScriptedServer, call_id: int) -> None:
        for descriptor in hostile.files[files]:
            os.ftruncate(descriptor, 0)
        with socket.socket(fileno=os.dup(hostile.bell)) as bell:
            bell.send(b"\1")
        assert over.wait(30)
        raise Died

    return misdeed


@pytest.mark.parametrize(
    ("blocking", "files"),
    [(False, slice(0, 1)), (True, slice(0, 1)), (True, slice(1, 3))],
    ids=["segment, loop", "segment, threads", "semaphores, threads"],
)
async def test_a_server_that_truncates_shared_files_loses_its_connection(
    runtime: Path, blocking: bool, files: slice
) -> None:
    over = threading.Event()
    before = traces.settled_descriptors()
    with scripted_server(runtime, truncates(files, over)):
        try:
            async with connected(blocking) as caller:
                with pytest.raises(shmrpc.RemoteProtocolError, match=TRUNCATED):
                    await caller.call("add", 1, 2)
        finally:
            over.set()
    assert await eventually_in_loop(lambda: traces.descriptors() == before, 30)


#: A program with a connection that faults in a mapping of its own, or sends itself the signal.
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
def test_a_sigbus_elsewhere_has_its_usual_effect(with_traceback: bool, cause: str) -> None:
    """The signal ends the process; a handler that was installed before still prints its text."""
    with served():
        command = [sys.executable, "-c", OTHER, cause]
        fault_reason = subprocess.run(
            [*command[:1], *(["-X", "faulthandler"] if with_traceback else []), *command[1:]],
            capture_output=True,
            text=True,
            timeout=60,
        )
    assert fault_reason.stdout == "3\n"
    assert fault_reason.returncode == -signal.SIGBUS
    assert ("Fatal Python error: Bus error" in fault_reason.stderr) == with_traceback
