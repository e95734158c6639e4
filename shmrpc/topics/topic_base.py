"""What a topic is in loops and in threads alike: all that does not wait."""

from __future__ import annotations

import functools
import logging
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Final, Literal, NamedTuple, NoReturn, Self

from shmrpc import _core
from shmrpc.basics.checks import check_bytes, check_count, check_flag, check_many
from shmrpc.basics.signals import is_from_signal_handler
from shmrpc.errors import EncodeError, TopicFull
from shmrpc.host.processes import describe_member, describe_stopped
from shmrpc.objects.handle import Handle, Made, closes_on_error, opened
from shmrpc.values.unsendable import reason
from shmrpc.wire.codec import Codec, CodecName, exact_codec

_log = logging.getLogger("shmrpc")

#: The wait sets of a topic: those that wait for a message, and for room.
ITEMS: Final = 0
ROOM: Final = 1
#: Seconds after which a publisher that waits looks whether it waits for itself.
LONG_WAIT: Final = 1.0
#: Seconds for which a publisher that begins, or ends, waits for those that subscribe, and may be stopped.
ATTACHING: Final = 1.0
_MOST_HIGH: Final = 1 << 24
#: Bytes of a message, as many as need none of ``max_memory``.
_SMALL: Final = 16 << 10


@dataclass(frozen=True, slots=True)
class Subscriber:
    """One that subscribes, as a publisher sees it."""

    #: its process; 0 if that cannot be seen from here
    pid: int
    #: how many messages it is behind; None if it reads nothing of this publisher
    lag: int | None
    #: how many it has missed
    lost: int
    #: what it costs if it is slow: "block", "keep_last" or "disconnect"
    policy: Literal["block", "keep_last", "disconnect"]
    #: the number of keep_last or disconnect
    number: int
    #: bytes of large messages whose arrays it keeps, which are the publisher's ``max_memory``
    kept: int = 0


class Limits(NamedTuple):
    """What a publisher holds for those that are slow."""

    high: int
    low: int
    max_memory: int


def limits_of(name: str, high: int, low: int | None, max_memory: int | str) -> Limits:
    """Returns the limits of a publisher. Raises TypeError and ValueError if there can be none such."""
    high = check_count(f"topic {name!r}: high", high, 1, _MOST_HIGH)
    low = high // 2 if low is None else check_count(f"topic {name!r}: low", low, 0, high - 1)
    memory = check_bytes(f"topic {name!r}: max_memory", max_memory, least=0)
    if 0 < memory <= _SMALL:
        raise ValueError(
            f"topic {name!r}: max_memory: expected {_SMALL + 1} or more, since it is for messages of over {_SMALL}"
            f" bytes, or 0 for a topic without such; got {memory}"
        )
    return Limits(high, low, memory)


def opened_topic(name: str, raw: bool) -> _core.Name:
    """Opens a topic, and makes it if nobody else has."""
    check_flag(f"topic {name!r}: raw", raw)
    return opened(name, "topic", 0, raw=raw)


class TopicBase(Made, Handle):
    """What a handle that publishes is in loops and in threads alike."""

    _made_by = "topic"
    _opened_by = "topic"
    _native: _core.Publisher
    _codec: Codec
    _limits: Limits
    _has_warned = False

    @classmethod
    @closes_on_error
    def _publishing(cls, name: _core.Name, limits: Limits, codec: CodecName) -> Self:
        """Makes a handle of a topic that this process has opened, which publishes in it."""
        handle = cls._of(name)
        values = exact_codec(codec)
        handle._codec = values
        handle._limits = limits
        handle._native = _core.Publisher(
            name, values.encoder, values.encode, functools.partial(_unencodable, name.name), limits
        )
        return handle

    def publish_nowait(self, value: Any) -> None:
        """Publishes a value. Raises TopicFull if there is no room."""
        records = self._native.publish_now(value)
        if records is not None:
            self._is_full(records, "now")

    def publish_many_nowait(self, values: Iterable[Any]) -> None:
        """Publishes values. Raises TopicFull if there is no room for all; those before are published."""
        check_many("publish_many_nowait()", values)
        records = self._native.publish_many_now(values)
        if records is not None:
            self._is_full(records, "now")

    def subscribers(self) -> list[Subscriber]:
        """Lists those that subscribe, and how far behind they are."""
        return [Subscriber(**found) for found in self._native.subscribers()]

    @property
    def published(self) -> int:
        """How many messages this process has published: the ``seq`` of the next one."""
        return self._native.stats()[0]

    def close(self) -> None:
        """Publishes nothing more. What was published is read on by those that subscribe.

        Waits, for up to a second, for subscribers that were there and have not turned to this publisher so far, so that
        they lose nothing of it.
        """
        self._native.close()
        super().close()

    def _look_at_wait(self, records: _core.Records) -> None:
        """Warns, once, of a wait for a subscriber that only the waiting thread reads."""
        if not self._has_warned and records.waits_for_this_thread():
            self._has_warned = True
            _log.warning(
                "topic %r: publish() has waited %g s for a subscription that this thread itself reads, and may wait for"
                " ever: read it in another thread or task, or subscribe with slow=shmrpc.keep_last(n)",
                self.name,
                LONG_WAIT,
            )

    def _role(self) -> str:
        return f", publishes with high={self._limits.high}, max_memory={self._limits.max_memory}"

    def _check_may_reserve(self) -> None:
        self._native.stats()

    def _unencodable(self, error: Exception) -> Exception:
        return _unencodable(self.name, error, None)

    def _is_full(self, records: _core.Records, since: str) -> NoReturn:
        pid, lag, cause = records.slowest()
        records.give_up()  # The exception's traceback may live for long.
        done = f"; {records.done} of {records.count} were published" if records.count > 1 else ""
        if cause == "filling":
            why = "all of its max_memory is reserved, and being filled"
        elif cause == "memory":
            why = f"{describe_member(pid)} has not read, or looks at, what fills its max_memory{describe_stopped(pid)}"
        else:
            messages = "message" if lag == 1 else "messages"
            why = f"{describe_member(pid)} is {lag} {messages} behind{describe_stopped(pid)}"
        raise TopicFull(f"topic {self.name!r} had no room {since}: {why}{done}", pid, lag, records.done)


def _unencodable(topic: str, error: Exception, index: int | None) -> Exception:
    """Returns the error for a value that cannot be published; that of a signal's handler as it is."""
    if is_from_signal_handler(error):
        return error
    which = "the value" if index is None else f"value {index}"
    told = EncodeError(f"topic {topic!r}: {which} cannot be published: {reason(error)}")
    told.__cause__ = error
    return told
