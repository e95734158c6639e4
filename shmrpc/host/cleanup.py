"""The names of shmrpc in the file system, and the removal of files whose owner is dead.

This file needs only the standard library and runs alone, so that a machine without the package can be cleaned too:
``python cleanup.py [--dry-run] [--json]``. ``shmrpc cleanup`` is the same code.

A name has a *kind*; :func:`spell` returns the name of its files. Services have servers. Shared objects, such as memory,
semaphores, locks and events, have members, which share one lock file, whatever the kind.

=================================================  =====================================================
file                                               the owner is alive as long as
=================================================  =====================================================
``DIR/SPELLED.lock``, ``DIR/SPELLED.sock``         it holds the flock on the ``.lock``, or listens at the
                                                   ``.sock`` although the ``.lock`` was removed
``/dev/shm/shmrpc.SPELLED.RANDOM``                 it holds the flock on the file itself, or, of a store, on
                                                   one with the same 16 digits at the beginning of RANDOM
``/dev/shm/sem.shmrpc.SPELLED.RANDOM.c2s, .s2c``   the segment with the same stem has a living owner
``DIR/NAME@shared.lock``                           a member holds a record lock on one of its bytes
``DIR/NAME@shared.SET.SLOT``                       the ``.lock`` beside it has a living member
=================================================  =====================================================

The memory of a shared object is a segment, on which each member holds a shared flock.

The kernel drops a lock when its holder dies, in whatever way, so a held lock proves that the holder lives. A process id
proves nothing, because ids are reused. The file of a semaphore cannot be locked before it exists, so the lock of its
segment counts: the segment is created before the semaphores and removed after them.
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
#: Pattern of a name, the same for all kinds.
NAME = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9_-]|\.(?!\.)){0,62}[A-Za-z0-9]|[A-Za-z0-9]")

SERVICE = "service"
#: Kind of the lock files of all shared objects.
SHARED = "shared"
#: Kinds of shared objects.
MEMBER_KINDS = ("memory", "semaphore", "lock", "event", "queue", "topic", "store", "signal")
#: Kinds whose owners prove that they live as in the table above. Names of other kinds stay untouched.
KINDS = {SERVICE, SHARED, *MEMBER_KINDS}

_SPELLED = rf"(?:{NAME.pattern})(?:@(?P<kind>(?!{SERVICE}\b)[a-z]+))?"
# Not compiled: compiling takes part of a millisecond each, and a server needs hardly any of them.
_SEGMENT = rf"shmrpc\.{_SPELLED}\.[0-9a-f]{{32}}"
_SEMAPHORE = rf"sem\.(?P<stem>{_SEGMENT})\.(?:c2s|s2c)"
_DOORBELL = rf"(?P<stem>(?:{NAME.pattern})@(?P<kind>{SHARED}))\.[0-9]\.[0-9]{{1,3}}"
_RENDEZVOUS = rf"(?P<spelled>{_SPELLED})\.(?:lock|sock)"
_ANY_KIND = rf"(?:{NAME.pattern})@(?P<kind>[a-z]+)(?:\..*)?"
_ANY_KIND_IN_MEMORY = rf"(?:sem\.)?shmrpc\.{_ANY_KIND}"


def spell(name: str, kind: str = SERVICE) -> str:
    """Return a name as its files spell it: unchanged for a service, followed by an @ and the kind for other kinds."""
    return name if kind == SERVICE else f"{name}@{kind}"


def names_of(kind: str, files: Iterable[str]) -> set[str]:
    """Return the names of a kind that have a lock file or socket among ``files``, the names of a directory's files."""
    matches = filter(None, (re.fullmatch(_RENDEZVOUS, file) for file in files))
    return {match["spelled"].partition("@")[0] for match in matches if _kind(match) == kind}


def _kind(match: re.Match[str]) -> str:
    """Return the kind of the name that a pattern has matched."""
    return match["kind"] or SERVICE


#: Path objects by text: each connection needs the same few.
_path = functools.lru_cache(maxsize=16)(Path)


def shared_directory() -> Path | None:
    """Return the directory that ``$SHMRPC_DIRECTORY`` names, for several users; return None if it is not set."""
    named = os.environ.get("SHMRPC_DIRECTORY")
    return _path(named) if named else None


#: Directory of a user who is logged in, and a directory that needs no login, by user id.
LOGIN_DIRECTORY = "/run/user/{}"
TEMPORARY_DIRECTORY = "/tmp/shmrpc-{}"


def runtime_directories() -> list[Path]:
    """Return the paths of the runtime directories: a server uses the first one, a client looks in all.

    Returns only ``$SHMRPC_DIRECTORY`` if it is set, and only ``$XDG_RUNTIME_DIR/shmrpc`` if that is set to an unusual
    path. Otherwise returns ``/run/user/UID/shmrpc``, if the user has that directory now, and ``/tmp/shmrpc-UID``, so
    that programs with the variable (in a shell) and without it (cron, systemd, su, docker exec) find each other.
    """
    shared = shared_directory()
    return own_directories() if shared is None else [shared]


def own_directories() -> list[Path]:
    """Return the runtime directories of this user alone, as if ``$SHMRPC_DIRECTORY`` were not set."""
    uid = os.geteuid()
    base, login = os.environ.get("XDG_RUNTIME_DIR"), LOGIN_DIRECTORY.format(uid)
    if base and _path(base) != _path(login):
        return [_path(base, "shmrpc")]
    temporary = _path(TEMPORARY_DIRECTORY.format(uid))
    status = _own_status(login)
    return [_path(login, "shmrpc"), temporary] if status is not None and stat.S_ISDIR(status.st_mode) else [temporary]


def runtime_directory() -> Path:
    """Return the path of the runtime directory for servers of this user. Does not create or check it."""
    return runtime_directories()[0]


def segment_name(name: str, random: str, kind: str = SERVICE) -> str:
    """Return the name of a segment, without the slash. ``random``: 32 hexadecimal digits that make it unique."""
    return f"shmrpc.{spell(name, kind)}.{random}"


def is_segment(name: str) -> bool:
    """Return True if a file of this name in shared memory is a segment of shmrpc."""
    return re.fullmatch(_SEGMENT, name) is not None


def semaphore_names(segment: str) -> tuple[str, str]:
    """Return the names of the two semaphores of a segment: client to server, and server to client."""
    return f"{segment}.c2s", f"{segment}.s2c"


#: Maximum number of files to open for one lock, if each one is removed before it is locked.
_MAX_LOCK_FILES = 100


def take_lock(path: Path, *, create: bool) -> int | None:
    """Take the flock on the file at ``path`` and return its descriptor; return None if a process holds the lock.

    With ``create``, creates a missing file; without it, raises FileNotFoundError. Never returns the descriptor of a
    removed file. Closing it releases the lock. Raises OSError if the file cannot be opened, or is removed 100 times.
    """
    flags = os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW | (os.O_CREAT if create else 0)
    for _ in range(_MAX_LOCK_FILES):
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
    raise OSError(
        errno.EBUSY, f"each of {_MAX_LOCK_FILES} files was removed by another process before it was locked", str(path)
    )


def is_at(status: os.stat_result, path: Path) -> bool:
    """Return True if the file with this status is now at ``path``."""
    with contextlib.suppress(FileNotFoundError):
        return os.path.samestat(status, os.lstat(path))
    return False


def listener(path: Path) -> int | None:
    """Return the id of the process that listens at a socket file; None if there is none, or the file is no socket.

    Returns 0 if the id is not visible, or the backlog is full. Raises OSError if the socket cannot be examined.
    """
    with contextlib.suppress(FileNotFoundError):
        if not stat.S_ISSOCK(os.lstat(path).st_mode):  # Connecting would follow a symbolic link.
            return None
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as probe:
        probe.setblocking(False)
        try:
            probe.connect(str(path))
        except (ConnectionRefusedError, FileNotFoundError):
            return None
        except BlockingIOError:  # The backlog is full.
            return 0
        return int(struct.unpack("iII", probe.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))[0])


@dataclasses.dataclass
class Leftover:
    """A file whose owner is dead, with the result of its removal; or a file of an unknown kind, which stays."""

    path: str
    #: kind of the name, such as "service"
    kind: str
    #: "segment", "semaphore", "socket" or "lock"; "unknown" for a file of an unknown kind
    file: str
    #: size in bytes
    size: int
    #: user name, with the process id if it is known
    owner: str
    #: reason why the owner counts as dead
    why: str
    removed: bool = False
    #: error of the removal
    error: str | None = None


def clean(*, dry_run: bool = False) -> list[Leftover]:
    """Remove the files that dead processes of this user have left; return them in the order of removal.

    With ``dry_run``, only returns them. Files of a living process, of another user, or of another program stay. Files
    of an unknown kind stay, too, because their owner may live; they come last. Raises OSError if it cannot try a lock.
    """
    found: list[Leftover] = []
    for find in (_find_dead_semaphores, _find_dead_segments, _find_dead_rendezvous, _find_dead_shared_objects):
        for leftover, remove in find():
            if not dry_run:
                try:
                    remove()
                    leftover.removed = True
                except FileNotFoundError:  # Its owner, or another cleanup, has removed it.
                    leftover.removed = True
                except OSError as error:
                    leftover.error = f"{error.strerror} (errno {error.errno})"
            found.append(leftover)
    return found + list(_find_unknown_kinds())


#: Iterator over leftovers, each with the function that removes it.
Removals = Iterator[tuple[Leftover, Callable[[], None]]]


def _own_files(
    directory: Path, pattern: str, *, known: bool = True
) -> Iterator[tuple[Path, os.stat_result, re.Match[str]]]:
    """Yield path, status and match of the files of this user in ``directory`` that match the pattern.

    ``known``: True for known kinds, False for unknown ones. Yields nothing for a directory that cannot be listed.
    """
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


def _find_unknown_kinds() -> Iterator[Leftover]:
    """Yield the files of unknown kinds."""
    places = [(SHM_DIRECTORY, _ANY_KIND_IN_MEMORY), *((each, _ANY_KIND) for each in runtime_directories())]
    for directory, pattern in places:
        for path, status, match in _own_files(directory, pattern, known=False):
            why = "this version does not know its kind: clean up with the version that created it"
            yield _make_leftover(path, match, "unknown", status, why)


def _own_status(path: Path | str) -> os.stat_result | None:
    """Return the status of a file; return None if it is missing, a symbolic link, or another user's."""
    try:
        status = os.lstat(path)
    except FileNotFoundError:
        return None
    return status if status.st_uid == os.geteuid() and not stat.S_ISLNK(status.st_mode) else None


def _find_dead_segments() -> Removals:
    """Yield the segments whose locks no process holds. Holds the locks of a segment while it is yielded."""
    for path, status, match in _own_files(SHM_DIRECTORY, _SEGMENT):
        with contextlib.suppress(FileNotFoundError), contextlib.ExitStack() as locks:
            for each in (path, *_other_copies(path, _kind(match))):
                lock = take_lock(each, create=False)
                if lock is None:
                    break
                locks.callback(os.close, lock)
            else:
                has_members = _kind(match) in MEMBER_KINDS
                end = "its members were killed" if has_members else "its owner died during a handshake"
                why = f"no process holds its lock: {end}"
                yield _make_leftover(path, match, "segment", status, why), path.unlink


def _other_copies(path: Path, kind: str) -> Iterable[Path]:
    """Return the other copies of a store's memory, which share the first half of the random digits.

    Members that have not switched to the latest copy hold only the lock of an earlier one.
    """
    if kind != "store":
        return ()
    return sorted(each for each in path.parent.glob(f"{path.name[:-16]}*") if each != path)


def _find_dead_semaphores() -> Removals:
    """Yield the semaphores whose segment is missing or has no living owner."""
    for path, status, match in _own_files(SHM_DIRECTORY, _SEMAPHORE):
        try:
            lock = take_lock(SHM_DIRECTORY / match["stem"], create=False)
        except FileNotFoundError:
            why = "its segment is gone, and segments are removed last"
        else:
            if lock is None:
                continue
            os.close(lock)
            why = "no process holds the lock of its segment: its owner died during a handshake"
        yield _make_leftover(path, match, "semaphore", status, why), path.unlink


def _find_dead_rendezvous() -> Removals:
    """Yield the sockets and lock files of services without a server."""
    for directory in runtime_directories():
        matches = {match["spelled"]: match for _, _, match in _own_files(directory, _RENDEZVOUS)}
        for spelled, match in sorted(matches.items()):
            if _kind(match) != SHARED:
                yield from _find_dead_rendezvous_of(directory / spelled, match)


def _find_dead_rendezvous_of(stem: Path, match: re.Match[str]) -> Removals:
    """Yield the socket and the lock file of one service, if it has no server. Holds its lock while they are yielded."""
    lock_path, socket_path = Path(f"{stem}.lock"), Path(f"{stem}.sock")
    has_no_lock = not os.path.lexists(lock_path)
    try:
        lock = take_lock(lock_path, create=True)
    except OSError:  # In a directory of several users, the file is another user's, or there is no room for a lock file.
        return
    if lock is None:
        return
    try:
        if _may_be_served(socket_path):
            if has_no_lock:
                lock_path.unlink()
            return
        pid = recorded_pid(lock)
        why = "it has no lock file" if has_no_lock else "no process holds its lock"
        for file, path in (("socket", socket_path), ("lock", lock_path)):
            if file == "lock" and has_no_lock:
                path.unlink()  # Created only to be held for this moment.
            elif (status := _own_status(path)) is not None:
                yield _make_leftover(path, match, file, status, why, pid), path.unlink
    finally:
        os.close(lock)


def _find_dead_shared_objects() -> Removals:
    """Yield the doorbell sockets and lock files of shared objects without members; no process can attach meanwhile."""
    for directory in runtime_directories():
        doorbells: dict[str, list[tuple[Path, os.stat_result, re.Match[str]]]] = {}
        for path, status, match in _own_files(directory, _DOORBELL):
            doorbells.setdefault(match["stem"], []).append((path, status, match))
        for path, status, match in _own_files(directory, _RENDEZVOUS):
            if _kind(match) != SHARED or path.suffix != ".lock":
                continue
            left = doorbells.pop(match["spelled"], [])
            with contextlib.suppress(OSError), _without_members(path, status):
                why = "no process holds a lock of its bytes: its members were killed"
                for doorbell in left:
                    yield _make_leftover(doorbell[0], doorbell[2], "socket", doorbell[1], why), doorbell[0].unlink
                yield _make_leftover(path, match, "lock", status, why), path.unlink
        for doorbell in itertools.chain.from_iterable(doorbells.values()):
            yield (
                _make_leftover(doorbell[0], doorbell[2], "socket", doorbell[1], "it has no lock file"),
                doorbell[0].unlink,
            )


#: Bytes of the lock file of a shared object: the entry lock, and the number of bytes for members.
_ENTRY_LOCK, _MEMBERS = 0, 256


@contextlib.contextmanager
def _without_members(path: Path, status: os.stat_result) -> Iterator[None]:
    """Lock the lock file of a shared object so that no process can attach.

    Raises BlockingIOError if the object has members, also this process, or if a process attaches or detaches now.
    """
    # A process that closes a file loses all of its record locks on the file, so a member must not open it here.
    for descriptor in os.listdir("/proc/self/fd"):
        try:
            is_ours = os.path.samestat(os.stat(f"/proc/self/fd/{descriptor}"), status)
        except OSError:  # The descriptor of os.listdir() itself.
            continue
        if is_ours:
            raise BlockingIOError(errno.EAGAIN, "this process is a member", str(path))
    lock = os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
    try:
        fcntl.lockf(lock, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, _ENTRY_LOCK)
        fcntl.lockf(lock, fcntl.LOCK_EX | fcntl.LOCK_NB, _MEMBERS, _ENTRY_LOCK + 1)
        if not is_at(os.fstat(lock), path):
            raise BlockingIOError(errno.EAGAIN, "the file was removed in the meantime", str(path))
        yield
    finally:
        os.close(lock)


def _may_be_served(path: Path) -> bool:
    """Return True if a process listens at a socket file, or if the socket cannot be examined."""
    try:
        return listener(path) is not None
    except OSError:
        return True


def recorded_pid(lock: int) -> int | None:
    """Return the process id that a server has written into its lock file; None without one.

    ``lock``: the descriptor of the lock file. For messages only: the id proves nothing.
    """
    text = os.pread(lock, 32, 0).strip()
    return int(text) if text.isdigit() else None


def _make_leftover(
    path: Path, match: re.Match[str], file: str, status: os.stat_result, why: str, pid: int | None = None
) -> Leftover:
    """Return the description of a leftover file."""
    try:
        owner = pwd.getpwuid(status.st_uid).pw_name
    except KeyError:
        owner = f"uid {status.st_uid}"
    owner = owner if pid is None else f"{owner}, pid {pid}"
    used = min(status.st_size, status.st_blocks * 512)  # Files of queues are sparse.
    return Leftover(str(path), _kind(match), file, used, owner, why)


def report(found: Sequence[Leftover], *, dry_run: bool, as_json: bool) -> str:
    """Return a report of the leftovers as text, or, with ``as_json``, as JSON."""
    if as_json:
        import json  # Few programs clean up.

        return json.dumps([dataclasses.asdict(leftover) for leftover in found], indent=2)
    if not found:
        return "Clean: dead processes have left nothing."
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
    """Clean up; return the report and the exit status: 1 if a file could not be removed, else 0."""
    found = clean(dry_run=dry_run)
    failed = any(leftover.error for leftover in found)
    return report(found, dry_run=dry_run, as_json=as_json), int(failed)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line of the script; return its exit status. Raises SystemExit for invalid arguments."""
    import argparse  # Few programs clean up.

    parser = argparse.ArgumentParser(description="Remove what dead shmrpc processes left, and nothing else.")
    parser.add_argument("--dry-run", action="store_true", help="list the leftovers, and remove nothing")
    parser.add_argument("--json", action="store_true", help="print JSON")
    options = parser.parse_args(arguments)
    text, status = run(dry_run=options.dry_run, as_json=options.json)
    print(text)  # noqa: T201 - a command line prints
    return status


if __name__ == "__main__":
    sys.exit(main())
