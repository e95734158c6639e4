"""A full /dev/shm: connecting raises the reason and the remedy, connected clients go on, and room heals it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest

import shmrpc
from shmrpc import _core
from shmrpc.transport.shm import segment
from tests.reliability import figures

#: Size of a segment, as it appears in error texts.
SEGMENT = "6,144 bytes"

PRELUDE = """
    import json, os, subprocess, sys
    import shmrpc
    from tests.helpers.server_process import ServerProcess, eventually

    def is_empty():
        there = os.statvfs("/dev/shm")
        return there.f_bfree == there.f_blocks

    def remount(options):
        subprocess.run(["mount", "-o", "remount," + options, "/dev/shm"], check=True)

    def attempt(keep=None, timeout=10):
        client = shmrpc.sync.connect("tested.watched", timeout=timeout)
        try:
            client.__enter__()
        except Exception as error:
            return type(error).__name__, str(error)
        if keep is not None:
            keep.append(client)
        sum = client.add(1, 2)
        if keep is None:
            client.close()
        return sum

    def report(*what):
        print(json.dumps(what), flush=True)

"""


def may_mount() -> bool:
    """Return True if this process may mount a /dev/shm of its own."""
    command = ["unshare", "-m", "--propagation", "private", "mount", "-t", "tmpfs", "tmpfs", "/dev/shm"]
    try:
        return subprocess.run(command, capture_output=True, timeout=30).returncode == 0
    except (OSError, subprocess.TimeoutExpired):
        return False


pytestmark = pytest.mark.skipif(not may_mount(), reason="a mount namespace with a small /dev/shm takes root")


def run_with(options: str, source: str) -> list[Any]:
    """Run a program with these mount options of /dev/shm; return the values that it prints."""
    mount = f'mount -t tmpfs -o {options} tmpfs /dev/shm && exec "$@"'
    program = textwrap.dedent(PRELUDE) + textwrap.dedent(source)
    command = ["unshare", "-m", "--propagation", "private", "bash", "-c", mount, "small", sys.executable, "-c", program]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, env=os.environ)
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


#: Mount options, and words of the client's error.
WANTS = {
    "size=4k,nr_inodes=100": [SEGMENT, "4,096 of 4,096 are free", "remount,size="],
    "size=12k,nr_inodes=100": [
        SEGMENT,
        "two pages",
        "remount,size=",
    ],  # Room for the segment, but not for its semaphores.
    "size=1m,nr_inodes=1": ["of 1 are free", "remount,nr_inodes="],
    "size=1m,nr_inodes=3": ["of 3 are free", "remount,nr_inodes="],
}


@pytest.mark.slow
def test_the_error_of_connecting_names_the_missing_resource() -> None:
    told = run_with(
        "size=1m,nr_inodes=100",
        f"""
        with ServerProcess("tests.reliability.watched_service:service") as server:
            for options in {list(WANTS)}:
                remount(options)
                refused = attempt()
                left = os.listdir("/dev/shm")
                remount("size=1m,nr_inodes=100")
                report(refused, left, attempt())
                assert eventually(is_empty, 30)
        """,
    )
    for ((kind, text), left, connected), words in zip(told, WANTS.values(), strict=True):
        assert kind == "ServiceUnavailable"
        assert all(word in text for word in ["refused the connection", "/dev/shm is full", *words]), text
        assert left == [], "an object of the refused connection is left"
        assert connected == 3, "the next client is refused"


@pytest.mark.slow
def test_connected_clients_go_on_in_a_full_shared_memory() -> None:
    """Their memory is reserved, and more is allocated safely: no SIGBUS, in the rings and beside them."""
    first, filled, full, worked, again = run_with(
        "size=300k",
        """
        with ServerProcess("tests.reliability.watched_service:service") as server:
            clients = []
            report(attempt(clients), attempt(clients))
            with open("/dev/shm/of-another-program", "wb", buffering=0) as file:
                written = 0
                try:
                    while True:
                        written += file.write(bytes(4096))
                except OSError as error:
                    report(error.errno)
            report(attempt())
            small, large = bytes(range(256)) * 100, bytes(1 << 20)
            for client in clients:
                for i in range(50):
                    assert client.echo(small) == small
                assert client.echo(large) == large
            report("worked")
            clients.pop().close()
            os.unlink("/dev/shm/of-another-program")
            report(attempt(clients, timeout=10))
            for client in clients:
                client.close()
        """,
    )
    assert (first, filled, worked, again) == ([3, 3], [28], ["worked"], [3])
    kind, text = full[0]
    assert kind == "ServiceUnavailable" and "0 of 307,200 are free" in text
    figures.note("a full /dev/shm", the_client_reads=text)


#: Commands that make the directory unusable, commands that restore it, and the client's error in between.
SPOILT = {
    "absent": (["mount -t tmpfs tmpfs /dev"], ["umount /dev"], "/dev/shm cannot be used (No such file or directory)"),
    "a file": (["mount -t tmpfs tmpfs /dev", "touch /dev/shm"], ["umount /dev"], "/dev/shm is not a directory"),
    "read-only": (["mount -o remount,ro /dev/shm"], ["mount -o remount,rw /dev/shm"], "remount,rw /dev/shm"),
}


@pytest.mark.slow
def test_without_a_directory_for_shared_memory_each_client_raises_the_reason_at_once() -> None:
    """The server neither retries for ever nor forgets the client; with the directory the next client is served."""
    told = run_with(
        "size=1m,nr_inodes=100",
        f"""
        with ServerProcess("tests.reliability.watched_service:service") as server:
            for spoil, mend, _ in {list(SPOILT.values())}:
                assert eventually(is_empty, 30)  # A file system with writable open files cannot become read-only.
                for command in spoil:
                    subprocess.run(command.split(), check=True)
                refused = attempt()
                for command in mend:
                    subprocess.run(command.split(), check=True)
                report(refused, attempt())
        """,
    )
    for ((kind, text), connected), (_, _, words) in zip(told, SPOILT.values(), strict=True):
        assert kind == "ServiceUnavailable"
        assert "refused the connection: " in text and words in text, text
        assert connected == 3


@pytest.mark.slow
def test_a_client_without_the_servers_shared_memory_raises_the_reason() -> None:
    """The client has another /dev/shm, as in another container, or none."""
    (other, none) = run_with(
        "size=1m,nr_inodes=100",
        """
        with ServerProcess("tests.reliability.watched_service:service") as server:
            for command in ("mount -t tmpfs tmpfs /dev/shm", "mount -t tmpfs tmpfs /dev"):
                program = "import shmrpc\\nwith shmrpc.sync.connect('tested.watched', timeout=10): pass"
                script = command + ' && exec "$@"'
                command = ["unshare", "-m", "--propagation", "private", "sh", "-c", script, "sh", sys.executable, "-c"]
                done = subprocess.run([*command, program], capture_output=True, text=True)
                report(done.stderr.splitlines()[-1])
        """,
    )
    assert other[0].startswith("shmrpc.errors.RemoteProtocolError: the server named a segment")
    assert "Both sides need the same /dev/shm (for containers: docker run --ipc=host" in other[0]
    assert none[0].startswith("shmrpc.errors.SharedMemoryError")
    assert "/dev/shm cannot be used (No such file or directory)" in none[0]


def test_a_segment_that_is_removed_at_each_attempt_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    before = sorted(os.listdir("/dev/shm"))
    monkeypatch.setattr(_core, "create_segment", lambda name, size: Path("/dev/shm", name).touch())
    with pytest.raises(shmrpc.SharedMemoryError, match="each of 10 was locked or removed by another process"):
        segment.NewSegment("tested")
    assert sorted(os.listdir("/dev/shm")) == before
