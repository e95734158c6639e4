"""A /dev/shm with no room: connecting says so and what to do, who is connected goes on, and room heals it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap
from typing import Any

import pytest

from tests.reliability import figures

#: Bytes of a segment, as the errors have them.
SEGMENT = "133,120 bytes"

PRELUDE = """
    import json, os, subprocess, sys
    import shmrpc
    from tests.support import ServerProcess, eventually

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

    def tell(*what):
        print(json.dumps(what), flush=True)

"""


def may_mount() -> bool:
    """Whether this process may have a /dev/shm of its own."""
    command = ["unshare", "-m", "--propagation", "private", "mount", "-t", "tmpfs", "tmpfs", "/dev/shm"]
    try:
        return subprocess.run(command, capture_output=True, timeout=30).returncode == 0
    except (OSError, subprocess.TimeoutExpired):
        return False


pytestmark = pytest.mark.skipif(not may_mount(), reason="a mount namespace with a small /dev/shm takes root")


def run_with(options: str, source: str) -> list[Any]:
    """What a program tells in which /dev/shm has these mount options."""
    mount = f'mount -t tmpfs -o {options} tmpfs /dev/shm && exec "$@"'
    program = textwrap.dedent(PRELUDE) + textwrap.dedent(source)
    command = ["unshare", "-m", "--propagation", "private", "bash", "-c", mount, "small", sys.executable, "-c", program]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, env=os.environ)
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


#: Mount options, and what the client reads then.
WANTS = {
    "size=100k,nr_inodes=100": [SEGMENT, "102,400 of 102,400 are free", "remount,size="],
    "size=136k,nr_inodes=100": [SEGMENT, "two pages", "remount,size="],  # The segment has room, its semaphores not.
    "size=1m,nr_inodes=1": ["of its 1 files are free", "remount,nr_inodes="],
    "size=1m,nr_inodes=3": ["of its 3 files are free", "remount,nr_inodes="],
}


def test_connecting_says_what_there_is_too_little_of() -> None:
    told = run_with(
        "size=1m,nr_inodes=100",
        f"""
        with ServerProcess("tests.reliability.watched:service") as server:
            for options in {list(WANTS)}:
                remount(options)
                refused = attempt()
                left = os.listdir("/dev/shm")
                remount("size=1m,nr_inodes=100")
                tell(refused, left, attempt())
                assert eventually(is_empty, 30)
        """,
    )
    for ((kind, text), left, connected), words in zip(told, WANTS.values(), strict=True):
        assert kind == "ServiceUnavailable"
        assert all(word in text for word in ["refused the connection", "/dev/shm is full", *words]), text
        assert left == [], "what was made before is removed"
        assert connected == 3, "with room the next client is served"


def test_who_is_connected_goes_on_in_a_full_shared_memory() -> None:
    """Their memory was set aside when they came: no SIGBUS, in the rings and beside them."""
    first, filled, full, worked, again = run_with(
        "size=300k",
        """
        with ServerProcess("tests.reliability.watched:service") as server:
            clients = []
            tell(attempt(clients), attempt(clients))
            with open("/dev/shm/of-somebody-else", "wb", buffering=0) as file:
                written = 0
                try:
                    while True:
                        written += file.write(bytes(4096))
                except OSError as error:
                    tell(error.errno)
            tell(attempt())
            small, large = bytes(range(256)) * 100, bytes(1 << 20)
            for client in clients:
                for i in range(50):
                    assert client.echo(small) == small
                assert client.echo(large) == large
            tell("worked")
            clients.pop().close()
            os.unlink("/dev/shm/of-somebody-else")
            tell(attempt(clients, timeout=10))
            for client in clients:
                client.close()
        """,
    )
    assert (first, filled, worked, again) == ([3, 3], [28], ["worked"], [3])
    kind, text = full[0]
    assert kind == "ServiceUnavailable" and "0 of 307,200 are free" in text
    figures.note("a full /dev/shm", the_client_reads=text)
