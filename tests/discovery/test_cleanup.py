"""Files of dead processes are removed; files of living processes and of others are not touched."""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import posix_ipc
import pytest

import shmrpc
from shmrpc import _core
from shmrpc.host import cleanup
from shmrpc.host.service_socket import ServiceSocket
from shmrpc.host.status import collect_reports
from shmrpc.transport.shm.segment import NewSegment
from tests.helpers.host_names import SHM, host_to_oneself
from tests.helpers.server_process import Script, ServerProcess

DIES_IN_HANDSHAKE = """
    import asyncio, os, signal, shmrpc
    from shmrpc.transport.shm import segment
    made = segment.NewSegment("tested")
    print(made.name, flush=True)
    os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.fixture(autouse=True)
def alone() -> Iterator[None]:
    """Give each test its own files to clean up."""
    with host_to_oneself():
        yield


@pytest.fixture
def stale_files() -> Iterator[list[Path]]:
    """Yield the files of a server that is killed in the middle of a handshake."""
    with Script(DIES_IN_HANDSHAKE) as dying:
        name = dying.line()
        dying.process.wait()
    paths = [SHM / name, *(SHM / f"sem.{semaphore}" for semaphore in cleanup.semaphore_names(name))]
    assert all(path.exists() for path in paths)
    yield paths
    for path in paths:
        path.unlink(missing_ok=True)


def ours(found: list[cleanup.Leftover], paths: list[Path]) -> list[cleanup.Leftover]:
    return [leftover for leftover in found if Path(leftover.path) in paths]


def met(found: list[cleanup.Leftover]) -> list[cleanup.Leftover]:
    """Return the findings in the runtime directory, which is this test's own."""
    return [leftover for leftover in found if Path(leftover.path).parent != SHM]


def test_a_death_within_the_handshake_is_cleaned_up(stale_files: list[Path]) -> None:
    listed = ours(cleanup.clean(dry_run=True), stale_files)
    assert sorted(leftover.file for leftover in listed) == ["segment", "semaphore", "semaphore"]
    assert not any(leftover.removed for leftover in listed)
    assert all(path.exists() for path in stale_files)
    segment = next(leftover for leftover in listed if leftover.file == "segment")
    assert segment.size == stale_files[0].stat().st_blocks * 512 >= 2 * 4096, (
        "what it takes, and not what it may grow to"
    )
    assert "no process holds its lock" in segment.why
    removed = ours(cleanup.clean(), stale_files)
    assert all(leftover.removed and leftover.error is None for leftover in removed)
    assert not any(path.exists() for path in stale_files)
    assert ours(cleanup.clean(), stale_files) == []


def test_a_killed_servers_socket_and_lock_are_cleaned_up(server: ServerProcess, runtime: Path) -> None:
    server.kill()
    found = cleanup.clean()
    kinds = {leftover.path: leftover for leftover in found}
    for name, file in (("tested.sock", "socket"), ("tested.lock", "lock")):
        leftover = kinds[str(runtime / name)]
        assert (leftover.kind, leftover.file) == ("service", file)
        assert f"pid {server.pid}" in leftover.owner
    assert os.listdir(runtime) == []


async def test_files_of_living_processes_are_not_touched(server: ServerProcess, runtime: Path) -> None:
    handshaking = NewSegment("tested")
    try:
        async with shmrpc.connect("tested") as client:
            paths = [SHM / handshaking.name, *(SHM / f"sem.{name}" for name in handshaking.semaphores or ())]
            assert ours(cleanup.clean(), [*paths, runtime / "tested.sock", runtime / "tested.lock"]) == []
            assert all(path.exists() for path in paths)
            assert await client.add(1, 2) == 3
    finally:
        handshaking.unlink()


def test_files_of_others_are_not_touched(runtime: Path) -> None:
    runtime.mkdir(mode=0o700)
    stem = "0" * 32
    foreign = [
        SHM / "shmrpc_other_program",
        SHM / f"shmrpc.tested.{stem[:-1]}",
        SHM / f"shmrpc.tested.{stem}.backup",
        SHM / f"sem.shmrpc.tested.{stem}.lock",
        SHM / f"xshmrpc.tested.{stem}",
        runtime / "notes.txt",
    ]
    link = SHM / f"shmrpc.tested.{stem}"
    try:
        for path in foreign:
            path.write_text("foreign")
        link.symlink_to(foreign[0])
        before = {path: path.read_text() for path in foreign}
        assert ours(cleanup.clean(), [*foreign, link]) == []
        assert {path: path.read_text() for path in foreign} == before
        assert link.is_symlink()
    finally:
        link.unlink(missing_ok=True)
        for path in foreign:
            path.unlink(missing_ok=True)


def test_a_pid_in_use_proves_nothing(runtime: Path) -> None:
    runtime.mkdir(mode=0o700)
    lock = runtime / "tested.lock"
    lock.write_text(f"{os.getpid()}\n")
    assert [leftover.path for leftover in met(cleanup.clean())] == [str(lock)]
    assert not lock.exists()


def test_a_socket_without_a_lock_is_dead(runtime: Path) -> None:
    runtime.mkdir(mode=0o700)
    (runtime / "tested.sock").touch()
    found = met(cleanup.clean(dry_run=True))
    assert [leftover.file for leftover in found] == ["socket"]
    assert os.listdir(runtime) == ["tested.sock"]
    cleanup.clean()
    assert os.listdir(runtime) == []


def test_a_server_whose_lock_file_was_removed_keeps_its_name(server: ServerProcess, runtime: Path) -> None:
    """A clean-up leaves its socket, a second server is refused, and it takes its files along when it ends."""
    (runtime / "tested.lock").unlink()
    for dry_run in (True, False):
        assert met(cleanup.clean(dry_run=dry_run)) == []
        assert os.listdir(runtime) == ["tested.sock"]
    said = f"is already served by process {server.pid}, although its lock file was removed"
    with pytest.raises(shmrpc.ServiceInUse, match=said) as caught:
        ServiceSocket("tested")
    assert caught.value.pid == server.pid
    assert ours(cleanup.clean(), [runtime / "tested.sock"]) == [], "also with a lock file that no process holds"
    with shmrpc.sync.connect("tested") as client:
        assert client.add(1, 2) == 3
    server.stop()
    assert os.listdir(runtime) == []


def inodes(directory: Path) -> dict[str, int]:
    return {path.name: path.stat().st_ino for path in directory.iterdir()}


@pytest.mark.parametrize("has_died", [False, True])
def test_the_end_of_a_server_leaves_the_files_of_the_next_one(
    server: ServerProcess, runtime: Path, has_died: bool
) -> None:
    """Its files were removed, and another server has the name since, or had it and was killed."""
    for name in inodes(runtime):
        (runtime / name).unlink()
    with ServerProcess() as other:
        if has_died:
            other.kill()
        before = inodes(runtime)
        server.stop()
        assert inodes(runtime) == before
        if not has_died:
            with shmrpc.sync.connect("tested") as client:
                assert client.add(1, 2) == 3


def test_a_server_whose_directory_was_removed_ends_in_peace(server: ServerProcess, runtime: Path) -> None:
    shutil.rmtree(runtime)
    assert "Traceback" not in server.stop()
    assert server.process.returncode == 0


def test_a_lock_that_others_always_remove_is_an_error(runtime: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    runtime.mkdir(mode=0o700)
    real = fcntl.flock

    def removed(descriptor: int, operation: int) -> None:
        real(descriptor, operation)
        (runtime / "tested.lock").unlink()

    monkeypatch.setattr(fcntl, "flock", removed)
    with pytest.raises(OSError, match="each of 100 files was removed by another process before it was locked"):
        cleanup.take_lock(runtime / "tested.lock", create=True)


def test_files_that_could_not_be_removed_are_reported(
    stale_files: list[Path], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def refuse(self: Path, missing_ok: bool = False) -> None:
        raise PermissionError(1, "Operation not permitted")

    with monkeypatch.context() as patched:
        patched.setattr(Path, "unlink", refuse)
        assert cleanup.main([]) == 1
    printed = capsys.readouterr().out
    assert f"COULD NOT REMOVE {stale_files[0]}" in printed
    assert "Operation not permitted (errno 1)" in printed


def test_a_clean_up_between_creation_and_lock_is_survived(monkeypatch: pytest.MonkeyPatch) -> None:
    real = _core.create_segment
    cleaned: list[cleanup.Leftover] = []

    def overtaken(name: str, size: int) -> None:
        monkeypatch.setattr(_core, "create_segment", real)
        (SHM / name).touch(0o600)
        # Others may be left by servers that other tests have killed.
        found = (leftover for leftover in cleanup.clean() if leftover.file == "segment")
        cleaned.extend(leftover for leftover in found if "/shmrpc.tested.overtaken." in leftover.path)

    monkeypatch.setattr(_core, "create_segment", overtaken)
    segment = NewSegment("tested.overtaken")
    try:
        assert len(cleaned) == 1
        assert (SHM / segment.name).exists()
        assert segment.name not in cleaned[0].path
    finally:
        segment.unlink()


LOOKS = f"""
import fcntl, os
print("looks", flush=True)
while True:
    for name in os.listdir("{SHM}"):
        if name.startswith("shmrpc.looked.at@"):
            try:
                file = os.open("{SHM}/" + name, os.O_RDWR)
            except OSError:
                continue
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                pass
            os.close(file)
"""


def test_names_are_made_while_a_clean_up_looks_whether_their_makers_live(runtime: Path) -> None:
    """A clean-up takes each lock for a moment, also that of a file whose maker has not locked it so far."""
    with subprocess.Popen([sys.executable, "-c", LOOKS], stdout=subprocess.PIPE) as looks:
        assert looks.stdout is not None
        try:
            looks.stdout.readline()
            for _ in range(1000):
                shmrpc.memory("looked.at", 4096).close()
        finally:
            looks.kill()
    assert not list(SHM.glob("shmrpc.looked.at@*"))


@pytest.mark.parametrize("command", [["-m", "shmrpc", "cleanup"], ["util/shmrpc_cleanup.py"]])
def test_the_commands(stale_files: list[Path], command: list[str]) -> None:
    def run(*options: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run([sys.executable, *command, *options], capture_output=True, text=True, check=False)

    listed = run("--dry-run", "--json")
    assert listed.returncode == 0
    entries = {entry["path"]: entry for entry in json.loads(listed.stdout)}
    assert all(not entries[str(path)]["removed"] for path in stale_files)
    assert {"path", "kind", "file", "size", "owner", "why", "removed", "error"} == set(entries[str(stale_files[0])])
    assert f"would remove {stale_files[0]}" in run("--dry-run").stdout
    done = run()
    assert done.returncode == 0
    assert f"removed {stale_files[0]}" in done.stdout
    assert not any(path.exists() for path in stale_files)


def test_the_script_needs_no_package(tmp_path: Path) -> None:
    copy = tmp_path / "cleanup.py"
    copy.write_text(Path("util/shmrpc_cleanup.py").read_text())
    done = subprocess.run(
        [sys.executable, "-I", "-S", str(copy), "--dry-run", "--json"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert isinstance(json.loads(done.stdout), list)


def test_a_semaphore_alone_is_dead() -> None:
    name = cleanup.segment_name("tested", "f" * 32)
    semaphore = posix_ipc.Semaphore(f"/{name}.c2s", posix_ipc.O_CREX, mode=0o600)
    semaphore.close()
    path = SHM / f"sem.{name}.c2s"
    found = ours(cleanup.clean(), [path])
    assert [leftover.why for leftover in found] == ["its segment is gone, and segments are removed last"]
    assert not path.exists()


def of_kind(kind: str, runtime: Path) -> list[Path]:
    """Make the files of a dead owner of a name of this kind, and return their paths."""
    runtime.mkdir(mode=0o700, exist_ok=True)
    segment = cleanup.segment_name("tested", "e" * 32, kind)
    semaphore = f"sem.{cleanup.semaphore_names(segment)[0]}"
    spelled = cleanup.spell("tested", kind)
    paths = [SHM / semaphore, SHM / segment, runtime / f"{spelled}.sock", runtime / f"{spelled}.lock"]
    for path in paths:
        path.touch()
    return paths


@pytest.fixture
def gadget(runtime: Path) -> Iterator[list[Path]]:
    paths = of_kind("gadget", runtime)
    yield paths
    for path in paths:
        path.unlink(missing_ok=True)


def test_the_dead_of_each_known_kind_are_removed(
    gadget: list[Path], runtime: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cleanup, "KINDS", {cleanup.SERVICE, "gadget"})
    held = cleanup.take_lock(gadget[-1], create=False)
    assert held is not None
    assert [leftover.path for leftover in ours(cleanup.clean(), gadget)] == [str(path) for path in gadget[:2]]
    os.close(held)
    found = ours(cleanup.clean(), gadget)
    assert [(leftover.kind, leftover.file) for leftover in found] == [("gadget", "socket"), ("gadget", "lock")]
    assert os.listdir(runtime) == []


def test_a_name_of_an_unknown_kind_is_left_alone_and_mentioned(gadget: list[Path]) -> None:
    found = ours(cleanup.clean(), gadget)
    assert sorted(leftover.path for leftover in found) == sorted(map(str, gadget))
    assert {(leftover.kind, leftover.file, leftover.removed) for leftover in found} == {("gadget", "unknown", False)}
    assert all(path.exists() for path in gadget)
    text, status = cleanup.run(dry_run=False, as_json=False)
    assert status == 0
    assert f"left alone {gadget[0]}  (gadget, unknown, 0 bytes" in text
    assert "this version does not know its kind" in text


def test_a_name_of_another_kind_is_no_service(gadget: list[Path]) -> None:
    """A listing of services, or a lookup of a similar one, sends nothing to a gadget's socket."""
    said: list[str] = []
    assert collect_reports(on_silent=said.append) == []
    assert said == []
    with pytest.raises(shmrpc.ServiceUnavailable), shmrpc.sync.connect("teste", timeout=0):
        pass


def test_a_service_is_spelled_as_it_is_and_others_with_their_kind() -> None:
    assert [cleanup.spell("jobs"), cleanup.spell("jobs", "gadget")] == ["jobs", "jobs@gadget"]
    files = [
        "jobs.lock",
        "jobs.sock",
        "a.b.sock",
        "jobs@gadget.sock",
        "logs@gadget.lock",
        "x@service.sock",
        "x",
        "notes.txt",
    ]
    assert cleanup.names_of("service", files) == {"jobs", "a.b"}
    assert cleanup.names_of("gadget", files) == {"jobs", "logs"}
