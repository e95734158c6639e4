"""Where server and client meet: one lock and one socket per service in a directory of the user's own."""

from __future__ import annotations

import contextlib
import errno
import math
import os
import socket
import stat
import struct
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

from shmrpc.errors import LocalProtocolError, ServiceInUse, ServiceUnavailable
from shmrpc.protocol.control import MAX_MESSAGE
from shmrpc.transport.shm import fork, wants
from shmrpc.transport.shm.cleanup import SERVICE_NAME, recorded_pid, runtime_directory, take_lock

#: Bytes that the path of a UNIX socket may have, without its terminating zero.
_MAX_PATH: Final = 107
_BACKLOG: Final = 512
#: Seconds between two looks for a server that is not there yet: the first, and the longest.
_FIRST_PAUSE: Final = 0.001
_LONGEST_PAUSE: Final = 0.05
_LONGEST_PAUSE_FOR_EVER: Final = 0.25
#: A clean-up holds the lock for moments while it looks. Seconds between two tries.
_LOCK_TRIES: Final = 10
_LOCK_PAUSE: Final = 0.01


def check_name(service: str) -> str:
    """The name, if a service may have it; ValueError if not."""
    if not SERVICE_NAME.fullmatch(service):
        raise ValueError(
            f"service name {service!r}: expected 1 to 64 of A-Z a-z 0-9 . _ -, "
            "a letter or digit first and last, no two dots together"
        )
    return service


def directory() -> Path:
    """The meeting place, made if it is missing; LocalProtocolError if it is not safely ours."""
    path = runtime_directory()
    with contextlib.suppress(FileExistsError):
        try:
            path.mkdir(mode=0o700)
        except FileNotFoundError:
            raise LocalProtocolError(
                f"{path.parent} does not exist; $XDG_RUNTIME_DIR must name a directory of yours, or be unset"
            ) from None
        except PermissionError:
            raise LocalProtocolError(
                f"{path.parent} is closed to you (uid {os.geteuid()}); set $XDG_RUNTIME_DIR to a directory of yours"
            ) from None
    status = os.lstat(path)
    if not stat.S_ISDIR(status.st_mode):
        raise LocalProtocolError(f"{path} is not a directory; remove it, or set $XDG_RUNTIME_DIR elsewhere")
    if status.st_uid != os.geteuid():
        raise LocalProtocolError(
            f"{path} belongs to uid {status.st_uid} and not to you (uid {os.geteuid()}); "
            "set $XDG_RUNTIME_DIR to a directory of yours"
        )
    if stat.S_IMODE(status.st_mode) & 0o077:
        raise LocalProtocolError(
            f"{path} is open to others (mode {stat.S_IMODE(status.st_mode):04o}); run: chmod 700 {path}"
        )
    return path


def socket_path(service: str) -> str:
    """The path of a service's socket; ValueError if it is too long for one."""
    path = str(directory() / f"{check_name(service)}.sock")
    if len(os.fsencode(path)) > _MAX_PATH:
        raise ValueError(f"socket path {path!r} is over {_MAX_PATH} bytes; use a shorter service name or directory")
    return path


class Claim:
    """The right to serve a name, and the socket that clients come to.

    Raises ServiceInUse if another live server has it. What a dead one left is taken over.
    """

    def __init__(self, service: str) -> None:
        path = socket_path(service)
        self._lock_path = Path(path).with_suffix(".lock")
        self._socket_path = Path(path)
        _check_free(self._lock_path, stat.S_ISREG)
        _check_free(self._socket_path, lambda mode: not stat.S_ISDIR(mode))
        lock = _lock_patiently(self._lock_path)
        if lock is None:
            pid = _pid_of(self._lock_path)
            raise ServiceInUse(
                f"service {service!r} is already served by process {pid if pid else '(unknown)'}; "
                "stop it first, or choose another name",
                pid,
            )
        try:
            self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        except BaseException:
            os.close(lock)
            raise
        self._lock = lock
        fork.close_in_child(self)
        try:
            os.ftruncate(lock, 0)
            os.pwrite(lock, b"%d\n" % os.getpid(), 0)
            self._socket_path.unlink(missing_ok=True)
            self.socket.setblocking(False)
            self.socket.bind(path)
            self._socket_path.chmod(0o600)
            self.socket.listen(_BACKLOG)
        except BaseException:
            self.release()
            raise

    def release(self) -> None:
        """Gives the name back: socket first, lock last. In a forked child it is the parent's: nothing."""
        if self._lock < 0:
            return
        self._socket_path.unlink(missing_ok=True)
        self._lock_path.unlink(missing_ok=True)
        self.abandon()

    def __del__(self) -> None:
        """It was dropped, as after its loop was closed: the name is free. Files are left as by one that died."""
        if getattr(self, "_lock", -1) >= 0:
            self.abandon()

    def abandon(self) -> None:
        """Closes the descriptors and leaves the names, which are somebody else's now."""
        fork.close(self.socket)
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1


def _check_free(path: Path, may_be: Callable[[int], bool]) -> None:
    """LocalProtocolError if something is in the place of a file of ours that none of ours has put there."""
    with contextlib.suppress(FileNotFoundError):
        if not may_be(os.lstat(path).st_mode):
            raise LocalProtocolError(
                f"{path} is in the way, and is nothing that shmrpc makes; look at it and remove it"
            )


def _lock_patiently(path: Path) -> int | None:
    """Takes the lock; None if it is held for longer than a clean-up looks at it."""
    for _ in range(_LOCK_TRIES):
        lock = take_lock(path, create=True)
        if lock is not None:
            return lock
        time.sleep(_LOCK_PAUSE)
    return None


def _pid_of(lock_path: Path) -> int | None:
    try:
        descriptor = os.open(lock_path, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    try:
        return recorded_pid(descriptor)
    finally:
        os.close(descriptor)


def dial(service: str) -> socket.socket | None:
    """A socket to the service's server, blocking; None if nobody listens, or too many wait to be heard."""
    path = socket_path(service)
    try:
        control = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    except OSError as error:
        raise wants.explained(error, 0) from None
    control.setblocking(False)
    try:
        control.connect(path)
        control.setblocking(True)
    except (FileNotFoundError, ConnectionRefusedError, BlockingIOError):
        control.close()
        return None
    except BaseException:
        control.close()
        raise
    return control


class Patience:
    """How long a client looks again for a server that is not there yet: up to ``timeout`` seconds, None: for ever."""

    def __init__(self, service: str, timeout: float | None) -> None:
        self._service = check_name(service)
        self._timeout = timeout
        self._deadline = time.monotonic() + (math.inf if timeout is None else timeout)
        self._pause = _FIRST_PAUSE
        self._longest = _LONGEST_PAUSE if timeout is not None else _LONGEST_PAUSE_FOR_EVER
        self._reason = ""

    def note(self, error: Exception) -> None:
        """There is a server, but it cannot take a client now."""
        self._reason = f"the last one that was there said: {error}"

    def pause(self) -> float:
        """Seconds until the next look; ServiceUnavailable if the time is over."""
        remaining = self._deadline - time.monotonic()
        if remaining <= 0:
            raise ServiceUnavailable(
                f"nobody serves {self._service!r} (waited {self._timeout:g} s, looked in {runtime_directory()}); "
                f"{self._reason or f'start it with: shmrpc serve MODULE:{self._service}'}"
            )
        pause, self._pause = self._pause, min(self._pause * 2, self._longest)
        return min(pause, remaining)


def receive(control: socket.socket) -> tuple[bytes, list[int]]:
    """A packet of the handshake with its descriptors; an empty one at the end. Raises what ``recv`` raises."""
    try:
        data, descriptors, flags, _ = socket.recv_fds(control, MAX_MESSAGE, 8, socket.MSG_CMSG_CLOEXEC)
    except ConnectionResetError:
        return b"", []
    if (
        flags & socket.MSG_CTRUNC and len(descriptors) < 3
    ):  # There was room for eight: it is we who could not take them.
        for descriptor in descriptors:
            os.close(descriptor)
        raise wants.descriptors(errno.EMFILE)
    return data, descriptors


def peer_credentials(control: socket.socket) -> tuple[int, int]:
    """Process id and user id of who is at the other end, as the kernel has them."""
    pid, uid, _ = struct.unpack("3i", control.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
    return pid, uid


def services() -> list[str]:
    """The names that have a socket, served or not."""
    return sorted(path.stem for path in directory().glob("*.sock"))
