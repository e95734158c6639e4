"""The rendezvous of servers and clients: one lock and one socket per service."""

from __future__ import annotations

import contextlib
import errno
import math
import os
import socket
import stat
import time
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import Final

import msgspec

from shmrpc import _core
from shmrpc.errors import (
    ConnectionLost,
    LocalProtocolError,
    ServiceInUse,
    ServiceUnavailable,
    SharedMemoryError,
    ShmrpcError,
)
from shmrpc.host import credentials, fork, resource_limits
from shmrpc.host.cleanup import is_at, listener, runtime_directories, runtime_directory, shared_directory, take_lock
from shmrpc.host.exit_cleanup import release_at_forced_exit
from shmrpc.host.processes import describe_process, explain_no_progress, lock_holder
from shmrpc.host.runtime_dir import paths_to_serve, similar, socket_paths
from shmrpc.wire import control

_BACKLOG: Final = 512
#: Seconds between two attempts to connect: the first, the longest, and the longest without a time limit.
_FIRST_PAUSE: Final = 0.001
_LONGEST_PAUSE: Final = 0.05
_LONGEST_PAUSE_UNLIMITED: Final = 0.25
#: Attempts to take the lock, which a cleanup holds for moments, and seconds between two of them.
_LOCK_TRIES: Final = 10
_LOCK_PAUSE: Final = 0.01


class ServiceSocket:
    """The listening socket of a service, and the lock on the service's name.

    Takes over the files that a dead server of this user has left. ``allow_uids``: users who may connect, besides the
    own user and root.

    Raises ServiceInUse if a live server, or another user, has the name; LocalProtocolError if the directory is unsafe
    or inaccessible, or if a file in it is not of shmrpc; SharedMemoryError without room or descriptors.
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
        """Remove the files and close the descriptors, those of the lock last. Does nothing in a forked child."""
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
        """Remove the files of this socket. This process must hold the lock of the name."""
        if self._bound is not None and is_at(self._bound, self._socket_path):
            self._socket_path.unlink()
        if not os.path.lexists(self._socket_path):
            self._lock_path.unlink()

    def __del__(self) -> None:
        """Close the descriptors of a dropped socket, which frees the name. The files stay, as after a death."""
        if getattr(self, "_lock", -1) >= 0:
            self.abandon()

    def abandon(self) -> None:
        """Close the descriptors, and leave the files."""
        fork.close_socket(self.socket)
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1


def _check_reachable(other_uids: Collection[int]) -> None:
    """Raise LocalProtocolError if the allowed users cannot reach a socket of this process."""
    if shared_directory() is None:
        raise LocalProtocolError(
            f"allow_uids={list(other_uids)}, but other users cannot enter {runtime_directory()}: set $SHMRPC_DIRECTORY "
            "for both sides to a directory that they can enter; to make one: install -d -m 755 /run/my-services"
        )
    if credentials.is_overflow_uid(os.geteuid()):
        raise LocalProtocolError(
            f"allow_uids={list(other_uids)}, but this process is uid {os.geteuid()}, which stands for every user that "
            "this user namespace does not know: run as another user"
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
            f"uid {os.geteuid()} cannot serve in {path.parent}: it cannot write there (it belongs to uid "
            f"{status.st_uid}, mode {stat.S_IMODE(status.st_mode):04o}); serve as uid {status.st_uid}, or let "
            "$SHMRPC_DIRECTORY name another directory"
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
    """Raise ServiceInUse if a process still listens at a socket. ``remark`` explains the case in the message."""
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
            raise LocalProtocolError(f"{path} is in the way, and is no file of shmrpc; inspect and remove it")


def _take_lock_with_retries(path: Path) -> int | None:
    """Take the lock and return its descriptor; return None if another process holds it for longer than a cleanup."""
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


def dial(service: str, allow_uids: Collection[int] = ()) -> socket.socket | None:
    """Connect a non-blocking socket to the server of a service and return it; return None if no server listens.

    Raises ConnectionLost if the server's backlog is full, PermissionError if it admits only its own user,
    LocalProtocolError if it belongs to a user that this process does not trust.
    """
    for path in socket_paths(service, allow_uids):
        dialled = _dial(path, service, allow_uids)
        if dialled is not None:
            return dialled
    return None


def _dial(path: str, service: str, allow_uids: Collection[int]) -> socket.socket | None:
    """Connect a socket to a path, and check the user of the server. Returns and raises as :func:`dial` does."""
    try:
        dialled = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_NONBLOCK)
    except OSError as error:
        raise resource_limits.explain_os_error(error) from None
    try:
        # Each packet names its sender: the listening process may have passed the connection on, and an id that a
        # process sends of itself belongs to its own pid namespace.
        dialled.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
        dialled.connect(path)
        _check_server(service, credentials.peer_credentials(dialled)[1], allow_uids)
    except (FileNotFoundError, ConnectionRefusedError):
        dialled.close()
        return None
    except BlockingIOError:
        dialled.close()
        raise ConnectionLost("its backlog is full: it accepts no connections, because it hangs or is stopped") from None
    except BaseException:
        dialled.close()
        raise
    return dialled


def _check_server(service: str, uid: int, allow_uids: Collection[int]) -> None:
    """Raise LocalProtocolError if this process does not trust the user of a server."""
    if not credentials.is_trusted(uid, allow_uids):
        raise LocalProtocolError(
            f"service {service!r} is served by uid {uid}; this process trusts "
            f"{credentials.describe_users(allow_uids)}. "
            f"If you trust that user: connect({service!r}, allow_uids=[{uid}])"
        )
    if credentials.is_overflow_uid(uid) and shared_directory() is not None:
        raise LocalProtocolError(
            f"service {service!r} is served by uid {uid}, which stands for every user that this user namespace does "
            "not know; serve as a user that it knows"
        )


#: Callback for each attempt to connect, given the reason why the client is not connected; "" without a server.
OnRetry = Callable[[str], None]


class ConnectRetry:
    """The schedule of a client's attempts to connect, and the reasons of the failed ones.

    The attempts end after ``timeout`` seconds in total; None: never. 0 means a single attempt, which does not wait for
    a server to appear, and waits at most :data:`control.MOMENT` for the answers of an existing one. ``note`` receives
    the reason of each failed attempt.
    """

    def __init__(
        self,
        service: str,
        timeout: float | None,
        allow_uids: Collection[int] = (),
        note: OnRetry = lambda reason: None,
    ) -> None:
        self._service = service
        self._allow_uids = allow_uids
        self._timeout = timeout
        began = time.monotonic()
        self._deadline = began + (math.inf if timeout is None else timeout)
        self._answered_by = self._deadline if timeout != 0 else began + control.MOMENT
        self._pause = _FIRST_PAUSE
        self._longest = _LONGEST_PAUSE if timeout is not None else _LONGEST_PAUSE_UNLIMITED
        self._note = note
        #: Reason why the existing server does not accept the client.
        self._reason = ""
        #: Message that the server does not answer, and the seconds that the client has waited.
        self._no_answer = ""
        self._no_answer_seconds = 0.0

    def dial(self) -> socket.socket | None:
        """Make an attempt; return a socket as :func:`dial` does, or None if no server accepts the client.

        Raises LocalProtocolError if the server's user is not trusted.
        """
        self._no_answer = ""
        try:
            dialled = dial(self._service, self._allow_uids)
            if dialled is None:
                self._note("")  # Without a server, the reason of an earlier one is obsolete.
            return dialled
        except PermissionError:  # Also for a moment at the start of a server that admits this user.
            self._reason = (
                f"there is one that admits only its own user; serve it with allow_uids=[{os.geteuid()}] "
                f"(shmrpc serve --allow-user {os.geteuid()})"
            )
        except ConnectionLost as error:
            self.record_failure(error)
        return None

    def record_failure(self, error: Exception) -> None:
        """Record the error with which a server refused the client, unless the server did not answer at all."""
        if not self._no_answer:
            self._reason = f"the last server refused: {error}"
            self._note(str(error))

    def welcome_timeout(self, pid: int) -> float:
        """Return the seconds to wait for the welcome of the connected server; 0 after the timeout."""
        self._note(f"{describe_process(pid)} is there, and its 'welcome' is waited for")
        return max(0.0, min(control.STEP_TIMEOUT, self._answered_by - time.monotonic()))

    def no_answer_error(self, pid: int, since: float) -> ConnectionLost:
        """Return the error for a server that has sent no welcome since ``since``, and record it for the last error."""
        self._no_answer_seconds = time.monotonic() - since
        self._no_answer = (
            f"the server of {self._service!r} ({describe_process(pid)}) does not answer: waited "
            f"{self._no_answer_seconds:.3g} s for its 'welcome'; {explain_no_progress(pid)}"
        )
        self._note(self._no_answer)
        return ConnectionLost(self._no_answer)

    def next_pause(self) -> float:
        """Return the seconds until the next attempt. Raises ServiceUnavailable, with the reason, after the timeout."""
        remaining = self._deadline - time.monotonic()
        if remaining <= 0:
            # An attempt near the end of the timeout proves less than an earlier reason of a server.
            if self._no_answer and (not self._reason or self._no_answer_seconds > (self._timeout or 0) / 2):
                raise ServiceUnavailable(f"cannot connect within {self._timeout:g} s: {self._no_answer}")
            places = " and ".join(map(str, runtime_directories()))
            raise ServiceUnavailable(
                f"no server of {self._service!r} (waited {self._timeout:g} s, looked in {places}); "
                f"{self._reason or self._start_hint()}"
            )
        pause, self._pause = self._pause, min(self._pause * 2, self._longest)
        return min(pause, remaining)

    def _start_hint(self) -> str:
        """Return advice for starting the service."""
        meant = similar(self._service, self._allow_uids)
        start = f"did you mean {meant!r}, which is served? If not, " if meant else ""
        start += f"start it with: shmrpc serve MODULE:{self._service}"
        if credentials.other_users(self._allow_uids) and shared_directory() is None:
            start += "; services of other users are met in the directory that $SHMRPC_DIRECTORY names"
        return start


class Packet(msgspec.Struct, frozen=True):
    """A packet of the handshake."""

    #: Data; empty at the end of the connection.
    data: bytes
    descriptors: Sequence[_core.Descriptor]
    #: Id of the sending process, from the kernel; 0 if it is not visible from here.
    pid: int


def receive_packet(dialled: socket.socket, timeout: int = 0, spin: int = 0) -> Packet:
    """Receive and return the next packet of the handshake; return an empty one at the end of the connection.

    Raises BlockingIOError after ``timeout`` nanoseconds, of which at most ``spin`` are spent spinning, and
    SharedMemoryError if this process has no descriptors left for those of the packet.
    """
    try:
        data, descriptors, is_cut, pid = _core.receive_packet(dialled.fileno(), control.MAX_MESSAGE, timeout, spin)
    except ConnectionResetError:
        return Packet(b"", [], 0)
    if is_cut and len(descriptors) < 3:  # There was room for eight, so this process had no free descriptors.
        error = dropped_descriptors_error(dialled)  # While the received ones are still open.
        for descriptor in descriptors:
            descriptor.close()
        raise error
    return Packet(data, descriptors, pid)


def dropped_descriptors_error(through: socket.socket) -> SharedMemoryError:
    """Return the error for a packet without its descriptors, which the kernel has dropped silently.

    ``through``: the socket of the packet.
    """
    try:
        os.close(os.dup(through.fileno()))
    except OSError as error:
        return resource_limits.no_descriptor_error(error.errno or errno.EMFILE)
    return SharedMemoryError(
        errno.EACCES,
        "the descriptors of a connection could not be received: check what confines this process (SELinux, AppArmor), "
        "or retry if it is at its limit of open files (ulimit -n)",
    )
