"""A server and a client of which one has $XDG_RUNTIME_DIR and the other has not, or a session begins between them."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

import shmrpc
from shmrpc.host import cleanup
from shmrpc.host.service_socket import ServiceSocket
from shmrpc.host.status import collect_reports
from tests.helpers.host_names import SHM, host_to_oneself
from tests.helpers.services import service


@pytest.fixture(autouse=True)
def places(runtime: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Path, Path]:
    """Return the directory of a login, which does not exist, and the other one: neither is the machine's own."""
    login, temporary = runtime.parent / "login", runtime.parent / "temporary"
    monkeypatch.setattr(cleanup, "LOGIN_DIRECTORY", str(login))
    monkeypatch.setattr(cleanup, "TEMPORARY_DIRECTORY", str(temporary))
    monkeypatch.delenv("XDG_RUNTIME_DIR")
    return login, temporary


def dead() -> list[str]:
    """Return the files that a clean-up removes in runtime directories; in /dev/shm other tests may have left some."""
    with host_to_oneself():
        return [leftover.path for leftover in cleanup.clean() if Path(leftover.path).parent != SHM]


async def check_met() -> None:
    async with shmrpc.connect("tested") as client:
        assert await client.add(1, 2) == 3


async def test_a_server_of_before_the_login_is_found(
    places: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    login, temporary = places
    async with shmrpc.serve(service):
        assert sorted(os.listdir(temporary)) == ["tested.lock", "tested.sock"]
        await check_met()
        os.mkdir(login, 0o700)
        monkeypatch.setenv("XDG_RUNTIME_DIR", str(login))
        await check_met()
        with pytest.raises(shmrpc.ServiceInUse, match=f"process {os.getpid()}, which clients meet in {temporary}"):
            ServiceSocket("tested")
        assert dead() == []


async def test_a_server_of_a_login_is_found_without_the_variable(
    places: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    login, _ = places
    os.mkdir(login, 0o700)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(login))
    async with shmrpc.serve(service):
        assert sorted(os.listdir(login / "shmrpc")) == ["tested.lock", "tested.sock"]
        monkeypatch.delenv("XDG_RUNTIME_DIR")
        await check_met()


def test_the_error_without_a_service_names_the_directories(places: tuple[Path, Path]) -> None:
    login, temporary = places
    os.mkdir(login, 0o700)
    with pytest.raises(shmrpc.ServiceUnavailable, match=rf"looked in {login}/shmrpc and {temporary}\)"):
        shmrpc.sync.connect("tested", timeout=0).__enter__()


def test_a_lookup_makes_no_directory(places: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    login, temporary = places

    def look() -> None:
        with pytest.raises(shmrpc.ServiceUnavailable, match="no server of 'tested'"):
            shmrpc.sync.connect("tested", timeout=0).__enter__()
        assert collect_reports() == []
        assert dead() == []

    look()
    assert not temporary.exists()
    os.mkdir(login, 0o700)
    look()
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(login))
    look()
    assert os.listdir(login) == []
    assert not temporary.exists()


def test_files_of_the_dead_are_removed_in_both(places: tuple[Path, Path]) -> None:
    login, temporary = places
    for place in (login / "shmrpc", temporary):
        place.mkdir(mode=0o700, parents=True)
        (place / "tested.lock").touch()
    assert dead() == [
        str(login / "shmrpc" / "tested.lock"),
        str(temporary / "tested.lock"),
    ]
    assert collect_reports() == []


def test_a_place_of_its_own_is_the_only_one(places: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    os.mkdir(places[0], 0o700)
    monkeypatch.setenv("XDG_RUNTIME_DIR", "/elsewhere")
    assert cleanup.runtime_directories() == [Path("/elsewhere/shmrpc")]
