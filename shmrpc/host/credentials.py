"""The users that this process trusts: its own, root, and the users in ``allow_uids``."""

from __future__ import annotations

import contextlib
import functools
import os
import socket
import struct
from collections.abc import Collection
from pathlib import Path
from typing import Final

#: The empty set of users besides the own one and root.
NO_OTHER_USERS: Final[frozenset[int]] = frozenset()


def peer_credentials(control: socket.socket) -> tuple[int, int]:
    """Return the process id and the user id of the other end, as the kernel reports them.

    They are those of the process that connected, called listen() or created the pair. The process id is 0 if the
    process is not visible from here.
    """
    pid, uid, _ = struct.unpack("iII", control.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
    return pid, uid


def is_trusted(uid: int, allow_uids: Collection[int]) -> bool:
    """Return True if ``uid`` is the own user, root, or an allowed user."""
    return uid in (0, os.geteuid()) or uid in allow_uids


def other_users(allow_uids: Collection[int]) -> list[int]:
    """Return the allowed users other than the own user and root, sorted."""
    return sorted(uid for uid in allow_uids if uid not in (0, os.geteuid()))


def is_overflow_uid(uid: int) -> bool:
    """Return True if the kernel may use this id for users without an id in this user namespace.

    In a user namespace, one id, usually 65534, stands for all users of the host that the namespace does not map. If the
    namespace maps all users, that id is a user like any other.
    """
    return uid == _overflow_uid() and not _maps_all_users()


@functools.cache
def _overflow_uid() -> int:
    """Return the id that the kernel uses for users without an id in this user namespace."""
    with contextlib.suppress(OSError, ValueError):
        return int(Path("/proc/sys/kernel/overflowuid").read_text())
    return 65534


def _maps_all_users() -> bool:
    """Return True if this user namespace maps all users; False also if the kernel's map cannot be read."""
    try:
        return Path("/proc/self/uid_map").read_text().split() == ["0", "0", "4294967295"]
    except OSError:
        return False


def describe_users(uids: Collection[int]) -> str:
    """Return a text for a message that lists the own user, root and ``uids``."""
    return ", ".join(f"uid {uid}" for uid in sorted({0, os.geteuid(), *uids}))
