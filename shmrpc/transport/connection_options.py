"""Options of connections, with defaults and bounds."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Collection
from typing import Final

from shmrpc.basics.checks import check_flag, check_real, check_seconds, check_whole
from shmrpc.host.credentials import NO_OTHER_USERS, is_overflow_uid
from shmrpc.wire.codec import CodecName, get_codec
from shmrpc.wire.control import DEFAULT_MAX_MEMORY, MAX_MAX_MEMORY, MIN_MAX_MEMORY
from shmrpc.wire.frames import DEFAULT_MAX_FRAME, MAX_MAX_FRAME, MIN_MAX_FRAME

#: Longest spin of one wait, in microseconds. Most waits spin for less: the cost of a sleep decides (core/src/wait).
DEFAULT_SPIN: Final = 1000.0
#: Upper bound of ``spin``, in microseconds.
MAX_SPIN: Final = 1_000_000.0
#: Seconds that connect() waits for a server.
DEFAULT_CONNECT_TIMEOUT: Final = 5.0
#: Largest user id of the kernel.
MAX_UID: Final = 0xFFFF_FFFE


@dataclasses.dataclass(frozen=True)
class ConnectionOptions:
    """Options of one side of a connection. Raises ValueError or TypeError for an invalid one."""

    #: Largest body that this side receives or sends, in bytes.
    max_frame: int = DEFAULT_MAX_FRAME
    #: Shared memory that either side may allocate, in bytes.
    max_memory: int = DEFAULT_MAX_MEMORY
    #: Longest spin of a wait, in microseconds.
    spin: float = DEFAULT_SPIN
    #: Codec of values. Only ``"pickle"`` must be the same on both sides.
    codec: CodecName = "msgspec"
    #: Users that may connect, besides this process's own and root.
    allow_uids: Collection[int] = NO_OTHER_USERS

    def __post_init__(self) -> None:
        object.__setattr__(self, "max_memory", check_whole("max_memory", self.max_memory, "a number of bytes"))
        if not MIN_MAX_MEMORY <= self.max_memory <= MAX_MAX_MEMORY:
            raise ValueError(f"max_memory: expected {MIN_MAX_MEMORY} to {MAX_MAX_MEMORY} bytes, got {self.max_memory}")
        object.__setattr__(self, "max_frame", check_whole("max_frame", self.max_frame, "a number of bytes"))
        if not MIN_MAX_FRAME <= self.max_frame <= MAX_MAX_FRAME:
            raise ValueError(f"max_frame: expected {MIN_MAX_FRAME} to {MAX_MAX_FRAME} bytes, got {self.max_frame}")
        check_real("spin", self.spin, "a number of microseconds")
        if not 0 <= self.spin <= MAX_SPIN:
            raise ValueError(f"spin: expected 0 to {MAX_SPIN:g} microseconds, got {self.spin}")
        object.__setattr__(self, "allow_uids", check_uids(self.allow_uids))
        get_codec(self.codec)

    def reject(self, why: str, names: Collection[str]) -> None:
        """Raise ValueError with the reason ``why`` if one of these options differs from its default."""
        for field in dataclasses.fields(self):
            if field.name in names and getattr(self, field.name) != field.default:
                raise ValueError(f"{field.name}: {why}")

    @property
    def users(self) -> frozenset[int]:
        """Users that may connect, besides this process's own and root."""
        return frozenset(self.allow_uids)

    @property
    def pickle(self) -> bool:
        """True if this side sends and reads pickles."""
        return self.codec == "pickle"


def connection_options(
    max_frame: int, max_memory: int, spin: float, codec: CodecName, allow_uids: Collection[int]
) -> ConnectionOptions:
    """Return the options of a connection, cached if there are no ``allow_uids``.

    Raises as :class:`ConnectionOptions` does.
    """
    if type(allow_uids) is tuple and not allow_uids:
        try:
            return _cached_options(max_frame, max_memory, spin, codec)
        except TypeError:  # An option cannot be hashed; the check below reports it.
            pass
    return ConnectionOptions(max_frame, max_memory, spin, codec, allow_uids)


@functools.lru_cache(maxsize=64, typed=True)
def _cached_options(max_frame: int, max_memory: int, spin: float, codec: CodecName) -> ConnectionOptions:
    """Return the options, which are made once for each combination.

    Raises as :class:`ConnectionOptions` does, and TypeError for an option that cannot be hashed.
    """
    return ConnectionOptions(max_frame, max_memory, spin, codec)


def check_connecting(timeout: float, reconnect: bool) -> None:
    """Raise ValueError or TypeError unless ``timeout`` is a number of seconds, 0 to inf, and ``reconnect`` a bool."""
    check_seconds("timeout", timeout)
    check_flag("reconnect", reconnect)


def check_uids(allow_uids: Collection[int]) -> frozenset[int]:
    """Return the users of ``allow_uids``.

    Raises TypeError unless it is a collection of int, ValueError for an id out of range or the overflow id of this user
    namespace.
    """
    if isinstance(allow_uids, (str, bytes)) or not isinstance(allow_uids, Collection):
        raise TypeError(f"allow_uids: expected a list of user ids, got {allow_uids!r}")
    for uid in allow_uids:
        if isinstance(uid, bool) or not isinstance(uid, int):
            raise TypeError(f"allow_uids: expected user ids as numbers, got {uid!r}")
        if not 0 <= uid <= MAX_UID:
            raise ValueError(f"allow_uids: expected user ids from 0 to {MAX_UID}, got {uid}")
        if is_overflow_uid(uid):
            raise ValueError(
                f"allow_uids: {uid} stands for every user that this user namespace does not know: map the intended "
                "user into the namespace, see /proc/self/uid_map"
            )
    return frozenset(allow_uids)


def explain_pickle_mismatch(client_pickles: bool) -> str:
    """Return the reason for refusing a client, of which only one side has the codec of pickles.

    ``client_pickles``: True if that side is the client.
    """
    sides = ("the client", "this server") if client_pickles else ("this server", "the client")
    return f"codec='pickle' is for both sides: {sides[0]} has it, and {sides[1]} has not"
