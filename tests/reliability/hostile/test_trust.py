"""Users besides our own: allowed users can call, other users are refused, and both read the reason."""

from __future__ import annotations

import asyncio
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import shmrpc
from shmrpc.host import cleanup, rendezvous, service_socket
from shmrpc.host.credentials import NO_OTHER_USERS
from shmrpc.host.status import collect_reports
from shmrpc.transport.connection_options import check_uids
from shmrpc.transport.shm.segment import NewSegment
from shmrpc.wire import control
from tests.helpers.host_names import host_to_oneself
from tests.helpers.scale import scaled
from tests.helpers.server_process import eventually
from tests.reliability.figures import note, times
from tests.reliability.hostile import shared_service
from tests.reliability.hostile.other_users import (
    ALLOWED,
    FORBIDDEN,
    Program,
    close_nursery,
    only_root,
    run_as,
    served_by,
)

pytestmark = only_root

TARGET = "tests.reliability.hostile.shared_service:service"
REFUSED = rf"refused the connection: uid {FORBIDDEN} may not use service '{shared_service.NAME}': its server allows "
STICKY = 0o1777


def _names_left() -> list[str]:
    """Return the names in /dev/shm of handshakes with the shared service."""
    return [name for name in os.listdir("/dev/shm") if f"shmrpc.{shared_service.NAME}." in name]


MakeDirectory = Callable[[int, int], Path]


@pytest.fixture(scope="module", autouse=True)
def nursery() -> Iterator[None]:
    yield
    close_nursery()


@pytest.fixture
def make_directory(monkeypatch: pytest.MonkeyPatch) -> Iterator[MakeDirectory]:
    """Make rendezvous directories with a given owner and mode, outside of directories that only root can enter."""
    made: list[Path] = []

    def make(owner: int, mode: int) -> Path:
        path = Path(tempfile.mkdtemp(prefix="shmrpc-tested-", dir="/tmp"))
        made.append(path)
        os.chown(path, owner, owner)
        path.chmod(mode)
        monkeypatch.setenv("SHMRPC_DIRECTORY", str(path))
        return path

    yield make
    for path in made:
        shutil.rmtree(path)


@pytest.fixture
def meeting(make_directory: MakeDirectory) -> Path:
    """Return a rendezvous directory of root, who serves in it."""
    return make_directory(0, 0o755)


# --- allowed users ---


@pytest.mark.slow
@pytest.mark.parametrize("workers", [[], ["--workers", "2"]])
def test_an_allowed_user_can_use_every_endpoint(meeting: Path, workers: list[str]) -> None:
    rounds = scaled(3, 50)
    with served_by(0, "--allow-user", str(ALLOWED), *workers):
        printed = run_as(
            ALLOWED,
            f"""
            for _ in range({rounds}):
                user, took = asyncio.run(shared_service.use_it())
                assert user == shared_service.use_it_in_threads() == {ALLOWED}
                print(took)
            """,
        )
        assert _names_left() == []
    assert len(printed.splitlines()) == rounds
    note("other users", connecting=times([float(line) for line in printed.splitlines()]))


def test_an_allowed_user_can_call_with_a_client_written_from_the_description(meeting: Path) -> None:
    with served_by(0, "--allow-user", str(ALLOWED)):
        assert (
            run_as(
                ALLOWED,
                """
            for options in ({}, {"how": ON_SEMAPHORE}):
                with WireClient(shared_service.NAME, **options) as client:
                    print(client.call("caller"))
            """,
            ).split()
            == [str(ALLOWED)] * 2
        )


def test_a_client_can_allow_the_server_of_another_user(make_directory: MakeDirectory) -> None:
    make_directory(ALLOWED, 0o755)
    with served_by(ALLOWED, "--allow-user", str(FORBIDDEN)):
        assert asyncio.run(shared_service.use_it(allow_uids=[ALLOWED]))[0] == os.geteuid()
        assert shared_service.use_it_in_threads(allow_uids=[ALLOWED]) == os.geteuid()
        # Neither side is root.
        assert run_as(FORBIDDEN, f"print(shared_service.use_it_in_threads(allow_uids=[{ALLOWED}]))") == str(FORBIDDEN)
        assert [report.service for report in collect_reports({ALLOWED})] == [shared_service.NAME]


def test_the_commands_work_for_allowed_users_and_show_nothing_to_others(meeting: Path) -> None:
    calls = """
        name = shared_service.NAME
        for arguments in (["call", name, "caller"], ["ls"], ["describe", name], ["stub", name]):
            with contextlib.suppress(SystemExit):
                shmrpc.cli.commands.main(arguments)
    """
    with served_by(0, "--allow-user", str(ALLOWED), "--allow-user", "daemon"):
        allowed, refused = run_as(ALLOWED, calls), run_as(FORBIDDEN, calls)
    assert allowed.startswith(f"{ALLOWED}\n")
    assert "NAME " in allowed
    assert "caller() -> int" in allowed
    assert "class " in allowed
    assert refused == f"No live services and no shared objects in {meeting}."


def test_allowing_an_unknown_user_is_an_error(meeting: Path) -> None:
    serve = f"expect(SystemExit, lambda: shmrpc.cli.commands.main(['serve', {TARGET!r}, '--allow-user', 'not-here']))"
    with Program(0, serve) as program:
        assert program.end() == "SystemExit: 2"
        assert "there is no user 'not-here' on this host; pass a user name or id" in program.errors


def test_a_client_of_the_command_line_names_the_users_whom_it_allows(make_directory: MakeDirectory) -> None:
    make_directory(ALLOWED, 0o755)
    call = """
        expect(SystemExit, lambda: shmrpc.cli.commands.main(["call", "--timeout", "0", shared_service.NAME, "caller"]))
        os.environ["SHMRPC_ALLOW_USER"] = "5 {uid}"
        shmrpc.cli.commands.main(["call", "--timeout", "0", shared_service.NAME, "caller"])
    """
    with served_by(ALLOWED):
        with Program(0, call.format(uid=ALLOWED)) as client:
            assert client.end() == "SystemExit: 3\n0"  # Not available.
            assert f"belongs to uid {ALLOWED}" in client.errors


# --- users who are not allowed ---


@pytest.mark.slow
@pytest.mark.parametrize("workers", [[], ["--workers", "1"]])
def test_another_user_reads_that_it_is_refused(meeting: Path, workers: list[str]) -> None:
    with served_by(0, "--allow-user", str(ALLOWED), *workers):
        printed = run_as(
            FORBIDDEN,
            """
            expect(shmrpc.ServiceUnavailable, connected)
            expect(shmrpc.ServiceUnavailable, lambda: asyncio.run(shared_service.use_it(timeout=0)))
            """,
        )
    assert re.fullmatch(
        rf"(ServiceUnavailable: the server {REFUSED}uid 0, uid {ALLOWED}; .*allow_uids=.*\n?){{2}}", printed
    )


def test_another_user_reads_only_the_refusal_whatever_it_sends(meeting: Path) -> None:
    """Packets and descriptors that arrive before the refusal would make a closed socket drop it."""
    with served_by(0, "--allow-user", str(ALLOWED)) as server:
        before = len(os.listdir(f"/proc/{server.pid}/fd"))
        os.kill(server.pid, signal.SIGSTOP)
        source = """
            dialled = rendezvous.dial(shared_service.NAME)
            dialled.setblocking(True)
            for packet in (control.encode(control.StatusRequest()), b"x" * 1000, b"y"):
                socket.send_fds(dialled, [packet], [0, 1, 2])
            print("sent", flush=True)
            print(dialled.recv(10_000))
            print(dialled.recv(10_000))
        """
        with Program(FORBIDDEN, source) as refused_program:
            assert refused_program.line() == "sent"
            os.kill(server.pid, signal.SIGCONT)
            refusal, end = refused_program.end().splitlines()
        assert b"refuse" in eval(refusal)
        assert eval(end) == b""
        assert eventually(lambda: len(os.listdir(f"/proc/{server.pid}/fd")) == before, 30)


def test_an_adopted_client_of_another_user_is_refused_too(meeting: Path) -> None:
    """A worker of a supervised server checks each client again."""

    async def serve(accepted: socket.socket) -> None:
        async with shmrpc.serve(shared_service.service, adopting=True, allow_uids=[ALLOWED]) as server:
            server.adopt(accepted)

    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listening:
        listening.bind(str(meeting / f"{shared_service.NAME}.sock"))
        (meeting / f"{shared_service.NAME}.sock").chmod(0o666)
        listening.listen()
        with Program(FORBIDDEN, "expect(shmrpc.ServiceUnavailable, connected)") as refused_program:
            accepted, _ = listening.accept()
            asyncio.run(serve(accepted))
            assert re.search(REFUSED, refused_program.end())


def test_without_the_option_other_users_cannot_open_the_socket(meeting: Path) -> None:
    with served_by(0):
        assert (meeting / f"{shared_service.NAME}.sock").stat().st_mode & 0o777 == 0o600
        printed = run_as(FORBIDDEN, "expect(shmrpc.ServiceUnavailable, connected)")
    assert f"admits only its own user; serve it with allow_uids=[{FORBIDDEN}]" in printed


async def test_a_client_sends_nothing_to_a_server_of_another_user(make_directory: MakeDirectory) -> None:
    make_directory(0, STICKY)
    source = """
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listening:
            listening.bind(runtime_dir.socket_paths(shared_service.NAME)[0])
            os.chmod(runtime_dir.socket_paths(shared_service.NAME)[0], 0o666)
            listening.listen()
            print("listening", flush=True)
            for _ in range(2):
                print(listening.accept()[0].recv(1000), flush=True)
    """
    words = rf"is served by uid {FORBIDDEN}; this process trusts uid 0. .*allow_uids=\[{FORBIDDEN}\]"
    with Program(FORBIDDEN, source) as server:
        assert server.line() == "listening"
        with pytest.raises(shmrpc.LocalProtocolError, match=words):
            await shmrpc.connect(shared_service.NAME, timeout=0)
        with pytest.raises(shmrpc.LocalProtocolError, match=words):
            shmrpc.sync.connect(shared_service.NAME, timeout=0).__enter__()
        assert server.end() == "b''\nb''"


def test_users_who_are_refused_again_and_again_disturb_no_other_client(meeting: Path) -> None:
    visits = scaled(300, 20_000)
    with served_by(0, "--allow-user", str(ALLOWED)) as server:
        with shmrpc.sync.connect(shared_service.NAME) as client:
            client.caller()  # From here on the server has all descriptors that it keeps for this client.
            before = len(os.listdir(f"/proc/{server.pid}/fd"))
            source = f"""
                refused = 0
                while refused < {visits}:
                    try:
                        connected()
                    except shmrpc.ServiceUnavailable as error:
                        refused += "may not use" in str(error)
                print(refused)
            """
            seconds: list[float] = []
            with Program(FORBIDDEN, source) as refused_program:
                while refused_program.is_running():
                    began = time.perf_counter()
                    assert client.caller() == os.geteuid()
                    seconds.append(time.perf_counter() - began)
                assert refused_program.end() == f"{visits}"
            assert eventually(lambda: len(os.listdir(f"/proc/{server.pid}/fd")) == before, 30)
        printed = server.stop()
    assert printed.count("may not use") == 1, "a refused user does not fill the log"
    note("refused users", refused=visits, calls_of_others=times(seconds))


# --- the owner of the memory ---


def _names(segment: str) -> list[str]:
    return [f"/{name}" for name in (segment, *cleanup.semaphore_names(segment))]


_TRY = """
for kind, name in zip((posix_ipc.SharedMemory, posix_ipc.Semaphore, posix_ipc.Semaphore), {names!r}):
    try:
        kind(name)
    except (posix_ipc.Error, OSError) as error:
        print("cannot")
    else:
        print("can")
"""
_SAY_HELLO = """
    dialled = rendezvous.dial(shared_service.NAME)
    dialled.setblocking(True)
    dialled.send(control.encode(control.Hello(control.VERSION, 1 << 20)))
    packet, descriptors, _, _ = socket.recv_fds(dialled, 10_000, 3)
    print(control.decode(packet).segment, flush=True)
    sys.stdin.readline()
    dialled.send(control.encode(control.Confirm()))
    print("confirmed", flush=True)
    sys.stdin.readline()
"""


def test_only_the_client_of_a_handshake_can_open_its_names(meeting: Path) -> None:
    with served_by(0, "--allow-user", str(ALLOWED), "--allow-user", str(FORBIDDEN)):
        with Program(ALLOWED, _SAY_HELLO) as client:
            names = _names(client.line())
            assert run_as(ALLOWED, _TRY.format(names=names)).split() == ["can"] * 3
            # This user may call, but does not own this connection.
            assert run_as(FORBIDDEN, _TRY.format(names=names)).split() == ["cannot"] * 3
            client.go_on()
            assert client.line() == "confirmed"
            assert eventually(lambda: _names_left() == [], 30)
            client.go_on()


def test_the_names_of_a_client_of_our_own_user_are_closed_to_other_users(meeting: Path) -> None:
    with served_by(0, "--allow-user", str(ALLOWED)):
        dialled = rendezvous.dial(shared_service.NAME)
        assert dialled is not None
        with dialled:
            dialled.setblocking(True)
            dialled.send(control.encode(control.Hello(control.VERSION, 1 << 20)))
            welcome = control.decode(dialled.recv(10_000))
            assert isinstance(welcome, control.Welcome)
            assert run_as(ALLOWED, _TRY.format(names=_names(welcome.segment))).split() == ["cannot"] * 3
            for name in (welcome.segment, *(f"sem.{each}" for each in welcome.semaphores or ())):
                path = f"/dev/shm/{name}"
                assert os.stat(path).st_mode & 0o777 == 0o600
                assert "system.posix_acl_access" not in os.listxattr(path)
        assert eventually(lambda: _names_left() == [], 30)


async def test_a_file_system_without_access_lists_refuses_other_users_only(
    meeting: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def setxattr(path: Any, *_: Any, **__: Any) -> None:
        raise OSError(95, "Operation not supported")

    monkeypatch.setattr(os, "setxattr", setxattr)
    async with shmrpc.serve(shared_service.service, allow_uids=[ALLOWED]):
        printed = await asyncio.to_thread(run_as, ALLOWED, "expect(shmrpc.ServiceUnavailable, connected)")
        assert _names_left() == []
        assert (await shared_service.use_it())[0] == os.geteuid()
    assert f"uid {ALLOWED} cannot get access to a segment of uid 0: /dev/shm takes no access list" in printed


@pytest.mark.parametrize(
    ("whose", "words"),
    [
        ("ours.name, ours.semaphores", "a segment 'shmrpc.tested.*' that belongs to uid 0"),
        ("theirs.name, ours.semaphores", "semaphores .* that are not those of"),
        ("theirs.name, theirs.semaphores", "a semaphore 'shmrpc.tested.*' that belongs to uid 0"),
    ],
)
def test_a_client_opens_no_memory_that_its_server_does_not_own(
    make_directory: MakeDirectory, whose: str, words: str
) -> None:
    """The server names objects of our own that it has seen in /dev/shm during another handshake."""
    make_directory(ALLOWED, 0o755)
    ours = NewSegment("tested")
    source = f"""
        class ours:
            name, semaphores = {ours.name!r}, {ours.semaphores!r}
        theirs = segment.NewSegment("tested")
        print(theirs.name, flush=True)
        sys.stdin.readline()
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listening:
            listening.bind(runtime_dir.socket_paths(shared_service.NAME)[0])
            listening.listen()
            print("listening", flush=True)
            accepted, _ = listening.accept()
            accepted.recv(1000)
            name, semaphores = {whose}
            welcome = control.Welcome(shared_service.NAME, 1, name, 65536, 2000, ["caller"], semaphores)
            socket.send_fds(accepted, [control.encode(welcome)], [accepted.fileno()] * 2)
            accepted.recv(1000)
        sys.stdin.readline()
        theirs.unlink()
    """
    try:
        with Program(ALLOWED, source) as server:
            theirs = server.line()
            if words.startswith(
                "a semaphore"
            ):  # Root can arrange this state, which a server could reach only by guessing names.
                os.chown(f"/dev/shm/sem.{theirs}.c2s", 0, 0)
            server.go_on()
            assert server.line() == "listening"
            with pytest.raises(shmrpc.RemoteProtocolError, match=words):
                shmrpc.sync.connect(shared_service.NAME, timeout=0, allow_uids=[ALLOWED]).__enter__()
            if words.startswith("a semaphore"):
                os.chown(f"/dev/shm/sem.{theirs}.c2s", ALLOWED, ALLOWED)
            server.go_on()
            server.end()
    finally:
        ours.unlink()


# --- the rendezvous directory ---


def _missing(path: Path) -> None:
    path.rmdir()


def _a_link(path: Path) -> None:
    path.rmdir()
    path.symlink_to("/tmp")


def _a_file(path: Path) -> None:
    path.rmdir()
    path.touch()


def _owned_by_another(path: Path) -> None:
    os.chown(path, FORBIDDEN, FORBIDDEN)


def _writable_by_a_group(path: Path) -> None:
    path.chmod(0o775)


def _writable_by_all(path: Path) -> None:
    path.chmod(0o777)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (_missing, "does not exist; make it .*install -d -m 755"),
        (_a_link, "is a symbolic link"),
        (_a_file, "is not a directory"),
        (_owned_by_another, rf"belongs to uid {FORBIDDEN}; it must belong to uid 0\."),
        (_writable_by_a_group, r"mode 0775.*chmod go-w .*chmod \+t"),
        (_writable_by_all, "mode 0777"),
    ],
)
async def test_an_unsafe_directory_is_refused_with_the_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, change: Callable[[Path], None], words: str
) -> None:
    place = tmp_path / "place"
    place.mkdir(mode=0o755)
    monkeypatch.setenv("SHMRPC_DIRECTORY", str(place))
    async with shmrpc.serve(shared_service.service):  # Without the change the directory is accepted.
        pass
    change(place)
    with pytest.raises(shmrpc.LocalProtocolError, match=words):
        async with shmrpc.serve(shared_service.service):
            pass
    with pytest.raises(shmrpc.LocalProtocolError, match=words):
        await shmrpc.connect(shared_service.NAME, timeout=0)
    if place.is_file() or place.is_symlink():
        place.unlink()


async def test_a_relative_path_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SHMRPC_DIRECTORY", "here")
    with pytest.raises(shmrpc.LocalProtocolError, match="'here'; it must be an absolute path"):
        await shmrpc.connect(shared_service.NAME, timeout=0)


async def test_a_server_refuses_a_directory_of_a_user_whom_it_serves(make_directory: MakeDirectory) -> None:
    """The user could replace a file whose mode the server changes by a link. A client may allow the owner."""
    make_directory(ALLOWED, 0o755)
    with pytest.raises(shmrpc.LocalProtocolError, match=f"belongs to uid {ALLOWED}"):
        async with shmrpc.serve(shared_service.service, allow_uids=[ALLOWED]):
            pass
    with pytest.raises(shmrpc.ServiceUnavailable):
        await shmrpc.connect(shared_service.NAME, timeout=0, allow_uids=[ALLOWED])


def test_a_directory_that_cannot_be_entered_or_written_is_reported(make_directory: MakeDirectory) -> None:
    place = make_directory(0, 0o700)
    serve = f"""
        async def main():
            async with shmrpc.serve(shared_service.service, allow_uids=[{FORBIDDEN}]):
                pass
        expect(shmrpc.LocalProtocolError, lambda: asyncio.run(main()))
    """
    assert re.search(
        rf"cannot be entered by uid {ALLOWED}", run_as(ALLOWED, "expect(shmrpc.LocalProtocolError, connected)")
    )
    place.chmod(0o755)
    assert re.search(
        rf"uid {ALLOWED} cannot write in .* \(uid 0, mode 0755\); serve as uid 0",
        run_as(ALLOWED, serve),
    )


async def test_users_who_cannot_enter_the_directory_cannot_be_allowed(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(shmrpc.LocalProtocolError, match=rf"allow_uids=\[{ALLOWED}\], but .*SHMRPC_DIRECTORY"):
        async with shmrpc.serve(shared_service.service, allow_uids=[ALLOWED]):
            pass
    async with shmrpc.serve(shared_service.service, allow_uids=[0, os.geteuid()]):  # These users can enter.
        assert (await shared_service.use_it(allow_uids=[ALLOWED]))[0] == os.geteuid()
    with pytest.raises(shmrpc.ServiceUnavailable, match="for services of other users set .SHMRPC_DIRECTORY"):
        await shmrpc.connect(shared_service.NAME, timeout=0, allow_uids=[ALLOWED])


_SERVE = f"""
    async def main():
        async with shmrpc.serve(shared_service.service, allow_uids=[{FORBIDDEN}]):
            pass
    expect(shmrpc.ShmrpcError, lambda: asyncio.run(main()))
    print([leftover.path for leftover in cleanup.clean()])
    print(sorted(os.listdir(os.environ["SHMRPC_DIRECTORY"])))
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "make"),
    [
        ("lock", "os.symlink('/etc/hostname', path)"),
        ("lock", "open(path, 'w').close()"),
        ("lock", "os.mkdir(path)"),
        ("lock", "os.mkfifo(path); os.chmod(path, 0o666)"),
        ("sock", "os.symlink('/etc/hostname', path)"),
        ("sock", "open(path, 'w').close()"),
    ],
)
def test_a_file_of_another_user_in_the_place_of_ours_is_reported(
    make_directory: MakeDirectory, name: str, make: str
) -> None:
    """In a directory that all users write, the name is lost; but no link is followed, and clean-up goes on."""
    place = make_directory(0, STICKY)
    run_as(FORBIDDEN, f"path = {str(place / f'{shared_service.NAME}.{name}')!r}; {make}")
    raised, cleaned, there = run_as(ALLOWED, _SERVE).splitlines()
    assert re.match(f"ServiceInUse: .*is another user's: .*belongs to uid {FORBIDDEN};", raised)
    assert cleaned == "[]"
    assert f"{shared_service.NAME}.{name}" in there


def test_root_does_not_take_the_lock_of_another_user(make_directory: MakeDirectory) -> None:
    """Root would be able to open the lock."""
    place = make_directory(0, STICKY)
    run_as(FORBIDDEN, f"open({str(place / f'{shared_service.NAME}.lock')!r}, 'w').close()")
    with pytest.raises(shmrpc.ServiceInUse, match=f"belongs to uid {FORBIDDEN}"):
        service_socket.ServiceSocket(shared_service.NAME, [ALLOWED])
    assert (place / f"{shared_service.NAME}.lock").read_bytes() == b""


@pytest.mark.parametrize("link", [os.link, os.symlink])
def test_a_lock_file_linked_to_another_file_does_not_empty_that_file(
    meeting: Path, link: Callable[[Path, Path], None]
) -> None:
    precious = meeting / "precious"
    precious.write_text("precious")
    link(precious, meeting / f"{shared_service.NAME}.lock")
    with pytest.raises(shmrpc.LocalProtocolError, match="remove it"):
        service_socket.ServiceSocket(shared_service.NAME)
    assert precious.read_text() == "precious"


def test_only_their_own_user_removes_the_remains_of_dead_processes(make_directory: MakeDirectory) -> None:
    place = make_directory(0, STICKY)
    die = f"""
        claim = service_socket.ServiceSocket(shared_service.NAME, [{FORBIDDEN}])
        made = segment.NewSegment("tested", {FORBIDDEN})
        print(made.name, flush=True)
        sys.stdin.readline()
    """
    with Program(ALLOWED, die) as server:
        names = {server.line()}
        names |= {f"sem.{each}" for each in cleanup.semaphore_names(*names)}
        server.kill()
    left = {str(place / f"{shared_service.NAME}.{kind}") for kind in ("lock", "sock")} | {
        f"/dev/shm/{name}" for name in names
    }
    listing = "print([leftover.path for leftover in cleanup.clean()])"
    assert eval(run_as(FORBIDDEN, listing)) == []
    with host_to_oneself():
        assert not left & {leftover.path for leftover in cleanup.clean()}, "root's clean-up removes only files of root"
    assert all(os.path.lexists(path) for path in left)
    assert set(eval(run_as(ALLOWED, listing))) == left
    assert not any(os.path.lexists(path) for path in left)


# --- user namespaces ---

_IN_NAMESPACE = """
    try:
        shmrpc.serve(shared_service.service, allow_uids=[65534])
    except ValueError as error:
        print(error, flush=True)
    async def main():
        async with shmrpc.serve(shared_service.service, allow_uids=[5]):
            print("serving", flush=True)
            await asyncio.get_running_loop().run_in_executor(None, sys.stdin.readline)
    asyncio.run(main())
"""


@pytest.mark.slow
def test_users_unknown_to_a_user_namespace_are_not_allowed(meeting: Path) -> None:
    namespace = ["unshare", "--user", "--map-root-user"]
    if subprocess.run([*namespace, "true"], capture_output=True, check=False).returncode:
        pytest.skip("this machine gives no user namespaces")
    source = "import asyncio, sys, shmrpc\nfrom tests.reliability.hostile import shared_service\n" + re.sub(
        r"^    ", "", _IN_NAMESPACE, flags=re.MULTILINE
    )
    with subprocess.Popen(
        [*namespace, sys.executable, "-c", source], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as server:
        assert server.stdin is not None
        assert server.stdout is not None
        assert "stands for every user that this user namespace does not know" in server.stdout.readline()
        assert server.stdout.readline() == "serving\n"
        printed = run_as(FORBIDDEN, "expect(shmrpc.ServiceUnavailable, connected)")
        assert "uid 65534 may not use service" in printed
        assert asyncio.run(shared_service.use_it())[0] == os.geteuid()
        server.communicate("\n", timeout=30)
        assert server.returncode == 0


# --- the option ---


@pytest.mark.parametrize(
    ("allow_uids", "kind", "words"),
    [
        ([-1], ValueError, "from 0 to 4294967294, got -1"),
        ([0xFFFF_FFFF], ValueError, "got 4294967295"),
        ([True], TypeError, "as numbers, got True"),
        (["alice"], TypeError, "as numbers, got 'alice'"),
        ([1.0], TypeError, r"as numbers, got 1\.0"),
        ("1001", TypeError, "expected a list of user ids, got '1001'"),
        (1001, TypeError, "expected a list of user ids, got 1001"),
        (None, TypeError, "got None"),
    ],
)
def test_invalid_user_ids_are_refused(allow_uids: Any, kind: type[Exception], words: str) -> None:
    for make in (
        lambda: shmrpc.serve(shared_service.service, allow_uids=allow_uids),
        lambda: shmrpc.connect(shared_service.NAME, allow_uids=allow_uids),
        lambda: shmrpc.sync.connect(shared_service.NAME, allow_uids=allow_uids),
    ):
        with pytest.raises(kind, match=f"allow_uids: .*{words}"):
            make()


def test_user_ids_may_come_in_any_collection() -> None:
    assert check_uids((1, 2)) == check_uids({2, 1}) == check_uids([1, 2, 1]) == {1, 2}
    assert check_uids(()) == NO_OTHER_USERS
