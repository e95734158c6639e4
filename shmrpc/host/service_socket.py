"""The server's side of the rendezvous: the listening socket of a service, and the lock on its name."""

from __future__ import annotations

import contextlib
import errno
import os
import socket
import stat
import time
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Final

from shmrpc.errors import LocalProtocolError, ServiceInUse, ShmrpcError
from shmrpc.host import credentials, fork, resource_limits
from shmrpc.host.cleanup import is_at, listener, runtime_directory, shared_directory, take_lock
from shmrpc.host.exit_cleanup import release_at_forced_exit
from shmrpc.host.processes import describe_process, lock_holder
from shmrpc.host.runtime_dir import paths_to_serve

_BACKLOG: Final = 512
#: Attempts to take the lock, which a cleanup holds for moments, and seconds between two of them.
_LOCK_TRIES: Final = 10
_LOCK_PAUSE: Final = 0.01


class ServiceSocket:
    """The listening socket of a service, and the lock on the service's name.

    Takes over the files that a dead server of this user has left; blocks for about 0.1 s if the name is in use. Listens
    from its creation until :meth:`release`. ``allow_uids``: users who may connect, besides the own user and root.

    Raises ServiceInUse if a live server, or another user, has the name; LocalProtocolError if the directory is unsafe
    or inaccessible, or if a file in it is not of shmrpc; SharedMemoryError without room or descriptors; ValueError for
    an invalid name or a path that is too long.
    """

    def __init__(self, service: str, allow_uids: Collection[int] = ()) -> None:
        other_uids = credentials.other_users(allow_uids)
        if other_uids:
            _check_reachable(other_uids)
        path, elsewhere = paths_to_serve(service)
        self._lock_path = Path(f"{path.removesuffix('.sock')}.lock")
        self._socket_path = Path(path)
        _check_path(self._lock_path, service, stat.S_ISREG)
        _check_path(self._socket_path, service, lambda mode: not stat.S_ISDIR(mode))
        try:
            lock = _take_lock_with_retries(self._lock_path)
        except OSError as error:
            raise _name_error(self._lock_path, service, error) from None
        if lock is None:
            pid = _pid_of(self._socket_path, self._lock_path)
            raise ServiceInUse(
                f"service {service!r} is already served by {describe_process(pid)}; stop it first, or choose another "
                "name",
                pid or None,
            )
        try:
            _check_lock(lock, self._lock_path, service)
            _check_unserved(self._socket_path, service, "although its lock file was removed")
            try:
                for other in map(Path, elsewhere):
                    _check_unserved(other, service, f"which clients meet in {other.parent}")
            except ServiceInUse:
                self._lock_path.unlink()
                raise
            self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        except BaseException as error:
            os.close(lock)
            raise _name_error(self._lock_path, service, error) from None
        #: Status of the file of the socket, once it is bound.
        self._bound: os.stat_result | None = None
        self._lock = lock
        fork.abandon_in_child(self)
        release_at_forced_exit(self)
        try:
            os.ftruncate(lock, 0)
            os.pwrite(lock, b"%d\n" % os.getpid(), 0)
            self._socket_path.unlink(missing_ok=True)
            self.socket.setblocking(False)
            self.socket.bind(path)
            self._bound = os.lstat(self._socket_path)
            # The server checks the credentials of other users, which a mode cannot express.
            self._socket_path.chmod(0o666 if other_uids else 0o600)
            self.socket.listen(_BACKLOG)
        except BaseException as error:
            self.release()
            raise _name_error(self._socket_path, service, error) from None

    def release(self) -> None:
        """Remove the files and close the descriptors, the lock last. Idempotent. Does nothing in a forked child."""
        if self._lock < 0:
            return
        with contextlib.suppress(OSError):  # The directory was removed, or is no longer accessible.
            self._remove_files()
        self.abandon()

    def _remove_files(self) -> None:
        """Remove the files of this socket. Leaves the files of a later server of the same name."""
        if is_at(os.fstat(self._lock), self._lock_path):
            self._remove_locked()
            return
        lock = take_lock(self._lock_path, create=True)
        if lock is not None:
            try:
                self._remove_locked()
            finally:
                os.close(lock)

    def _remove_locked(self) -> None:
        """Remove the files of this socket. This process must hold the lock of the name.

        Leaves the socket of another server, and then also the lock file.
        """
        if self._bound is not None and is_at(self._bound, self._socket_path):
            self._socket_path.unlink()
        if not os.path.lexists(self._socket_path):
            self._lock_path.unlink()

    def __del__(self) -> None:
        """Close the descriptors of a dropped socket, which frees the name. The files stay, as after a death."""
        if getattr(self, "_lock", -1) >= 0:
            self.abandon()

    def abandon(self) -> None:
        """Close the descriptors, and leave the files. Idempotent."""
        fork.close_socket(self.socket)
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1


def _check_reachable(other_uids: Collection[int]) -> None:
    """Raise LocalProtocolError if the allowed users cannot reach a socket of this process."""
    if shared_directory() is None:
        raise LocalProtocolError(
            f"allow_uids={list(other_uids)}, but other users cannot enter {runtime_directory()}: set $SHMRPC_DIRECTORY "
            "on both sides to a directory for all users (install -d -m 755 /run/my-services)"
        )
    if credentials.is_overflow_uid(os.geteuid()):
        raise LocalProtocolError(
            f"allow_uids={list(other_uids)}, but this process is uid {os.geteuid()}, which stands for all users "
            "outside this user namespace: run as another user"
        )


def _name_error(path: Path, service: str, error: BaseException) -> BaseException:
    """Return the error to raise for an error of creating the file at ``path``.

    Explains a lack of room or descriptors, and files or directories of other users; returns other errors unchanged.
    """
    if not isinstance(error, OSError) or isinstance(error, ShmrpcError):
        return error
    lack = resource_limits.rendezvous_error(error, path.parent, f"to serve {service!r}")
    if lack is not None:
        return lack
    with contextlib.suppress(OSError):
        status = os.lstat(path)
        if status.st_uid != os.geteuid():
            return _other_user_error(path, service, status.st_uid)
        if not stat.S_ISREG(status.st_mode) and not stat.S_ISSOCK(status.st_mode):
            return LocalProtocolError(f"{path} is no file of shmrpc ({error.strerror}); remove it")
    if error.errno in (errno.EACCES, errno.EPERM):
        status = os.lstat(path.parent)
        return LocalProtocolError(
            f"uid {os.geteuid()} cannot write in {path.parent} (uid {status.st_uid}, mode "
            f"{stat.S_IMODE(status.st_mode):04o}); serve as uid {status.st_uid}, or set $SHMRPC_DIRECTORY to another "
            "directory"
        )
    return error


def _other_user_error(path: Path, service: str, uid: int) -> ServiceInUse:
    """Return the error for a name whose file belongs to another user."""
    return ServiceInUse(
        f"service {service!r} is another user's: {path} belongs to uid {uid}; choose another name, or let uid {uid} "
        "stop it and run: shmrpc cleanup"
    )


def _check_lock(lock: int, path: Path, service: str) -> None:
    """Raise ServiceInUse if the locked file is another user's, LocalProtocolError if it is no lock file.

    Prevents root, in a directory of several users, from truncating another user's file or a second name of its own.
    """
    status = os.fstat(lock)
    if status.st_uid != os.geteuid():
        raise _other_user_error(path, service, status.st_uid)
    if not stat.S_ISREG(status.st_mode) or status.st_nlink != 1:
        raise LocalProtocolError(f"{path} is no lock file, or has a second name; remove it")


def _check_unserved(path: Path, service: str, remark: str) -> None:
    """Raise ServiceInUse if a process still listens at a socket after 0.1 s.

    ``remark`` explains the case in the message. Raises OSError if the socket cannot be examined.
    """
    pid = listener(path)
    for _ in range(_LOCK_TRIES):
        if pid is None:
            return
        time.sleep(_LOCK_PAUSE)  # A server that is dying may lose its lock before its socket.
        pid = listener(path)
    raise ServiceInUse(
        f"service {service!r} is already served by {describe_process(pid)}, {remark}; stop it first, or choose another "
        "name",
        pid or None,
    )


def _check_path(path: Path, service: str, may_be: Callable[[int], bool]) -> None:
    """Raise ServiceInUse if a file is another user's, LocalProtocolError if ``may_be`` rejects its mode."""
    with contextlib.suppress(FileNotFoundError):
        status = os.lstat(path)
        if status.st_uid != os.geteuid():
            raise _other_user_error(path, service, status.st_uid)
        if not may_be(status.st_mode):
            raise LocalProtocolError(f"{path} is no file of shmrpc, and blocks the name; inspect and remove it")


def _take_lock_with_retries(path: Path) -> int | None:
    """Take the lock as take_lock() does, and return its descriptor.

    Returns None if another process holds it for 0.1 s, which is longer than a cleanup does. Blocks meanwhile.
    """
    for _ in range(_LOCK_TRIES):
        lock = take_lock(path, create=True)
        if lock is not None:
            return lock
        time.sleep(_LOCK_PAUSE)
    return None


def _pid_of(socket_path: Path, lock_path: Path) -> int | None:
    """Return the process that holds a name; return 0 or None if its id is not visible from here."""
    with contextlib.suppress(OSError):
        pid = listener(socket_path)
        if pid is not None:
            return pid
        return lock_holder(os.stat(lock_path))
    return None
