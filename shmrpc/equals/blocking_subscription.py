"""Subscribing in threads."""

from __future__ import annotations

from collections.abc import Iterator
from types import TracebackType
from typing import Literal, Self

from shmrpc import _core
from shmrpc.basics.checks import called
from shmrpc.basics.drivers import ItemsForThreads
from shmrpc.equals.handle import bounded
from shmrpc.equals.line import stopped_wait
from shmrpc.equals.queue_base import at_least_one
from shmrpc.equals.subscription_base import Slow, SubscriptionBase
from shmrpc.equals.topic_base import opened_topic
from shmrpc.wire.codec import CodecName


class BlockingSubscription(ItemsForThreads, SubscriptionBase):
    """A :class:`shmrpc.Subscription` whose methods block the thread that calls them.

    Any number of threads may use it: each message goes to one of them.
    """

    def get(self, timeout: float | None = None) -> _core.Message:
        """Waits for a message, and returns it."""
        if timeout is not None:
            timeout = bounded(timeout)
        message = self.get_nowait() if self._raises_lag else self._native.get_now()  # Twice as fast.
        return self._wait_many(1, timeout)[0] if message is None else message

    def get_many(self, most: int = 256, timeout: float | None = None) -> list[_core.Message]:
        """Waits for a message; returns it and those that follow, up to ``most`` in all.

        Fewer if they are many bytes: a quarter of what publishers hold for small ones is taken at once.
        """
        if timeout is not None:
            timeout = bounded(timeout)
        return self.get_many_nowait(most) or self._wait_many(at_least_one(most), timeout)

    def _wait_many(self, most: int, timeout: float | None) -> list[_core.Message]:
        waited, messages = self._native.wait_get(most, timeout)
        if waited is None:
            raise stopped_wait(self._name)
        if not waited:
            self._no_message(timeout)
        return self._checked(messages)

    def __iter__(self) -> Iterator[_core.Message]:
        while True:
            yield self.get()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.close()


@called("subscribe")
def blocking_subscribe(
    name: str,
    *,
    slow: Slow = "block",
    history: int | Literal["oldest"] = 0,
    on_lag: Literal["count", "raise"] = "count",
    on_gone: Literal["wait", "raise"] = "wait",
    raw: bool = False,
    codec: CodecName = "msgspec",
) -> BlockingSubscription:
    """Reads what others publish in a topic as :func:`shmrpc.subscribe` does, in threads."""
    return BlockingSubscription._reading(opened_topic(name, raw), slow, history, on_lag, on_gone, codec)
