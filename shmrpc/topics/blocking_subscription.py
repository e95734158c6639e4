"""Subscribing in threads."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Literal

from shmrpc import _core
from shmrpc.basics.checks import public_class, public_name
from shmrpc.basics.drivers import IterableOnly
from shmrpc.objects.arguments import check_item_count, check_timeout
from shmrpc.objects.handle import Closing
from shmrpc.objects.wait_queue import stopped_wait
from shmrpc.topics.subscription_base import Slow, SubscriptionBase
from shmrpc.topics.topic_base import opened_topic
from shmrpc.wire.codec import CodecName


@public_class("shmrpc.sync.Subscription")
class BlockingSubscription(IterableOnly, Closing, SubscriptionBase):
    """A :class:`shmrpc.Subscription` whose methods block the thread that calls them.

    Any number of threads may use it: each message goes to one of them.
    """

    def get(self, timeout: float | None = None) -> _core.Message:
        """Waits for a message, and returns it."""
        if timeout is not None:
            timeout = check_timeout(timeout)
        return self._got(1, timeout)[0]

    def get_many(self, most: int = 256, timeout: float | None = None) -> list[_core.Message]:
        """Waits for a message; returns it and those that follow, up to ``most`` in all.

        Fewer if they are many bytes: a quarter of what publishers hold for small ones is taken at once.
        """
        if timeout is not None:
            timeout = check_timeout(timeout)
        return self._got(check_item_count(most), timeout)

    def _got(self, most: int, timeout: float | None) -> list[_core.Message]:
        """Take messages. If a signal handler raises before they have left this function, put them back.

        The core appends them to a list that is here already: between that and the end there is nothing that could
        lose them.
        """
        got: list[_core.Message] = []
        try:
            if not (self._kept and self._take_kept(got, most)):
                if not self._native.take_into(got, most):
                    self._fill(got, most, timeout)
                if self._raises_lag:
                    self._tell_missed(got)
        except BaseException:
            if got:
                self._native.put_back(got)
            raise
        return got

    def _fill(self, got: list[_core.Message], most: int, timeout: float | None) -> None:
        """Wait until messages are in ``got``."""
        end = None if timeout is None else time.monotonic() + timeout
        while not got:
            waited = self._native.wait_into(got, most, None if end is None else max(0.0, end - time.monotonic()))
            if waited is None:
                raise stopped_wait(self._name)
            if not waited:
                self._no_message(timeout)

    def __iter__(self) -> Iterator[_core.Message]:
        while True:
            yield self.get()


@public_name("subscribe")
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
