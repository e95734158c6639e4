"""Every name that shmrpc leaves in the file system, and the removal of those whose owner is dead.

This file needs nothing but the standard library and runs alone, so that a machine without the package
can be cleaned too: ``python cleanup.py [--dry-run] [--json]``. ``shmrpc cleanup`` is the same code.

===================================================  ===================================================
name                                                 alive while
===================================================  ===================================================
``DIR/SERVICE.lock``, ``DIR/SERVICE.sock``           the server holds the flock on the ``.lock``, or listens at
                                                     the ``.sock``, as one does whose ``.lock`` was removed
``/dev/shm/shmrpc.SERVICE.RANDOM``                   the server holds the flock on the file itself
``/dev/shm/sem.shmrpc.SERVICE.RANDOM.c2s``, ``.s2c``  the segment with the same stem is alive
===================================================  ===================================================

A flock is dropped by the kernel when its holder dies, however it dies, so it proves life; a process id
proves nothing, since ids are used again. A semaphore's file cannot be locked before it exists, so its
segment answers for it: that is created before the semaphores and removed after them.
"""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import fcntl
import json
import os
import pwd
import re
import socket
import stat
import struct
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

SHM_DIRECTORY = Path("/dev/shm")
SERVICE_NAME = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9_-]|\.(?!\.)){0,62}[A-Za-z0-9]|[A-Za-z0-9]")
_SEGMENT = re.compile(rf"shmrpc\.(?:{SERVICE_NAME.pattern})\.[0-9a-f]{{32}}")
_SEMAPHORE = re.compile(rf"sem\.(?P<stem>{_SEGMENT.pattern})\.(?:c2s|s2c)")
_RENDEZVOUS = re.compile(rf"(?P<service>{SERVICE_NAME.pattern})\.(?:lock|sock)")


def shared_directory() -> Path | None:
    """Where services of several users meet, if ``$SHMRPC_DIRECTORY`` names a place."""
    named = os.environ.get("SHMRPC_DIRECTORY")
    return Path(named) if named else None


#: The directory of a user who is logged in, and one that is there also when nobody is; by user id.
LOGIN_DIRECTORY = "/run/user/{}"
TEMPORARY_DIRECTORY = "/tmp/shmrpc-{}"


def runtime_directories() -> list[Path]:
    """Where services meet: a server in the first of these, and who looks for one looks in all.

    ``$SHMRPC_DIRECTORY`` alone if it names one, and ``$XDG_RUNTIME_DIR/shmrpc`` alone if that was set to a place of its
    own. Else ``/run/user/UID/shmrpc``, if the user has that directory now, and ``/tmp/shmrpc-UID``: by then it does not
    matter who has the variable (a shell) and who has not (cron, systemd, su, docker exec).
    """
    shared = shared_directory()
    if shared is not None:
        return [shared]
    uid = os.geteuid()
    base, login = os.environ.get("XDG_RUNTIME_DIR"), Path(LOGIN_DIRECTORY.format(uid))
    if base and Path(base) != login:
        return [Path(base) / "shmrpc"]
    temporary = Path(TEMPORARY_DIRECTORY.format(uid))
    status = _own_status(login)
    return [login / "shmrpc", temporary] if status is not None and stat.S_ISDIR(status.st_mode) else [temporary]


def runtime_directory() -> Path:
    """Where a server of ours would be met."""
    return runtime_directories()[0]


def segment_name(service: str, random: str) -> str:
    """The name of a segment, without the slash: 32 hexadecimal digits make it unique."""
    return f"shmrpc.{service}.{random}"


def is_segment(name: str) -> bool:
    """Whether a segment of ours may have this name."""
    return _SEGMENT.fullmatch(name) is not None


def semaphore_names(segment: str) -> tuple[str, str]:
    """The names of a segment's semaphores: client to server, server to client."""
    return f"{segment}.c2s", f"{segment}.s2c"


#: Files that are opened for one lock, each of which was removed before it was locked.
_LOCKS = 100


def take_lock(path: Path, *, create: bool) -> int | None:
    """Locks the file at ``path``; its descriptor, or None if a living process holds it.

    With ``create`` a missing file is made; without, FileNotFoundError. The descriptor is of the file that
    has the name now, never of one that was removed meanwhile. Raises OSError if the system does.
    """
    flags = os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW | (os.O_CREAT if create else 0)
    for _ in range(_LOCKS):
        descriptor = os.open(path, flags, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if is_at(os.fstat(descriptor), path):
                return descriptor
        except BlockingIOError:
            os.close(descriptor)
            return None
        except BaseException:
            os.close(descriptor)
            raise
        os.close(descriptor)
    raise OSError(errno.EBUSY, f"each of {_LOCKS} files was removed by another process before it was locked", str(path))


def is_at(status: os.stat_result, path: Path) -> bool:
    """Whether the file of this status is the one that has the name now."""
    with contextlib.suppress(FileNotFoundError):
        return os.path.samestat(status, os.lstat(path))
    return False


def listener(path: Path) -> int | None:
    """The process that listens at a socket file, None if nobody does. 0: one of which the kernel tells us no id.

    Raises OSError if that cannot be known.
    """
    with contextlib.suppress(FileNotFoundError):
        if not stat.S_ISSOCK(os.lstat(path).st_mode):  # Connecting would follow a link.
            return None
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as probe:
        probe.setblocking(False)
        try:
            probe.connect(str(path))
        except (ConnectionRefusedError, FileNotFoundError):
            return None
        except BlockingIOError:  # More clients wait than it has room for.
            return 0
        return int(struct.unpack("iII", probe.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))[0])


@dataclasses.dataclass
class Leftover:
    """A name of ours whose owner is dead, and what became of it."""

    path: str
    #: "segment", "semaphore", "socket" or "lock"
    kind: str
    #: bytes
    size: int
    #: user name, with the process id if it is known
    owner: str
    why: str
    removed: bool = False
    #: why it could not be removed
    error: str | None = None


def clean(*, dry_run: bool = False) -> list[Leftover]:
    """Removes what dead servers left, and nothing else; what was found, in the order of removal.

    With ``dry_run`` it is only listed. Names that belong to a living server, to another user, or to
    another program are not touched.
    """
    found: list[Leftover] = []
    for find in (_dead_semaphores, _dead_segments, _dead_rendezvous):
        for leftover, remove in find():
            if not dry_run:
                try:
                    remove()
                    leftover.removed = True
                except FileNotFoundError:  # Its own server, or another clean-up, was quicker.
                    leftover.removed = True
                except OSError as error:
                    leftover.error = f"{error.strerror} (errno {error.errno})"
            found.append(leftover)
    return found


Found = Iterator[tuple[Leftover, Callable[[], None]]]


def _own_files(directory: Path, pattern: re.Pattern[str]) -> Iterator[tuple[Path, os.stat_result, re.Match[str]]]:
    """Files of this user in ``directory`` whose whole name fits the pattern."""
    try:
        names = sorted(os.listdir(directory))
    except (FileNotFoundError, PermissionError, NotADirectoryError):
        return
    for name in names:
        match = pattern.fullmatch(name)
        if match is None:
            continue
        status = _own_status(directory / name)
        if status is not None:
            yield directory / name, status, match


def _own_status(path: Path) -> os.stat_result | None:
    """The status of a file of this user, None if there is none."""
    try:
        status = os.lstat(path)
    except FileNotFoundError:
        return None
    return status if status.st_uid == os.geteuid() and not stat.S_ISLNK(status.st_mode) else None


def _dead_segments() -> Found:
    for path, status, _ in _own_files(SHM_DIRECTORY, _SEGMENT):
        with contextlib.suppress(FileNotFoundError):
            lock = take_lock(path, create=False)
            if lock is None:
                continue
            try:
                why = "no process holds its lock: the server died during a handshake"
                yield _leftover(path, "segment", status, why), path.unlink
            finally:
                os.close(lock)


def _dead_semaphores() -> Found:
    for path, status, match in _own_files(SHM_DIRECTORY, _SEMAPHORE):
        segment = SHM_DIRECTORY / match["stem"]
        try:
            lock = take_lock(segment, create=False)
        except FileNotFoundError:
            why = "its segment is gone, and is removed last"
        else:
            if lock is None:
                continue
            os.close(lock)
            why = "no process holds the lock of its segment: the server died during a handshake"
        yield _leftover(path, "semaphore", status, why), path.unlink


def _dead_rendezvous() -> Found:
    for directory in runtime_directories():
        yield from _dead_rendezvous_in(directory)


def _dead_rendezvous_in(directory: Path) -> Found:
    services = {match["service"] for _, _, match in _own_files(directory, _RENDEZVOUS)}
    for service in sorted(services):
        lock_path, socket_path = directory / f"{service}.lock", directory / f"{service}.sock"
        orphan = not os.path.lexists(lock_path)
        try:
            lock = take_lock(lock_path, create=True)
        except OSError:  # In a directory of several users: it is somebody else's, or there is no room for ours.
            continue
        if lock is None:
            continue
        try:
            if _may_be_served(socket_path):
                if orphan:
                    lock_path.unlink()
                continue
            pid = recorded_pid(lock)
            why = "it has no lock file" if orphan else "no process holds its lock"
            for kind, path in (("socket", socket_path), ("lock", lock_path)):
                if kind == "lock" and orphan:
                    path.unlink()  # Only made to be held for this moment.
                elif (status := _own_status(path)) is not None:
                    yield _leftover(path, kind, status, why, pid), path.unlink
        finally:
            os.close(lock)


def _may_be_served(path: Path) -> bool:
    """Whether somebody listens at a socket's file, or that cannot be known."""
    try:
        return listener(path) is not None
    except OSError:
        return True


def recorded_pid(lock: int) -> int | None:
    """The process id that a server has written into its lock file: for people to read, proof of nothing."""
    text = os.pread(lock, 32, 0).strip()
    return int(text) if text.isdigit() else None


def _leftover(path: Path, kind: str, status: os.stat_result, why: str, pid: int | None = None) -> Leftover:
    try:
        owner = pwd.getpwuid(status.st_uid).pw_name
    except KeyError:
        owner = f"uid {status.st_uid}"
    return Leftover(str(path), kind, status.st_size, owner if pid is None else f"{owner}, pid {pid}", why)


def report(found: Sequence[Leftover], *, dry_run: bool, as_json: bool) -> str:
    """What was found, for a person or, with ``as_json``, for a program."""
    if as_json:
        return json.dumps([dataclasses.asdict(leftover) for leftover in found], indent=2)
    if not found:
        return "Clean: nothing was left by the dead."
    lines = []
    for leftover in found:
        state = "would remove" if dry_run else "removed" if leftover.removed else "COULD NOT REMOVE"
        lines.append(f"{state} {leftover.path}  ({leftover.kind}, {leftover.size:,} bytes, owner {leftover.owner})")
        lines.append(f"    dead: {leftover.why}")
        if leftover.error:
            lines.append(f"    error: {leftover.error}")
    return "\n".join(lines)


def run(*, dry_run: bool, as_json: bool) -> tuple[str, int]:
    """Cleans; the report and the exit status: 0, or 1 if something could not be removed."""
    found = clean(dry_run=dry_run)
    failed = any(leftover.error for leftover in found)
    return report(found, dry_run=dry_run, as_json=as_json), int(failed)


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line of the script."""
    import argparse  # Only who cleans up needs it.

    parser = argparse.ArgumentParser(description="Remove what dead shmrpc servers left, and nothing else.")
    parser.add_argument("--dry-run", action="store_true", help="only list it")
    parser.add_argument("--json", action="store_true", help="print it as JSON")
    options = parser.parse_args(arguments)
    text, status = run(dry_run=options.dry_run, as_json=options.json)
    print(text)  # noqa: T201 - a command line prints
    return status


if __name__ == "__main__":
    sys.exit(main())
