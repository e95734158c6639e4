"""The part of a subscription that is the same in loops and in threads: the operations that do not wait."""

from __future__ import annotations

import functools
import threading
from typing import Final, Literal, NamedTuple, NoReturn, Self, TypeAlias

from shmrpc import _core
from shmrpc.basics.checks import check_count
from shmrpc.errors import DecodeError, MessagesLost, WaitTimeout
from shmrpc.host.processes import describe_member
from shmrpc.objects.arguments import check_item_count
from shmrpc.objects.handle import Handle, NotConstructible, closes_on_error
from shmrpc.wire.codec import CodecName, exact_codec

#: The largest number of messages that the core counts.
_MAX_MESSAGES: Final = 1 << 62


class Publisher(NamedTuple):
    """The publisher of a message."""

    #: The id of its process; 0 for one of another container.
    pid: int
    #: A number that no other publisher of this topic has, before or after.
    number: int


class KeepLast(NamedTuple):
    """The policy that :func:`shmrpc.keep_last` returns."""

    most: int

    def __repr__(self) -> str:
        return f"keep_last({self.most})"


class Disconnect(NamedTuple):
    """The policy that :func:`shmrpc.disconnect` returns."""

    lag: int

    def __repr__(self) -> str:
        return f"disconnect({self.lag})"


#: The policy for a slow subscriber.
Slow: TypeAlias = Literal["block", "disconnect"] | KeepLast | Disconnect


def keep_last(count: int) -> KeepLast:
    """Return the policy of a subscriber that slows no publisher.

    It reads the last ``count`` messages, and counts the messages that it has missed.
    """
    return KeepLast(check_count("keep_last: count", count, 1, _MAX_MESSAGES))


def disconnect(lag: int) -> Disconnect:
    """Return the policy of a subscriber that is cut off when it is ``lag`` messages behind.

    A publisher checks that before each message. It keeps no more than ``high`` messages: a subscriber that is so many
    behind is cut off too.
    """
    return Disconnect(check_count("disconnect: lag", lag, 1, _MAX_MESSAGES))


def _encode_policy(slow: Slow) -> tuple[int, int]:
    match slow:
        case "block":
            return 1, 0
        case KeepLast(most):
            return 2, most
        case "disconnect":
            return 3, 0
        case Disconnect(lag):
            return 3, lag
    raise ValueError(f"slow: expected 'block', 'disconnect', keep_last(n) or disconnect(n), got {slow!r}")


def _encode_history(history: int | Literal["oldest"]) -> int | None:
    if history == "oldest":
        return None
    return check_count("history ('oldest', or a number of messages)", history, 0, _MAX_MESSAGES)


def _raises(option: str, value: str, otherwise: str) -> bool:
    if value not in ("raise", otherwise):
        raise ValueError(f"{option}: expected {otherwise!r} or 'raise', got {value!r}")
    return value == "raise"


class SubscriptionBase(NotConstructible, Handle):
    """The part of a subscription that is the same in loops and in threads."""

    _constructor_name = "subscribe"
    _opener_name = "subscribe"
    _native: _core.Subscription
    _slow: Slow
    _raises_lag: bool
    #: The number of missed messages for which MessagesLost was raised.
    _reported_lost: int
    #: Held by a thread, or its signal handlers, while it moves messages to or from ``_deferred``.
    _lag_lock: threading.RLock
    #: Messages that were received by a call that raised MessagesLost: the next call returns them.
    _deferred: list[_core.Message]

    @classmethod
    @closes_on_error
    def _wrap_subscriber(
        cls,
        shared_object: _core.SharedObject,
        slow: Slow,
        history: int | Literal["oldest"],
        on_lag: Literal["count", "raise"],
        on_gone: Literal["wait", "raise"],
        codec: CodecName,
    ) -> Self:
        """Make a reading handle of a topic that this process has opened."""
        handle = cls._wrap(shared_object)
        values = exact_codec(codec)
        handle._slow = slow
        handle._raises_lag = _raises("on_lag", on_lag, "count")
        handle._reported_lost = 0
        handle._lag_lock = threading.RLock()
        handle._deferred = []
        handle._native = _core.Subscription(
            shared_object,
            values.encoder,
            values.decode,
            functools.partial(_undecodable, shared_object.name),
            Publisher,
            (*_encode_policy(slow), _encode_history(history), _raises("on_gone", on_gone, "wait")),
        )
        return handle

    def _describe_role(self) -> str:
        return f", reads with slow={self._slow!r}"

    def get_nowait(self) -> _core.Message | None:
        """Return the next message; None if there is none now."""
        if self._raises_lag:
            got = self._receive_nowait(1)
            return got[0] if got else None
        got = []
        try:  # The same as in _receive_nowait(), but without a call.
            self._native.take_into(got, 1)
        except BaseException:
            if got:
                self._native.put_back(got)
            raise
        return got[0] if got else None

    def get_many_nowait(self, most: int = 256) -> list[_core.Message]:
        """Return up to ``most`` messages that are there now."""
        return self._receive_nowait(check_item_count(most))

    def _receive_nowait(self, most: int) -> list[_core.Message]:
        """Return up to ``most`` messages that are there now. If a signal handler raises meanwhile, put them back.

        The core appends the messages to a list that exists before: so no step between the core and the ``return`` can
        lose them.
        """
        got: list[_core.Message] = []
        try:
            if not (self._deferred and self._take_deferred(got, most)):
                self._native.take_into(got, most)
                if self._raises_lag:
                    self._raise_if_missed(got)
        except BaseException:
            if got:
                self._native.put_back(got)
            raise
        return got

    def _take_deferred(self, got: list[_core.Message], most: int) -> bool:
        """Move up to ``most`` deferred messages into ``got``. Return False if another thread has moved them."""
        with self._lag_lock:
            # A signal handler runs only after a call: so none runs between this line and the next.
            got += self._deferred[:most]
            del self._deferred[:most]
        return bool(got)

    def _raise_if_missed(self, got: list[_core.Message]) -> None:
        """Raise MessagesLost if more messages were missed since the last time, and defer ``got`` to the next call."""
        with self._lag_lock:
            missed = self._native.lost - self._reported_lost
            if not missed:
                return
            self._deferred += got  # No signal handler runs between this line and the next, as in _take_deferred().
            del got[:]
            self._reported_lost += missed
        raise MessagesLost(f"topic {self.name!r}: {missed} messages were missed", missed)

    def fileno(self) -> int:
        """Return a descriptor that is readable when there may be a message, for ``select``, Qt, trio or another loop.

        Wait until it is readable, call :meth:`get_many_nowait` until that returns nothing, then wait again: the
        descriptor stays readable until then. It also becomes readable when a publisher ends or cuts this subscriber
        off, and sometimes without a message. Do not read from it or close it, and remove it from your loop before
        :meth:`close`.
        """
        return self._native.fileno(bool(self._deferred))

    @property
    def lost(self) -> int:
        """The number of missed messages."""
        return self._native.lost

    @property
    def publishers(self) -> list[int]:
        """The ids of the processes whose publishers this subscription reads."""
        return self._native.publishers()

    def close(self) -> None:
        """Close the handle. Idempotent. Arrays of messages stay valid as long as the program refers to them."""
        self._native.close()
        super().close()

    def _raise_no_message(self, timeout: float | None) -> NoReturn:
        publishers = sorted({describe_member(pid) for pid in self.publishers})
        why = f"{', '.join(publishers)} {'publish' if len(publishers) > 1 else 'publishes'}, and had nothing new"
        if not publishers:
            why = "it has no publisher; 'shmrpc topic ls' lists the topics that are open"
        raise WaitTimeout(f"topic {self.name!r}: no message came within {timeout:g} s: {why}")


def _undecodable(topic: str, error: Exception, number: int | None) -> Exception:
    """Return the DecodeError for a message that cannot be read."""
    which = "a message" if number is None else f"message {number}"
    decode_error = DecodeError(f"topic {topic!r}: {which} cannot be read: {error}")
    decode_error.__cause__ = error
    return decode_error
