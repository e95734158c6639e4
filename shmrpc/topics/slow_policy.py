"""The policies of a subscription for a slow subscriber."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal, TypeAlias

from shmrpc.basics.checks import check_count, public_class

#: The largest number of messages that the core counts.
MAX_MESSAGES: Final = 1 << 62


@public_class("shmrpc.KeepLast")
@dataclass(frozen=True, slots=True, repr=False)
class KeepLast:
    """The policy of a subscriber that never slows a publisher, and may miss messages older than the last ``count``.

    The subscription counts the messages that it has missed. Raises TypeError or ValueError for an invalid ``count``.
    """

    count: int

    def __post_init__(self) -> None:
        object.__setattr__(self, "count", check_count("KeepLast: count", self.count, 1, MAX_MESSAGES))

    def __repr__(self) -> str:
        return f"KeepLast({self.count})"


@public_class("shmrpc.Disconnect")
@dataclass(frozen=True, slots=True, repr=False)
class Disconnect:
    """The policy of a subscriber that publishers cut off when it is ``lag`` messages behind.

    A publisher checks the lag before each message. A subscriber that is ``high_watermark`` messages behind is cut off
    in any case, because a publisher keeps no more. Raises TypeError or ValueError for an invalid ``lag``.
    """

    lag: int

    def __post_init__(self) -> None:
        object.__setattr__(self, "lag", check_count("Disconnect: lag", self.lag, 1, MAX_MESSAGES))

    def __repr__(self) -> str:
        return f"Disconnect({self.lag})"


#: The policy for a slow subscriber.
SlowPolicy: TypeAlias = Literal["block", "disconnect"] | KeepLast | Disconnect


def encode_policy(slow_policy: SlowPolicy) -> tuple[int, int]:
    """Return the number and the limit of a policy for the core. Raises ValueError for an unknown policy."""
    match slow_policy:
        case "block":
            return 1, 0
        case KeepLast(count):
            return 2, count
        case "disconnect":
            return 3, 0
        case Disconnect(lag):
            return 3, lag
    raise ValueError(f"slow_policy: expected 'block', 'disconnect', KeepLast(n) or Disconnect(n), got {slow_policy!r}")
