"""Every name that shmrpc leaves in the file system, and the removal of those whose owner is dead.

This file needs nothing but the standard library and runs alone, so that a machine without the package
can be cleaned too: ``python cleanup.py [--dry-run] [--json]``. ``shmrpc cleanup`` is the same code.

A name has a *kind*; :func:`spell` says how a name of a kind is written. Services have servers. Memory, semaphores,
locks and events have members, who meet at one lock file whatever the kind.

=================================================  =====================================================
file                                               its owner lives while
=================================================  =====================================================
``DIR/SPELLED.lock``, ``DIR/SPELLED.sock``         it holds the flock on the ``.lock``, or listens at the
                                                   ``.sock``, as one does whose ``.lock`` was removed
``/dev/shm/shmrpc.SPELLED.RANDOM``                 it holds the flock on the file itself, or, of a store, on
                                                   one with the same 16 digits at the beginning of RANDOM
``/dev/shm/sem.shmrpc.SPELLED.RANDOM.c2s, .s2c``   the segment with the same stem has a living owner
``DIR/NAME@shared.lock``                           a member holds a record lock on one of its bytes
``DIR/NAME@shared.SET.SLOT``                       the ``.lock`` beside it has a living member
=================================================  =====================================================

The memory of a name that has members is a segment, on which each of them holds a shared flock.

The kernel drops a lock when its holder dies, however it dies, so it proves life; a process id proves nothing, since
ids are used again. A semaphore's file cannot be locked before it exists, so its segment answers for it: that is
created before the semaphores and removed after them.
"""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import fcntl
import functools
import itertools
import os
import pwd
import re
import socket
import stat
import struct
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path

SHM_DIRECTORY = Path("/dev/shm")
#: What may have a name is the same for all kinds.
NAME = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9_-]|\.(?!\.)){0,62}[A-Za-z0-9]|[A-Za-z0-9]")

SERVICE = "service"
#: The meeting place of names whose members are equals, of whatever kind.
SHARED = "shared"
#: The kinds of names that meet there.
MEMBER_KINDS = ("memory", "semaphore", "lock", "event", "queue", "topic", "store")
#: The kinds whose owners prove that they live as the table above says. Names of others are not touched.
KINDS = {SERVICE, SHARED, *MEMBER_KINDS}

_SPELLED = rf"(?:{NAME.pattern})(?:@(?P<kind>(?!{SERVICE}\b)[a-z]+))?"
# Texts, and not compiled: each takes a part of a millisecond, and a program that serves needs hardly any of them.
_SEGMENT = rf"shmrpc\.{_SPELLED}\.[0-9a-f]{{32}}"
_SEMAPHORE = rf"sem\.(?P<stem>{_SEGMENT})\.(?:c2s|s2c)"
_DOORBELL = rf"(?P<stem>(?:{NAME.pattern})@(?P<kind>{SHARED}))\.[0-9]\.[0-9]{{1,3}}"
_RENDEZVOUS = rf"(?P<spelled>{_SPELLED})\.(?:lock|sock)"
_ANY_KIND = rf"(?:{NAME.pattern})@(?P<kind>[a-z]+)(?:\..*)?"
_ANY_KIND_IN_MEMORY = rf"(?:sem\.)?shmrpc\.{_ANY_KIND}"


def spell(name: str, kind: str = SERVICE) -> str:
    """A name of a kind, as files are named after it: a service's as it is, any other one with its kind behind an @."""
    return name if kind == SERVICE else f"{name}@{kind}"


def names_of(kind: str, files: Iterable[str]) -> set[str]:
    """The names of a kind that have one of these files where their owners are met."""
    matches = filter(None, (re.fullmatch(_RENDEZVOUS, file) for file in files))
    return {match["spelled"].partition("@")[0] for match in matches if _kind(match) == kind}


def _kind(match: re.Match[str]) -> str:
    return match["kind"] or SERVICE


#: A path once made: each connection asks for the same few.
_path = functools.lru_cache(maxsize=16)(Path)


def shared_directory() -> Path | None:
    """Where services of several users meet, if ``$SHMRPC_DIRECTORY`` names a place."""
    named = os.environ.get("SHMRPC_DIRECTORY")
    return _path(named) if named else None


#: The directory of a user who is logged in, and one that is there also when nobody is; by user id.
LOGIN_DIRECTORY = "/run/user/{}"
TEMPORARY_DIRECTORY = "/tmp/shmrpc-{}"


def runtime_directories() -> list[Path]:
    """Where services meet: a server in the first of these; a client looks in all.

    ``$SHMRPC_DIRECTORY`` alone if it names one, and ``$XDG_RUNTIME_DIR/shmrpc`` alone if that was set to a place of its
    own. Else ``/run/user/UID/shmrpc``, if the user has that directory now, and ``/tmp/shmrpc-UID``: by then it does not
    matter which of the two has the variable (as in a shell) and which does not (cron, systemd, su, docker exec).
    """
    shared = shared_directory()
    return own_directories() if shared is None else [shared]


def own_directories() -> list[Path]:
    """The same where ``$SHMRPC_DIRECTORY`` names none."""
    uid = os.geteuid()
    base, login = os.environ.get("XDG_RUNTIME_DIR"), LOGIN_DIRECTORY.format(uid)
    if base and _path(base) != _path(login):
        return [_path(base, "shmrpc")]
    temporary = _path(TEMPORARY_DIRECTORY.format(uid))
    status = _own_status(login)
    return [_path(login, "shmrpc"), temporary] if status is not None and stat.S_ISDIR(status.st_mode) else [temporary]


def runtime_directory() -> Path:
    """Where a server of ours would be met."""
    return runtime_directories()[0]


def segment_name(name: str, random: str, kind: str = SERVICE) -> str:
    """The name of a segment, without the slash. ``random``: 32 hexadecimal digits that make it unique."""
    return f"shmrpc.{spell(name, kind)}.{random}"


def is_segment(name: str) -> bool:
    """Whether a segment of ours may have this name."""
    return re.fullmatch(_SEGMENT, name) is not None


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
    """A file whose owner is dead, and what became of it; or one of a kind that we do not know, which is left alone."""

    path: str
    #: what its name is the name of, such as "service"
    kind: str
    #: "segment", "semaphore", "socket" or "lock"; "unknown" if it is of a kind that we do not know
    file: str
    #: bytes
    size: int
    #: user name, with the process id if it is known
    owner: str
    why: str
    removed: bool = False
    #: why it could not be removed
    error: str | None = None


def clean(*, dry_run: bool = False) -> list[Leftover]:
    """Removes what the dead left, and nothing else; returns what was found, in the order of removal.

    With ``dry_run`` it is only listed. What belongs to a living process, to another user, or to another program is not
    touched. Files of an unknown kind are listed last, and not removed: their owner may live.
    """
    found: list[Leftover] = []
    for find in (_dead_semaphores, _dead_segments, _dead_rendezvous, _dead_names):
        for leftover, remove in find():
            if not dry_run:
                try:
                    remove()
                    leftover.removed = True
                except FileNotFoundError:  # Its owner, or another clean-up, was quicker.
                    leftover.removed = True
                except OSError as error:
                    leftover.error = f"{error.strerror} (errno {error.errno})"
            found.append(leftover)
    return found + list(_of_unknown_kinds())


Found = Iterator[tuple[Leftover, Callable[[], None]]]


def _own_files(
    directory: Path, pattern: str, *, known: bool = True
) -> Iterator[tuple[Path, os.stat_result, re.Match[str]]]:
    """Yields the files of this user in ``directory`` that fit the pattern and are of a known kind, or of none."""
    try:
        names = sorted(os.listdir(directory))
    except (FileNotFoundError, PermissionError, NotADirectoryError):
        return
    for name in names:
        match = re.fullmatch(pattern, name)
        if match is None or (_kind(match) in KINDS) != known:
            continue
        if (status := _own_status(directory / name)) is not None:
            yield directory / name, status, match


def _of_unknown_kinds() -> Iterator[Leftover]:
    places = [(SHM_DIRECTORY, _ANY_KIND_IN_MEMORY), *((each, _ANY_KIND) for each in runtime_directories())]
    for directory, pattern in places:
        for path, status, match in _own_files(directory, pattern, known=False):
            why = "names of its kind are not known to this version: clean up with the one that made it"
            yield _leftover(path, match, "unknown", status, why)


def _own_status(path: Path | str) -> os.stat_result | None:
    """The status of a file of this user; None if it is missing, a link, or another user's."""
    try:
        status = os.lstat(path)
    except FileNotFoundError:
        return None
    return status if status.st_uid == os.geteuid() and not stat.S_ISLNK(status.st_mode) else None


def _dead_segments() -> Found:
    for path, status, match in _own_files(SHM_DIRECTORY, _SEGMENT):
        with contextlib.suppress(FileNotFoundError), contextlib.ExitStack() as locks:
            for each in (path, *_other_memory(path, _kind(match))):
                lock = take_lock(each, create=False)
                if lock is None:
                    break
                locks.callback(os.close, lock)
            else:
                has_members = _kind(match) in MEMBER_KINDS
                end = "its members were killed" if has_members else "its owner died during a handshake"
                why = f"no process holds its lock: {end}"
                yield _leftover(path, match, "segment", status, why), path.unlink


def _other_memory(path: Path, kind: str) -> Iterable[Path]:
    """The other files of a store, whose contents may be in a copy that has the first half of its random digits.

    Members that have not found the copy yet hold the lock of the memory before it alone.
    """
    if kind != "store":
        return ()
    return sorted(each for each in path.parent.glob(f"{path.name[:-16]}*") if each != path)


def _dead_semaphores() -> Found:
    for path, status, match in _own_files(SHM_DIRECTORY, _SEMAPHORE):
        try:
            lock = take_lock(SHM_DIRECTORY / match["stem"], create=False)
        except FileNotFoundError:
            why = "its segment is gone, and is removed last"
        else:
            if lock is None:
                continue
            os.close(lock)
            why = "no process holds the lock of its segment: its owner died during a handshake"
        yield _leftover(path, match, "semaphore", status, why), path.unlink


def _dead_rendezvous() -> Found:
    for directory in runtime_directories():
        matches = {match["spelled"]: match for _, _, match in _own_files(directory, _RENDEZVOUS)}
        for spelled, match in sorted(matches.items()):
            if _kind(match) != SHARED:
                yield from _dead_rendezvous_of(directory / spelled, match)


def _dead_rendezvous_of(stem: Path, match: re.Match[str]) -> Found:
    lock_path, socket_path = Path(f"{stem}.lock"), Path(f"{stem}.sock")
    orphan = not os.path.lexists(lock_path)
    try:
        lock = take_lock(lock_path, create=True)
    except OSError:  # In a directory of several users: it is somebody else's, or there is no room for ours.
        return
    if lock is None:
        return
    try:
        if _may_be_served(socket_path):
            if orphan:
                lock_path.unlink()
            return
        pid = recorded_pid(lock)
        why = "it has no lock file" if orphan else "no process holds its lock"
        for file, path in (("socket", socket_path), ("lock", lock_path)):
            if file == "lock" and orphan:
                path.unlink()  # Only made to be held for this moment.
            elif (status := _own_status(path)) is not None:
                yield _leftover(path, match, file, status, why, pid), path.unlink
    finally:
        os.close(lock)


def _dead_names() -> Found:
    for directory in runtime_directories():
        bells: dict[str, list[tuple[Path, os.stat_result, re.Match[str]]]] = {}
        for path, status, match in _own_files(directory, _DOORBELL):
            bells.setdefault(match["stem"], []).append((path, status, match))
        for path, status, match in _own_files(directory, _RENDEZVOUS):
            if _kind(match) != SHARED or path.suffix != ".lock":
                continue
            left = bells.pop(match["spelled"], [])
            with contextlib.suppress(OSError), _without_members(path, status):
                why = "no process holds a lock of its bytes: its members were killed"
                for bell in left:
                    yield _leftover(bell[0], bell[2], "socket", bell[1], why), bell[0].unlink
                yield _leftover(path, match, "lock", status, why), path.unlink
        for bell in itertools.chain.from_iterable(bells.values()):
            yield _leftover(bell[0], bell[2], "socket", bell[1], "it has no lock file"), bell[0].unlink


#: The bytes of the lock file of a name that has members: the door, and one for each member.
_DOOR, _MEMBERS = 0, 256


@contextlib.contextmanager
def _without_members(path: Path, status: os.stat_result) -> Iterator[None]:
    """Keeps members from joining. Raises BlockingIOError if there are any, or if one joins or leaves."""
    # To close a file is to lose all record locks that this process has on it.
    for descriptor in os.listdir("/proc/self/fd"):
        try:
            is_ours = os.path.samestat(os.stat(f"/proc/self/fd/{descriptor}"), status)
        except OSError:  # It was the one by which the descriptors are listed.
            continue
        if is_ours:
            raise BlockingIOError(errno.EAGAIN, "this process is a member", str(path))
    lock = os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
    try:
        fcntl.lockf(lock, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, _DOOR)
        fcntl.lockf(lock, fcntl.LOCK_EX | fcntl.LOCK_NB, _MEMBERS, _DOOR + 1)
        if not is_at(os.fstat(lock), path):
            raise BlockingIOError(errno.EAGAIN, "it was removed meanwhile", str(path))
        yield
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


def _leftover(
    path: Path, match: re.Match[str], file: str, status: os.stat_result, why: str, pid: int | None = None
) -> Leftover:
    try:
        owner = pwd.getpwuid(status.st_uid).pw_name
    except KeyError:
        owner = f"uid {status.st_uid}"
    owner = owner if pid is None else f"{owner}, pid {pid}"
    used = min(status.st_size, status.st_blocks * 512)  # Files of queues are sparse.
    return Leftover(str(path), _kind(match), file, used, owner, why)


def report(found: Sequence[Leftover], *, dry_run: bool, as_json: bool) -> str:
    """What was found, for a person or, with ``as_json``, for a program."""
    if as_json:
        import json  # Only the command needs it.

        return json.dumps([dataclasses.asdict(leftover) for leftover in found], indent=2)
    if not found:
        return "Clean: nothing was left by the dead."
    lines = []
    for leftover in found:
        if leftover.kind in KINDS:
            state = "would remove" if dry_run else "removed" if leftover.removed else "COULD NOT REMOVE"
            reason = "dead"
        else:
            state, reason = "left alone", "unknown"
        what = f"{leftover.kind}, {leftover.file}, {leftover.size:,} bytes, owner {leftover.owner}"
        lines += [f"{state} {leftover.path}  ({what})", f"    {reason}: {leftover.why}"]
        if leftover.error:
            lines.append(f"    error: {leftover.error}")
    return "\n".join(lines)


def run(*, dry_run: bool, as_json: bool) -> tuple[str, int]:
    """Cleans up; returns the report and the exit status: 0, or 1 if something could not be removed."""
    found = clean(dry_run=dry_run)
    failed = any(leftover.error for leftover in found)
    return report(found, dry_run=dry_run, as_json=as_json), int(failed)


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line of the script."""
    import argparse  # Only the command needs it.

    parser = argparse.ArgumentParser(description="Remove what dead shmrpc processes left, and nothing else.")
    parser.add_argument("--dry-run", action="store_true", help="only list it")
    parser.add_argument("--json", action="store_true", help="print it as JSON")
    options = parser.parse_args(arguments)
    text, status = run(dry_run=options.dry_run, as_json=options.json)
    print(text)  # noqa: T201 - a command line prints
    return status


if __name__ == "__main__":
    sys.exit(main())
