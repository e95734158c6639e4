"""The part of publishing that is the same in loops and in threads: the operations that do not wait."""

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
from shmrpc.objects.handle import Handle, NotConstructible, closes_on_error, open_object
from shmrpc.values.encode_errors import reason
from shmrpc.wire.codec import Codec, CodecName, exact_codec

_log = logging.getLogger("shmrpc")

#: The wait sets of a topic: for a message, and for room.
ITEMS: Final = 0
ROOM: Final = 1
#: Seconds after which a publisher that waits checks that it does not wait for itself.
WARN_AFTER: Final = 1.0
#: The longest wait, in seconds, of a publisher that opens or closes for subscribers to attach: one may be stopped.
ATTACH_TIMEOUT: Final = 1.0
_MAX_HIGH: Final = 1 << 24
#: The largest message, in bytes, that takes nothing from ``max_memory``.
_SMALL: Final = 16 << 10


@dataclass(frozen=True, slots=True)
class Subscriber:
    """A subscriber, as a publisher sees it."""

    #: The id of its process; 0 for one of another container.
    pid: int
    #: The number of messages it is behind; None if it reads nothing of this publisher.
    lag: int | None
    #: The number of messages it has missed.
    lost: int
    #: The policy for it when it is slow: "block", "keep_last" or "disconnect".
    policy: Literal["block", "keep_last", "disconnect"]
    #: The number given to KeepLast or Disconnect; 0 for "block".
    number: int
    #: Bytes of large messages to whose arrays it still refers. They count in the publisher's ``max_memory``.
    kept: int = 0


class PublisherLimits(NamedTuple):
    """The limits of what a publisher holds for slow subscribers."""

    #: Messages a subscriber may be behind before the publisher waits.
    high_watermark: int
    #: Messages a subscriber may be behind when the publisher goes on.
    low_watermark: int
    #: Bytes of large messages.
    max_memory: int


def check_limits(name: str, high_watermark: int, low_watermark: int | None, max_memory: int | str) -> PublisherLimits:
    """Return the limits of a publisher, with defaults filled in: half of ``high_watermark``, rounded down, for None.

    Raises TypeError and ValueError unless ``high_watermark`` is from 1 to 2^24, ``low_watermark`` less, and
    ``max_memory`` 0 or from over 16 KiB to 16 GiB.
    """
    high_watermark = check_count(f"topic {name!r}: high_watermark", high_watermark, 1, _MAX_HIGH)
    low_watermark = (
        high_watermark // 2
        if low_watermark is None
        else check_count(f"topic {name!r}: low_watermark", low_watermark, 0, high_watermark - 1)
    )
    memory = check_bytes(f"topic {name!r}: max_memory", max_memory, least=0)
    if 0 < memory <= _SMALL:
        raise ValueError(
            f"topic {name!r}: max_memory: expected {_SMALL + 1} or more, for messages of over {_SMALL} bytes, or 0 for"
            f" none; got {memory}"
        )
    return PublisherLimits(high_watermark, low_watermark, memory)


def open_topic(name: str, raw: bool) -> _core.SharedObject:
    """Open a topic, and make it if no process has it open.

    Raises TypeError if ``raw`` is no bool, and the errors of ``open_object``, for example NameConflict.
    """
    check_flag(f"topic {name!r}: raw", raw)
    return open_object(name, "topic", 0, raw=raw)


class TopicBase(NotConstructible, Handle):
    """The part of a publishing handle that is the same in loops and in threads."""

    _constructor_name = "topic"
    _opener_name = "topic"
    _native: _core.Publisher
    _codec: Codec
    _limits: PublisherLimits
    _has_warned = False

    @classmethod
    @closes_on_error
    def _wrap_publisher(cls, shared_object: _core.SharedObject, limits: PublisherLimits, codec: CodecName) -> Self:
        """Make a publisher's handle of a topic that this process has opened, and close the object after an error.

        Raises NameConflict if this process publishes with other limits, and ValueError for an unknown codec.
        """
        handle = cls._wrap(shared_object)
        values = exact_codec(codec)
        handle._codec = values
        handle._limits = limits
        handle._native = _core.Publisher(
            shared_object,
            values.encoder,
            values.encode,
            functools.partial(_value_encode_error, shared_object.name),
            limits,
        )
        return handle

    def publish_nowait(self, value: Any) -> None:
        """Publish a value without a wait.

        Raises TopicFull if there is no room now, EncodeError if the value cannot be encoded, ValueError if there can
        never be room for it, and LocalProtocolError if the handle is closed.
        """
        records = self._native.publish_now(value)
        if records is not None:
            self._raise_full(records, "now")

    def publish_many_nowait(self, values: Iterable[Any]) -> None:
        """Publish values in order, without a wait.

        Raises TopicFull if there is no room for all of them now, after publishing the first ones. Raises the other
        errors of :meth:`publish_nowait` before any value is published, and TypeError for a str or bytes in place of an
        iterable.
        """
        check_many("publish_many_nowait()", values)
        records = self._native.publish_many_now(values)
        if records is not None:
            self._raise_full(records, "now")

    def subscribers(self) -> list[Subscriber]:
        """Return the subscribers, with the number of messages that each is behind.

        Raises LocalProtocolError if the handle is closed.
        """
        return [Subscriber(**found) for found in self._native.subscribers()]

    @property
    def published(self) -> int:
        """The number of messages that this process has published, which is the ``seq`` of the next one.

        Raises LocalProtocolError if the handle is closed.
        """
        return self._native.stats()[0]

    def close(self) -> None:
        """Close the handle. Subscribers go on reading what was published.

        The last publishing handle of the topic in this process blocks up to a second, also in the thread of an event
        loop, for subscribers that have not attached so far, so that they lose none of its messages. Idempotent.
        """
        self._native.close()
        super().close()

    def _warn_of_self_wait(self, records: _core.PendingRecords) -> None:
        """Log a warning, once, if the wait is for a subscription that the waiting thread itself reads."""
        if not self._has_warned and records.waits_for_this_thread():
            self._has_warned = True
            _log.warning(
                "topic %r: publish() has waited %g s for a subscription that this thread reads: read it in another"
                " thread or task, or subscribe with slow_policy=shmrpc.KeepLast(n)",
                self.name,
                WARN_AFTER,
            )

    def _describe_role(self) -> str:
        """Return the limits of this publisher as text for ``repr()``."""
        return f", publishes with high_watermark={self._limits.high_watermark}, max_memory={self._limits.max_memory}"

    def _check_can_reserve(self) -> None:
        """Raise LocalProtocolError if the handle is closed."""
        self._native.stats()

    def _encode_error(self, error: Exception) -> Exception:
        """Return the exception to raise for a value whose encoding has raised ``error``."""
        return _value_encode_error(self.name, error, None)

    def _raise_full(self, records: _core.PendingRecords, since: str) -> NoReturn:
        """Give up ``records``, and raise TopicFull, whose text names the slowest subscriber.

        ``since`` is "now" or the time of the wait.
        """
        pid, lag, cause = records.slowest()
        records.give_up()  # The traceback of the error may live for long, and must not keep the memory.
        published = f"; {records.done} of {records.count} were published" if records.count > 1 else ""
        if cause == "filling":
            why = "all of its max_memory is reserved, and being filled"
        elif cause == "memory":
            why = (
                f"{describe_member(pid)} has not read, or still uses, what fills its max_memory{describe_stopped(pid)}"
            )
        else:
            messages = "message" if lag == 1 else "messages"
            why = f"{describe_member(pid)} is {lag} {messages} behind{describe_stopped(pid)}"
        raise TopicFull(f"topic {self.name!r} had no room {since}: {why}{published}", pid, lag, records.done)


def _value_encode_error(topic: str, error: Exception, index: int | None) -> Exception:
    """Return the EncodeError for a value whose encoding has raised ``error``.

    ``index`` is the value's position in ``publish_many()``. Returns ``error`` itself if a signal handler has raised it.
    """
    if is_from_signal_handler(error):
        return error
    which = "the value" if index is None else f"value {index}"
    encode_error = EncodeError(f"topic {topic!r}: {which} cannot be published: {reason(error)}")
    encode_error.__cause__ = error
    return encode_error
