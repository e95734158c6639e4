"""The options of connections: their defaults and their bounds."""

from __future__ import annotations

import numbers
from collections.abc import Collection
from typing import Final

from shmrpc.host.credentials import is_anybody
from shmrpc.wire.control import DEFAULT_MAX_MEMORY, MAX_MAX_MEMORY, MIN_MAX_MEMORY
from shmrpc.wire.frames import MAX_MAX_FRAME, MIN_MAX_FRAME

#: Microseconds that one wait may spin: about what a sleep and a wake-up cost.
DEFAULT_SPIN: Final = 200.0
#: A wait that spins for longer than this is a mistake.
MAX_SPIN: Final = 1_000_000.0
#: Seconds that connect() waits for a server.
DEFAULT_CONNECT_TIMEOUT: Final = 5.0
#: The kernel has no user of the number after it.
MAX_UID: Final = 0xFFFF_FFFE


def check_options(
    *,
    max_frame: int,
    spin: float,
    max_memory: int = DEFAULT_MAX_MEMORY,
    timeout: float = 0,
    reconnect: bool = False,
) -> None:
    """ValueError or TypeError for an option that cannot be."""
    _check_whole("max_memory", max_memory, "a number of bytes")
    if not MIN_MAX_MEMORY <= max_memory <= MAX_MAX_MEMORY:
        raise ValueError(f"max_memory: expected {MIN_MAX_MEMORY} to {MAX_MAX_MEMORY} bytes, got {max_memory}")
    _check_whole("max_frame", max_frame, "a number of bytes")
    if not MIN_MAX_FRAME <= max_frame <= MAX_MAX_FRAME:
        raise ValueError(f"max_frame: expected {MIN_MAX_FRAME} to {MAX_MAX_FRAME} bytes, got {max_frame}")
    check_real("spin", spin, "a number of microseconds")
    if not 0 <= spin <= MAX_SPIN:
        raise ValueError(f"spin: expected 0 to {MAX_SPIN:g} microseconds, got {spin}")
    check_seconds("timeout", timeout)
    if not isinstance(reconnect, bool):
        raise TypeError(f"reconnect: expected True or False, got {reconnect!r}")


def check_seconds(option: str, seconds: float) -> None:
    """TypeError or ValueError for what is no time to wait; ``math.inf`` is one."""
    check_real(option, seconds, "a number of seconds (math.inf: for ever)")
    if not seconds >= 0:
        raise ValueError(f"{option}: expected seconds, 0 or more, got {seconds}")


def check_count(option: str, count: int, least: int) -> None:
    """TypeError or ValueError for what is no count of at least so many."""
    _check_whole(option, count, "a whole number")
    if count < least:
        raise ValueError(f"{option}: expected {least} or more, got {count}")


def _check_whole(option: str, value: object, expected: str) -> None:
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(f"{option}: expected {expected}, got {value!r}")


def check_real(option: str, value: object, expected: str) -> None:
    """TypeError for what is no number."""
    if isinstance(value, bool) or not isinstance(value, numbers.Real):
        raise TypeError(f"{option}: expected {expected}, got {value!r}")


def check_uids(allow_uids: Collection[int]) -> frozenset[int]:
    """Users to speak with besides our own and root; TypeError or ValueError if one cannot be."""
    if isinstance(allow_uids, (str, bytes)) or not isinstance(allow_uids, Collection):
        raise TypeError(f"allow_uids: expected a list of user ids, got {allow_uids!r}")
    for uid in allow_uids:
        if isinstance(uid, bool) or not isinstance(uid, int):
            raise TypeError(f"allow_uids: expected user ids as numbers, got {uid!r}")
        if not 0 <= uid <= MAX_UID:
            raise ValueError(f"allow_uids: expected user ids from 0 to {MAX_UID}, got {uid}")
        if is_anybody(uid):
            raise ValueError(
                f"allow_uids: {uid} stands for every user that this user namespace does not know, so it cannot be "
                "allowed; map the user whom you mean into the namespace (/proc/self/uid_map has its map)"
            )
    return frozenset(allow_uids)
