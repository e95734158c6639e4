"""What a subscription is in loops and in threads alike: all that does not wait."""

from __future__ import annotations

import functools
import threading
from typing import Final, Literal, NamedTuple, NoReturn, Self, TypeAlias

from shmrpc import _core
from shmrpc.basics.checks import check_count
from shmrpc.errors import DecodeError, MessagesLost, WaitTimeout
from shmrpc.host.processes import describe_member
from shmrpc.objects.arguments import check_item_count
from shmrpc.objects.handle import Handle, Made, closes_on_error
from shmrpc.wire.codec import CodecName, exact_codec

#: More messages than anybody publishes.
_MOST: Final = 1 << 62


class Publisher(NamedTuple):
    """Who has published a message."""

    #: its process; 0 if that cannot be seen from here
    pid: int
    #: one that no other publisher of this topic has, before or after
    number: int


class KeepLast(NamedTuple):
    """What :func:`shmrpc.keep_last` returns."""

    most: int

    def __repr__(self) -> str:
        return f"keep_last({self.most})"


class Disconnect(NamedTuple):
    """What :func:`shmrpc.disconnect` returns."""

    lag: int

    def __repr__(self) -> str:
        return f"disconnect({self.lag})"


#: What a slow subscriber costs.
Slow: TypeAlias = Literal["block", "disconnect"] | KeepLast | Disconnect


def keep_last(count: int) -> KeepLast:
    """A subscriber that slows nobody: it reads the last ``count`` messages, and counts those that it has missed."""
    return KeepLast(check_count("keep_last: count", count, 1, _MOST))


def disconnect(lag: int) -> Disconnect:
    """A subscriber that is cut off once a publisher finds it ``lag`` messages behind, or as many as that keeps.

    A publisher finds that before it publishes the next message. One keeps ``high`` messages for those that are behind.
    """
    return Disconnect(check_count("disconnect: lag", lag, 1, _MOST))


def _policy_of(slow: Slow) -> tuple[int, int]:
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


def _history_of(history: int | Literal["oldest"]) -> int | None:
    if history == "oldest":
        return None
    return check_count("history ('oldest', or a number of messages)", history, 0, _MOST)


def _raises(option: str, value: str, otherwise: str) -> bool:
    if value not in ("raise", otherwise):
        raise ValueError(f"{option}: expected {otherwise!r} or 'raise', got {value!r}")
    return value == "raise"


class SubscriptionBase(Made, Handle):
    """What a subscription is in loops and in threads alike."""

    _made_by = "subscribe"
    _opened_by = "subscribe"
    _native: _core.Subscription
    _slow: Slow
    _raises_lag: bool
    _known_lost: int
    #: Held by a thread that tells what was missed, and keeps what was got instead; or by its signal handlers.
    _telling: threading.RLock
    _kept: list[_core.Message]

    @classmethod
    @closes_on_error
    def _reading(
        cls,
        name: _core.Name,
        slow: Slow,
        history: int | Literal["oldest"],
        on_lag: Literal["count", "raise"],
        on_gone: Literal["wait", "raise"],
        codec: CodecName,
    ) -> Self:
        """Makes a handle of a topic that this process has opened, which reads it."""
        handle = cls._of(name)
        values = exact_codec(codec)
        handle._slow = slow
        handle._raises_lag = _raises("on_lag", on_lag, "count")
        handle._known_lost = 0
        handle._telling = threading.RLock()
        handle._kept = []
        handle._native = _core.Subscription(
            name,
            values.encoder,
            values.decode,
            functools.partial(_undecodable, name.name),
            Publisher,
            (*_policy_of(slow), _history_of(history), _raises("on_gone", on_gone, "wait")),
        )
        return handle

    def _role(self) -> str:
        return f", reads with slow={self._slow!r}"

    def get_nowait(self) -> _core.Message | None:
        """Returns the next message; None if there is none now."""
        if self._raises_lag:
            got = self._taken(1)
            return got[0] if got else None
        got = []
        try:  # As in _taken(), without a call.
            self._native.take_into(got, 1)
        except BaseException:
            if got:
                self._native.put_back(got)
            raise
        return got[0] if got else None

    def get_many_nowait(self, most: int = 256) -> list[_core.Message]:
        """Returns up to ``most`` messages that are there."""
        return self._taken(check_item_count(most))

    def _taken(self, most: int) -> list[_core.Message]:
        """Take up to ``most`` messages that are there. If a signal handler raises meanwhile, put them back.

        The core appends them to a list that is here already: between that and the end there is nothing that could
        lose them.
        """
        got: list[_core.Message] = []
        try:
            if not (self._kept and self._take_kept(got, most)):
                self._native.take_into(got, most)
                if self._raises_lag:
                    self._tell_missed(got)
        except BaseException:
            if got:
                self._native.put_back(got)
            raise
        return got

    def _take_kept(self, got: list[_core.Message], most: int) -> bool:
        """Move up to ``most`` messages that were kept into ``got``; False if another thread has taken them."""
        with self._telling:
            got += self._kept[:most]  # A signal's handler runs after a call alone: not between this and the next line.
            del self._kept[:most]
        return bool(got)

    def _tell_missed(self, got: list[_core.Message]) -> None:
        """Raise MessagesLost if some were missed that were not told so far; ``got`` is kept for the next call then."""
        with self._telling:
            missed = self._native.lost - self._known_lost
            if not missed:
                return
            self._kept += got  # As above.
            del got[:]
            self._known_lost += missed
        raise MessagesLost(f"topic {self.name!r}: {missed} messages were missed", missed)

    def fileno(self) -> int:
        """Returns a descriptor for a loop of your own, of ``select``, Qt or trio: readable when there may be a message.

        Wait until it is readable, call :meth:`get_many_nowait` until it returns nothing, then wait again: until it has
        returned nothing, the descriptor stays readable. So it is if a publisher has ended, or has cut this subscriber
        off; and it may be so in vain. Only wait for it: do not read from it or close it, and let your loop forget it
        before :meth:`close`.
        """
        return self._native.fileno(bool(self._kept))

    @property
    def lost(self) -> int:
        """How many messages were missed."""
        return self._native.lost

    @property
    def publishers(self) -> list[int]:
        """The processes of the publishers that are read."""
        return self._native.publishers()

    def close(self) -> None:
        """Reads nothing more. Arrays of messages may be looked at as long as they are there."""
        self._native.close()
        super().close()

    def _no_message(self, timeout: float | None) -> NoReturn:
        there = sorted({describe_member(pid) for pid in self.publishers})
        who = f"{', '.join(there)} {'publish' if len(there) > 1 else 'publishes'}, and had nothing new"
        if not there:
            who = "nobody publishes in it; 'shmrpc topic ls' lists the topics that are open"
        raise WaitTimeout(f"topic {self.name!r}: no message came within {timeout:g} s: {who}")


def _undecodable(topic: str, error: Exception, number: int | None) -> Exception:
    """Returns the error for a message that cannot be read."""
    which = "a message" if number is None else f"message {number}"
    told = DecodeError(f"topic {topic!r}: {which} cannot be read: {error}")
    told.__cause__ = error
    return told
