"""Which users we talk to: our own, root, and those that we were told to allow."""

from __future__ import annotations

import contextlib
import functools
import os
import socket
import struct
from collections.abc import Collection
from pathlib import Path
from typing import Final

#: Users besides our own and root.
NO_OTHER_USERS: Final[frozenset[int]] = frozenset()


def peer_credentials(control: socket.socket) -> tuple[int, int]:
    """The process id and the user id of the other end, as the kernel reports them."""
    pid, uid, _ = struct.unpack("iII", control.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
    return pid, uid


def is_trusted(uid: int, allow_uids: Collection[int]) -> bool:
    """Whether ``uid`` is our own, root's, or an allowed one."""
    return uid in (0, os.geteuid()) or uid in allow_uids


def other_users(allow_uids: Collection[int]) -> list[int]:
    """The allowed users other than our own and root, sorted."""
    return sorted(uid for uid in allow_uids if uid not in (0, os.geteuid()))


def is_overflow_uid(uid: int) -> bool:
    """Whether the kernel may use this id for users that have none here.

    In a user namespace it gives one id, as a rule 65534, to all users of the host that the namespace does not know.
    Where it knows all of them, that id is a user like any other.
    """
    return uid == _overflow_uid() and not _knows_all_users()


@functools.cache
def _overflow_uid() -> int:
    with contextlib.suppress(OSError, ValueError):
        return int(Path("/proc/sys/kernel/overflowuid").read_text())
    return 65534


def _knows_all_users() -> bool:
    try:
        return Path("/proc/self/uid_map").read_text().split() == ["0", "0", "4294967295"]
    except OSError:
        return False


def describe_users(uids: Collection[int]) -> str:
    """Our own user, root and ``uids``, for a message."""
    return ", ".join(f"uid {uid}" for uid in sorted({0, os.geteuid(), *uids}))
