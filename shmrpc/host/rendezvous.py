"""How servers and clients meet: one lock and one socket per service."""

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
#: Seconds between two looks for a server that is not there yet: the first, and the longest.
_FIRST_PAUSE: Final = 0.001
_LONGEST_PAUSE: Final = 0.05
_LONGEST_PAUSE_FOR_EVER: Final = 0.25
#: Tries to take the lock, which a clean-up holds for moments while it looks; seconds between two of them.
_LOCK_TRIES: Final = 10
_LOCK_PAUSE: Final = 0.01


class ServiceSocket:
    """The right to serve a name, and the socket that clients connect to.

    ``allow_uids``: users who may connect, besides our own and root. Raises ServiceInUse if a live server, or another
    user, has the name. What a dead server of ours left is taken over.
    """

    def __init__(self, service: str, allow_uids: Collection[int] = ()) -> None:
        strangers = credentials.other_users(allow_uids)
        if strangers:
            _check_reachable(strangers)
        path, elsewhere = paths_to_serve(service)
        self._lock_path = Path(f"{path.removesuffix('.sock')}.lock")
        self._socket_path = Path(path)
        _check_free(self._lock_path, service, stat.S_ISREG)
        _check_free(self._socket_path, service, lambda mode: not stat.S_ISDIR(mode))
        try:
            lock = _lock_patiently(self._lock_path)
        except OSError as error:
            raise _not_to_be_had(self._lock_path, service, error) from None
        if lock is None:
            pid = _pid_of(self._socket_path, self._lock_path)
            raise ServiceInUse(
                f"service {service!r} is already served by {describe_process(pid)}; stop it first, or choose another "
                "name",
                pid or None,
            )
        try:
            _check_lock(lock, self._lock_path, service)
            _check_unserved(self._socket_path, service, "although somebody has removed its lock file")
            try:
                for other in map(Path, elsewhere):
                    _check_unserved(other, service, f"which clients meet in {other.parent}")
            except ServiceInUse:
                self._lock_path.unlink()
                raise
            self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        except BaseException as error:
            os.close(lock)
            raise _not_to_be_had(self._lock_path, service, error) from None
        #: The status of the socket's file, once it is bound.
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
            # Others are asked for their credentials, which is more than a mode could say.
            self._socket_path.chmod(0o666 if strangers else 0o600)
            self.socket.listen(_BACKLOG)
        except BaseException as error:
            self.release()
            raise _not_to_be_had(self._socket_path, service, error) from None

    def release(self) -> None:
        """Gives the name back: socket first, lock last. Does nothing in a forked child: the name is the parent's."""
        if self._lock < 0:
            return
        with contextlib.suppress(OSError):  # Somebody has removed the directory, or closed it to us.
            self._remove_files()
        self.abandon()

    def _remove_files(self) -> None:
        """Removes our files, but none of a server that took the name after somebody had removed ours."""
        if is_at(os.fstat(self._lock), self._lock_path):
            self._remove_own()
            return
        lock = take_lock(self._lock_path, create=True)
        if lock is not None:
            try:
                self._remove_own()
            finally:
                os.close(lock)

    def _remove_own(self) -> None:
        """Removes our files while we hold the lock of the name."""
        if self._bound is not None and is_at(self._bound, self._socket_path):
            self._socket_path.unlink()
        if not os.path.lexists(self._socket_path):
            self._lock_path.unlink()

    def __del__(self) -> None:
        """Frees the name of a dropped claim, as after its loop was closed; its files stay, as after a death."""
        if getattr(self, "_lock", -1) >= 0:
            self.abandon()

    def abandon(self) -> None:
        """Closes the descriptors and leaves the names, which belong to somebody else now."""
        fork.close_socket(self.socket)
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1


def _check_reachable(strangers: Collection[int]) -> None:
    """Raises LocalProtocolError if users are allowed who cannot reach our socket."""
    if shared_directory() is None:
        raise LocalProtocolError(
            f"allow_uids={list(strangers)}, but other users cannot enter {runtime_directory()}: set $SHMRPC_DIRECTORY "
            "for both sides to a directory that they can enter; to make one: install -d -m 755 /run/my-services"
        )
    if credentials.is_overflow_uid(os.geteuid()):
        raise LocalProtocolError(
            f"allow_uids={list(strangers)}, but we are uid {os.geteuid()}, which stands for every user that this "
            "user namespace does not know: run as a user of your own"
        )


def _not_to_be_had(path: Path, service: str, error: BaseException) -> BaseException:
    """Returns what to raise if a name, or a file of it, cannot be ours."""
    if not isinstance(error, OSError) or isinstance(error, ShmrpcError):
        return error
    lack = resource_limits.rendezvous_error(error, path.parent, f"to serve {service!r}")
    if lack is not None:
        return lack
    with contextlib.suppress(OSError):
        status = os.lstat(path)
        if status.st_uid != os.geteuid():
            return _somebody_elses(path, service, status.st_uid)
        if not stat.S_ISREG(status.st_mode) and not stat.S_ISSOCK(status.st_mode):
            return LocalProtocolError(f"{path} is none of our files ({error.strerror}); remove it")
    if error.errno in (errno.EACCES, errno.EPERM):
        status = os.lstat(path.parent)
        return LocalProtocolError(
            f"uid {os.geteuid()} cannot serve in {path.parent}: it cannot write there (it belongs to uid "
            f"{status.st_uid}, mode {stat.S_IMODE(status.st_mode):04o}); serve as uid {status.st_uid}, or let "
            "$SHMRPC_DIRECTORY name another directory"
        )
    return error


def _somebody_elses(path: Path, service: str, uid: int) -> ServiceInUse:
    return ServiceInUse(
        f"service {service!r} is another user's: {path} belongs to uid {uid}; choose another name, or let uid {uid} "
        "stop it and run: shmrpc cleanup"
    )


def _check_lock(lock: int, path: Path, service: str) -> None:
    """Raises ServiceInUse or LocalProtocolError unless the file that we hold is a lock file of our own.

    In a directory of several users it may be root that opens what another user has put there, or it may be a second
    name of a file of ours that we would empty.
    """
    status = os.fstat(lock)
    if status.st_uid != os.geteuid():
        raise _somebody_elses(path, service, status.st_uid)
    if not stat.S_ISREG(status.st_mode) or status.st_nlink != 1:
        raise LocalProtocolError(f"{path} is no lock file, or has another name too; remove it")


def _check_unserved(path: Path, service: str, remark: str) -> None:
    """Raises ServiceInUse if somebody listens at a socket, although we have the lock of the name."""
    pid = listener(path)
    for _ in range(_LOCK_TRIES):
        if pid is None:
            return
        time.sleep(_LOCK_PAUSE)  # One that dies at this moment may drop its lock before its socket.
        pid = listener(path)
    raise ServiceInUse(
        f"service {service!r} is already served by {describe_process(pid)}, {remark}; stop it first, or choose another "
        "name",
        pid or None,
    )


def _check_free(path: Path, service: str, may_be: Callable[[int], bool]) -> None:
    """Raises ServiceInUse if another user's file is in the place of ours, LocalProtocolError if it is no such file."""
    with contextlib.suppress(FileNotFoundError):
        status = os.lstat(path)
        if status.st_uid != os.geteuid():
            raise _somebody_elses(path, service, status.st_uid)
        if not may_be(status.st_mode):
            raise LocalProtocolError(
                f"{path} is in the way, and is nothing that shmrpc makes; look at it and remove it"
            )


def _lock_patiently(path: Path) -> int | None:
    """Takes the lock; returns None if it is held for longer than a clean-up needs."""
    for _ in range(_LOCK_TRIES):
        lock = take_lock(path, create=True)
        if lock is not None:
            return lock
        time.sleep(_LOCK_PAUSE)
    return None


def _pid_of(socket_path: Path, lock_path: Path) -> int | None:
    """The process that holds a name; 0 or None if its id cannot be seen from here."""
    with contextlib.suppress(OSError):
        pid = listener(socket_path)
        if pid is not None:
            return pid
        return lock_holder(os.stat(lock_path))
    return None


def dial(service: str, allow_uids: Collection[int] = ()) -> socket.socket | None:
    """Connects a socket, which never waits, to the server of a service; returns None if nobody listens.

    Raises ConnectionLost if the server's backlog is full, PermissionError if it admits its own user alone,
    LocalProtocolError if it belongs to a user that we do not talk to.
    """
    for path in socket_paths(service, allow_uids):
        dialled = _dial(path, service, allow_uids)
        if dialled is not None:
            return dialled
    return None


def _dial(path: str, service: str, allow_uids: Collection[int]) -> socket.socket | None:
    try:
        dialled = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_NONBLOCK)
    except OSError as error:
        raise resource_limits.explain_os_error(error) from None
    try:
        # Each packet names its sender: who once listened may have passed us on, and an id that a process says of itself
        # is one of its own pid namespace.
        dialled.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
        dialled.connect(path)
        _check_server(service, credentials.peer_credentials(dialled)[1], allow_uids)
    except (FileNotFoundError, ConnectionRefusedError):
        dialled.close()
        return None
    except BlockingIOError:
        dialled.close()
        raise ConnectionLost("its line is full: it accepts nobody, since it hangs or is stopped") from None
    except BaseException:
        dialled.close()
        raise
    return dialled


def _check_server(service: str, uid: int, allow_uids: Collection[int]) -> None:
    """Raises LocalProtocolError if we do not talk to servers of this user."""
    if not credentials.is_trusted(uid, allow_uids):
        raise LocalProtocolError(
            f"service {service!r} is served by uid {uid}, and we speak with {credentials.describe_users(allow_uids)}; "
            f"if you trust that user: connect({service!r}, allow_uids=[{uid}])"
        )
    if credentials.is_overflow_uid(uid) and shared_directory() is not None:
        raise LocalProtocolError(
            f"service {service!r} is served by uid {uid}, which stands for every user that this user namespace does "
            "not know; serve as a user that it knows"
        )


#: Called with the reason why a waiting client has no connection so far; "" if no server is there.
OnRetry = Callable[[str], None]


class ConnectRetry:
    """How long a client tries to connect: up to ``timeout`` seconds altogether, None: for ever.

    0 is one try: it waits for no server to appear, and for the answers of one that is there up to
    :data:`control.MOMENT`. ``note`` is told why there is no connection so far, after each try.
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
        self._longest = _LONGEST_PAUSE if timeout is not None else _LONGEST_PAUSE_FOR_EVER
        self._note = note
        #: Why the server that is there cannot take us.
        self._reason = ""
        #: That the server does not answer, in words, and for how many seconds it was waited for.
        self._silent = ""
        self._silent_for = 0.0

    def dial(self) -> socket.socket | None:
        """Connects as :func:`dial` does; returns None if no server takes us."""
        self._silent = ""
        try:
            dialled = dial(self._service, self._allow_uids)
            if dialled is None:
                self._note("")  # Nobody is there: what an earlier server said is out of date.
            return dialled
        except PermissionError:  # Also for a moment, while a server begins that does let us in.
            self._reason = (
                f"there is one that lets nobody in but its own user; serve it with allow_uids=[{os.geteuid()}] "
                f"(shmrpc serve --allow-uid {os.geteuid()})"
            )
        except ConnectionLost as error:
            self.record_failure(error)
        return None

    def record_failure(self, error: Exception) -> None:
        """Records why the server that is there cannot take a client now."""
        if not self._silent:
            self._reason = f"the last one that was there said: {error}"
            self._note(str(error))

    def welcome_timeout(self, pid: int) -> float:
        """The seconds that the server, which is there, has for its answer."""
        self._note(f"{describe_process(pid)} is there, and its 'welcome' is waited for")
        return max(0.0, min(control.STEP_TIMEOUT, self._answered_by - time.monotonic()))

    def no_answer_error(self, pid: int, since: float) -> ConnectionLost:
        """Returns the error for a server that has not answered ``since`` then; a caller that tries again catches it."""
        self._silent_for = time.monotonic() - since
        self._silent = (
            f"the server of {self._service!r} ({describe_process(pid)}) does not answer: waited "
            f"{self._silent_for:.3g} s for its 'welcome'; {explain_no_progress(pid)}"
        )
        self._note(self._silent)
        return ConnectionLost(self._silent)

    def next_pause(self) -> float:
        """The seconds until the next try. Raises ServiceUnavailable if the time is over."""
        remaining = self._deadline - time.monotonic()
        if remaining <= 0:
            # The last look may come when the time is nearly over: then it proves less than what a server has said.
            if self._silent and (not self._reason or self._silent_for > (self._timeout or 0) / 2):
                raise ServiceUnavailable(f"cannot connect within {self._timeout:g} s: {self._silent}")
            places = " and ".join(map(str, runtime_directories()))
            raise ServiceUnavailable(
                f"nobody serves {self._service!r} (waited {self._timeout:g} s, looked in {places}); "
                f"{self._reason or self._how_to_start()}"
            )
        pause, self._pause = self._pause, min(self._pause * 2, self._longest)
        return min(pause, remaining)

    def _how_to_start(self) -> str:
        meant = similar(self._service, self._allow_uids)
        start = f"did you mean {meant!r}, which is served? If not, " if meant else ""
        start += f"start it with: shmrpc serve MODULE:{self._service}"
        if credentials.other_users(self._allow_uids) and shared_directory() is None:
            start += "; services of other users are met in the directory that $SHMRPC_DIRECTORY names"
        return start


class Packet(msgspec.Struct, frozen=True):
    """A packet of the handshake."""

    #: Empty at the end of the connection.
    data: bytes
    descriptors: Sequence[_core.Descriptor]
    #: The id of the sending process, from the kernel; 0 if it cannot be seen from here.
    pid: int


def receive_packet(dialled: socket.socket, patience: int = 0, spin: int = 0) -> Packet:
    """Receives the next packet of the handshake. BlockingIOError if none comes within ``patience`` nanoseconds.

    ``spin``: for how many of them at most it looks again and again.
    """
    try:
        data, descriptors, is_cut, pid = _core.receive_packet(dialled.fileno(), control.MAX_MESSAGE, patience, spin)
    except ConnectionResetError:
        return Packet(b"", [], 0)
    if is_cut and len(descriptors) < 3:  # There was room for eight: it is we who could not take them.
        error = dropped_descriptors_error(dialled)  # While those that were taken are still open.
        for descriptor in descriptors:
            descriptor.close()
        raise error
    return Packet(data, descriptors, pid)


def dropped_descriptors_error(through: socket.socket) -> SharedMemoryError:
    """Returns the error for descriptors of a packet that could not be received: the kernel drops them silently."""
    try:
        os.close(os.dup(through.fileno()))
    except OSError as error:
        return resource_limits.no_descriptor_error(error.errno or errno.EMFILE)
    return SharedMemoryError(
        errno.EACCES,
        "the descriptors of a connection could not be taken: look at what confines this process (SELinux, AppArmor), "
        "or try again if it is at its limit of open files (ulimit -n)",
    )
