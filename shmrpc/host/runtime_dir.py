"""The runtime directories, in which clients find servers, and the checks that they are safe."""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Collection, Iterable
from pathlib import Path
from typing import Final

from shmrpc.basics.suggestions import closest_match
from shmrpc.errors import LocalProtocolError
from shmrpc.host import credentials, resource_limits
from shmrpc.host.cleanup import (
    NAME,
    SERVICE,
    listener,
    names_of,
    own_directories,
    runtime_directories,
    runtime_directory,
    shared_directory,
    spell,
)

#: Maximum bytes of the path of a UNIX socket, without its terminating zero.
MAX_PATH: Final = 107


def check_name(service: str, what: str = "service name") -> str:
    """Return the name. Raises ValueError or TypeError if the name is not valid; ``what`` describes it in the error."""
    if not isinstance(service, str):
        raise TypeError(f"{what}: expected a str, got {service!r}")
    if not NAME.fullmatch(service):
        raise ValueError(
            f"{what} {service!r}: expected 1 to 64 of A-Z a-z 0-9 . _ -, "
            "a letter or digit first and last, no two dots together"
        )
    return service


def directory() -> Path:
    """Return the directory for servers of this user. Raises LocalProtocolError if it is unsafe or cannot be created.

    A directory that ``$SHMRPC_DIRECTORY`` names must exist. A directory of the user's own is created if it is missing.
    Raises SharedMemoryError if its file system is full.
    """
    shared = shared_directory()
    if shared is not None:
        _check_shared(shared, ())  # No other owners: users that are only served must not replace files here.
        return shared
    path = runtime_directory()
    with contextlib.suppress(FileExistsError):
        try:
            path.mkdir(mode=0o700)
        except FileExistsError:
            raise
        except OSError as error:
            raise (
                _inaccessible_error(path, error)
                or resource_limits.rendezvous_error(error, path.parent, f"to make {path}")
                or error
            ) from None
    _check_own(path)
    return path


def _inaccessible_error(path: Path, error: OSError) -> LocalProtocolError | None:
    """Return the error for a directory whose parent is missing or inaccessible; return None for any other cause."""
    if isinstance(error, NotADirectoryError):
        variable = "$XDG_RUNTIME_DIR" if os.environ.get("XDG_RUNTIME_DIR") else "the temporary directory"
        return LocalProtocolError(f"{path.parent} is not a directory; let {variable} be one")
    match error:
        case FileNotFoundError():
            return LocalProtocolError(
                f"{path.parent} does not exist; $XDG_RUNTIME_DIR must name a directory of yours, or be unset"
            )
        case PermissionError():
            return LocalProtocolError(
                f"{path.parent} is closed to you (uid {os.geteuid()}); set $XDG_RUNTIME_DIR to a directory of yours"
            )
    return None


def _check_own(path: Path) -> None:
    """Raise LocalProtocolError unless the path is a directory that only this user can access."""
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


def directories(owners: Collection[int] = ()) -> list[Path]:
    """Return the existing directories in which clients look for servers, the one for servers of this user first.

    Returns an empty list if none exists so far, unless ``$SHMRPC_DIRECTORY`` is set: the directory that it names must
    exist, and may also belong to root or to one of ``owners``. Raises LocalProtocolError if that directory, or the
    first one of the user, is not safe. Omits other unsafe directories.
    """
    shared = shared_directory()
    if shared is None:
        return _safe_directories(own_directories())
    _check_shared(shared, owners)
    return [shared]


def create_directories() -> list[Path]:
    """Create the missing runtime directories, as far as possible; return all :func:`directories`.

    For a watcher: a name may appear in any of them. Raises as :func:`directory` does for the first one, and ignores
    errors of creating the others.
    """
    directory()
    for path in runtime_directories()[1:]:
        with contextlib.suppress(OSError):
            path.mkdir(mode=0o700)
    return directories()


def _safe_directories(places: list[Path]) -> list[Path]:
    """Return the existing and safe directories of ``places``, which come from :func:`own_directories`.

    Raises LocalProtocolError if the first one exists and is not safe, or cannot be created.
    """
    first, *others = places
    try:
        _check_own(first)
        found = [first]
    except OSError as error:
        if not (isinstance(error, FileNotFoundError) and first.parent.is_dir()):
            raise _inaccessible_error(first, error) or error from None
        found = []
    return found + _filter_safe(others)


def _filter_safe(paths: Iterable[Path]) -> list[Path]:
    """Return the directories that exist and that only this user can access."""
    found = []
    for path in paths:
        with contextlib.suppress(LocalProtocolError, OSError):
            _check_own(path)
            found.append(path)
    return found


def _check_shared(path: Path, owners: Collection[int]) -> None:
    """Raise LocalProtocolError unless only a trusted owner can replace one socket by another.

    In a sticky directory no user can replace files of others, so several users may have services there. An untrusted
    user may take a free name; clients then see the owner of the process, and refuse the connection. Raises it also for
    a path that is relative, missing or a symbolic link, and for a directory that this process cannot enter.
    """
    text = str(path)
    if not os.path.isabs(text):
        raise LocalProtocolError(f"$SHMRPC_DIRECTORY is {text!r}; it must be an absolute path")
    try:
        status = os.lstat(text)
    except FileNotFoundError:
        raise LocalProtocolError(
            f"$SHMRPC_DIRECTORY names {path}, which does not exist; make it as the user who serves: "
            f"install -d -m 755 {path}"
        ) from None
    except OSError as error:
        raise LocalProtocolError(f"$SHMRPC_DIRECTORY names {path}: {error.strerror}") from None
    mode = stat.S_IMODE(status.st_mode)
    if stat.S_ISLNK(status.st_mode):
        raise LocalProtocolError(f"{path} is a symbolic link; let $SHMRPC_DIRECTORY name the directory itself")
    if not stat.S_ISDIR(status.st_mode):
        raise LocalProtocolError(f"{path} is not a directory; let $SHMRPC_DIRECTORY name one")
    if not credentials.is_trusted(status.st_uid, owners) or credentials.is_overflow_uid(status.st_uid):
        raise LocalProtocolError(
            f"{path} belongs to uid {status.st_uid}; it must belong to "
            f"{credentials.describe_users(owners)}. "
            f"To trust its owner: connect(..., allow_uids=[{status.st_uid}])"
        )
    if mode & 0o022 and not mode & stat.S_ISVTX:
        raise LocalProtocolError(
            f"{path} is writable for others than its owner (mode {mode:04o}), who could replace its services; "
            f"run: chmod go-w {path}, or chmod +t {path} if several users serve there"
        )
    if not os.access(text, os.X_OK, effective_ids=True):
        raise LocalProtocolError(
            f"{path} (mode {mode:04o}, uid {status.st_uid}) cannot be entered by uid {os.geteuid()}; "
            f"its owner can allow it: chmod +x {path}"
        )


def socket_paths(service: str, owners: Collection[int] = ()) -> list[str]:
    """Return the paths where the socket of a service may be, for clients.

    Raises ValueError for an invalid name or a path that is too long, and the errors of :func:`directories`.
    """
    check_name(service)
    shared = shared_directory()
    if shared is not None:
        path = _socket_in(shared, service)
        _check_shared(shared, owners)
        return [path]
    places = own_directories()
    _socket_in(places[0], service)
    return [_socket_in(each, service) for each in _safe_directories(places)]


def paths_to_serve(service: str) -> tuple[str, list[str]]:
    """Return the path of the socket for a server of this user, and the paths of the service in other directories.

    A server may already listen at any of the paths. Creates the directory of the first path. Raises ValueError for an
    invalid name or a path that is too long, and the errors of :func:`directory`.
    """
    check_name(service)
    path, elsewhere = directory(), _filter_safe(runtime_directories()[1:])
    return _socket_in(path, service), [_socket_in(each, service) for each in elsewhere]


def _socket_in(place: Path, service: str) -> str:
    """Return the path of the socket of a service in a directory. Raises ValueError if it is too long."""
    path = f"{place}/{spell(service)}.sock"
    if len(os.fsencode(path)) > MAX_PATH:
        raise ValueError(f"socket path {path!r} is over {MAX_PATH} bytes; use a shorter service name or directory")
    return path


def services(owners: Collection[int] = ()) -> list[str]:
    """Return the sorted names of the services with a socket, live or not. Raises as :func:`directories` does."""
    sockets = (path.name for place in directories(owners) for path in place.glob("*.sock"))
    return sorted(names_of(SERVICE, sockets))


def similar(service: str, owners: Collection[int] = ()) -> str | None:
    """Return the other name most similar to ``service`` if its service is live; None otherwise, or after an error."""
    with contextlib.suppress(OSError, LocalProtocolError):
        meant = closest_match(service, [name for name in services(owners) if name != service])
        if meant is not None and any(listener(Path(path)) is not None for path in socket_paths(meant, owners)):
            return meant
    return None
