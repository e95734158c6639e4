"""Obstacles in the rendezvous directory, beside those of tests/transport/test_hostile_server.py."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest

import shmrpc
from tests.reliability.watched_service import service

#: The user id of another user.
OTHER_USER = 65534

CLIENT = f"""
import os, sys, shmrpc
os.environ["XDG_RUNTIME_DIR"] = sys.argv[1]
try:  # Modules may lie in a folder that is closed to other users.
    shmrpc.sync.connect("tested.watched", timeout=0).__enter__()
except shmrpc.ShmrpcError:
    pass
os.setgid({OTHER_USER})
os.setuid({OTHER_USER})
try:
    shmrpc.sync.connect("tested.watched", timeout=0.05).__enter__()
except shmrpc.ShmrpcError as error:
    print(type(error).__name__, error)
"""


def a_link(path: Path) -> None:
    path.symlink_to("/etc/passwd")


@pytest.mark.parametrize(
    ("name", "make"),
    [
        ("tested.watched.lock", a_link),
        ("tested.watched.lock", Path.mkdir),
        ("tested.watched.lock", os.mkfifo),
        ("tested.watched.sock", Path.mkdir),
    ],
)
async def test_a_path_occupied_by_another_file_is_reported(
    runtime: Path, name: str, make: Callable[[Path], object]
) -> None:
    os.mkdir(runtime, 0o700)
    make(runtime / name)
    before = os.lstat(runtime / name)
    with pytest.raises(shmrpc.LocalProtocolError, match=rf"{name} is no file of shmrpc"):
        async with shmrpc.serve(service):
            pass
    assert os.path.samestat(os.lstat(runtime / name), before), "the file has been removed"
    with pytest.raises(shmrpc.ServiceUnavailable, match="no server of"):
        await shmrpc.connect("tested.watched", timeout=0)
    os.rmdir(runtime / name) if (runtime / name).is_dir() else os.unlink(runtime / name)
    async with shmrpc.serve(service), shmrpc.connect("tested.watched") as client:
        assert await client.add(1, 2) == 3


@pytest.mark.parametrize("make", [a_link, Path.touch])
async def test_a_file_in_the_place_of_the_socket_is_replaced_and_a_link_is_not_followed(
    runtime: Path, make: Callable[[Path], object]
) -> None:
    os.mkdir(runtime, 0o700)
    make(runtime / "tested.watched.sock")
    written = os.stat("/etc/passwd").st_mtime_ns
    async with shmrpc.serve(service), shmrpc.connect("tested.watched") as client:
        assert await client.add(1, 2) == 3
    assert os.stat("/etc/passwd").st_mtime_ns == written
    assert os.listdir(runtime) == []


@pytest.mark.slow
@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
@pytest.mark.parametrize(
    ("mode", "words"),
    [
        (0o755, f"shmrpc belongs to uid 0 and not to you (uid {OTHER_USER})"),
        (0o700, f"is closed to you (uid {OTHER_USER})"),
    ],
)
def test_another_user_reads_the_owner_of_the_directory(mode: int, words: str) -> None:
    with tempfile.TemporaryDirectory(dir="/tmp") as place:
        os.chmod(place, mode)
        (Path(place) / "shmrpc").mkdir(mode=0o700)
        done = subprocess.run([sys.executable, "-c", CLIENT, place], capture_output=True, text=True, timeout=60)
    assert done.stderr == ""
    assert done.stdout.startswith("LocalProtocolError") and words in done.stdout
