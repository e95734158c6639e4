"""The part of a subscription that is the same in loops and in threads: the operations that do not wait."""

from __future__ import annotations

import functools
import threading
from typing import Literal, NamedTuple, NoReturn, Self

from shmrpc import _core
from shmrpc.basics.checks import check_count
from shmrpc.errors import DecodeError, MessagesLost, WaitTimeout
from shmrpc.host.processes import describe_member
from shmrpc.objects.arguments import check_item_count
from shmrpc.objects.handle import Handle, NotConstructible, closes_on_error
from shmrpc.topics.slow_policy import MAX_MESSAGES, SlowPolicy, encode_policy
from shmrpc.wire.codec import CodecName, exact_codec


class Publisher(NamedTuple):
    """The publisher of a message."""

    #: The id of its process; 0 for one of another container.
    pid: int
    #: A number that no other publisher of this topic has, before or after.
    number: int


def _encode_history(history: int | Literal["oldest"]) -> int | None:
    """Return a history for the core: None for "oldest". Raises TypeError or ValueError for an invalid one."""
    if history == "oldest":
        return None
    return check_count("history ('oldest', or a number of messages)", history, 0, MAX_MESSAGES)


def _is_raise(option: str, value: str, otherwise: str) -> bool:
    """Return True if an option is "raise", False if it is ``otherwise``. Raises ValueError for any other value."""
    if value not in ("raise", otherwise):
        raise ValueError(f"{option}: expected {otherwise!r} or 'raise', got {value!r}")
    return value == "raise"


class SubscriptionBase(NotConstructible, Handle):
    """The part of a subscription that is the same in loops and in threads."""

    _constructor_name = "subscribe"
    _opener_name = "subscribe"
    _native: _core.Subscription
    _slow_policy: SlowPolicy
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
        slow_policy: SlowPolicy,
        history: int | Literal["oldest"],
        on_lag: Literal["count", "raise"],
        on_publisher_lost: Literal["wait", "raise"],
        codec: CodecName,
    ) -> Self:
        """Make a subscriber's handle of a topic that this process has opened, and close the object after an error.

        Raises TypeError and ValueError for invalid options.
        """
        handle = cls._wrap(shared_object)
        values = exact_codec(codec)
        handle._slow_policy = slow_policy
        handle._raises_lag = _is_raise("on_lag", on_lag, "count")
        handle._reported_lost = 0
        handle._lag_lock = threading.RLock()
        handle._deferred = []
        handle._native = _core.Subscription(
            shared_object,
            values.encoder,
            values.decode,
            functools.partial(_message_decode_error, shared_object.name),
            Publisher,
            (
                *encode_policy(slow_policy),
                _encode_history(history),
                _is_raise("on_publisher_lost", on_publisher_lost, "wait"),
            ),
        )
        return handle

    def _describe_role(self) -> str:
        """Return the policy of this subscriber as text for ``repr()``."""
        return f", reads with slow_policy={self._slow_policy!r}"

    def get_nowait(self) -> _core.Message | None:
        """Return the next message; return None if none has arrived.

        Raises SlowConsumer, PublisherGone, MessagesLost and DecodeError as a wait does: see
        :class:`shmrpc.Subscription`.
        """
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

    def get_many_nowait(self, max_items: int = 256) -> list[_core.Message]:
        """Return up to ``max_items`` messages that have arrived; an empty list if none has.

        Raises as :meth:`get_nowait` does, and TypeError or ValueError for an invalid ``max_items``.
        """
        return self._receive_nowait(check_item_count(max_items))

    def _receive_nowait(self, max_items: int) -> list[_core.Message]:
        """Return up to ``max_items`` messages that have arrived. If a signal handler raises meanwhile, put them back.

        The core appends the messages to a list of this function, so that none is lost between the core and the
        ``return``.
        """
        got: list[_core.Message] = []
        try:
            if not (self._deferred and self._take_deferred(got, max_items)):
                self._native.take_into(got, max_items)
                if self._raises_lag:
                    self._raise_if_missed(got)
        except BaseException:
            if got:
                self._native.put_back(got)
            raise
        return got

    def _take_deferred(self, got: list[_core.Message], max_items: int) -> bool:
        """Move up to ``max_items`` deferred messages into ``got``. Return False if another thread has moved all."""
        with self._lag_lock:
            # A signal handler runs only after a call, so none runs between this line and the next.
            got += self._deferred[:max_items]
            del self._deferred[:max_items]
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

        Wait until the descriptor is readable, call :meth:`get_many_nowait` until that returns nothing, then wait again:
        the descriptor stays readable until then. It also becomes readable when a publisher ends or cuts this subscriber
        off, and sometimes without a message. Do not read from the descriptor or close it, and remove it from your loop
        before :meth:`close`. Raises LocalProtocolError if the handle is closed.
        """
        return self._native.fileno(bool(self._deferred))

    @property
    def lost(self) -> int:
        """The number of messages that this subscription has missed since it was opened."""
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
        """Raise WaitTimeout, whose text names the publishers. ``timeout`` is in seconds, and not None here."""
        publishers = sorted({describe_member(pid) for pid in self.publishers})
        why = f"{', '.join(publishers)} {'publish' if len(publishers) > 1 else 'publishes'}, and had nothing new"
        if not publishers:
            why = "it has no publisher; 'shmrpc topic ls' lists the topics that are open"
        raise WaitTimeout(f"topic {self.name!r}: no message came within {timeout:g} s: {why}")


def _message_decode_error(topic: str, error: Exception, number: int | None) -> Exception:
    """Return the DecodeError for a message whose decoding has raised ``error``; ``number``: its ``seq``, if known."""
    which = "a message" if number is None else f"message {number}"
    decode_error = DecodeError(f"topic {topic!r}: {which} cannot be read: {error}")
    decode_error.__cause__ = error
    return decode_error
