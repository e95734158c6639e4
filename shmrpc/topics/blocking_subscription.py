"""Subscriptions for threads."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

from shmrpc import _core
from shmrpc.basics.checks import public_class, public_name
from shmrpc.basics.drivers import IterableOnly
from shmrpc.basics.renamed import renamed_options
from shmrpc.basics.timeouts import end_of_wait, seconds_left
from shmrpc.objects.arguments import check_item_count, check_timeout
from shmrpc.objects.handle import ContextHandle
from shmrpc.objects.wait_queue import wait_stopped_error
from shmrpc.topics.slow_policy import SlowPolicy
from shmrpc.topics.subscription_base import SubscriptionBase
from shmrpc.topics.topic_base import open_topic
from shmrpc.wire.codec import CodecName


@public_class("shmrpc.sync.Subscription")
class BlockingSubscription(IterableOnly, ContextHandle, SubscriptionBase):
    """A :class:`shmrpc.Subscription` whose methods block the thread that calls them.

    Any number of threads may use it: each message goes to one of them. Waits raise the errors of
    :class:`shmrpc.Subscription`. If a signal handler raises during a wait, no message is lost.
    """

    def get(self, timeout: float | None = None) -> _core.Message:
        """Wait for a message, for at most ``timeout`` seconds (None: no limit), and return it."""
        if timeout is not None:
            timeout = check_timeout(timeout)
        return self._receive(1, timeout)[0]

    def get_many(self, max_items: int = 256, timeout: float | None = None) -> list[_core.Message]:
        """Wait for a message; return it and those that follow, up to ``max_items`` in all.

        Does not wait for more than one. Returns fewer if they have many bytes: at most a quarter of what publishers
        hold for small ones.
        """
        if timeout is not None:
            timeout = check_timeout(timeout)
        return self._receive(check_item_count(max_items), timeout)

    def _receive(self, max_items: int, timeout: float | None) -> list[_core.Message]:
        """Wait for messages and return them. If a signal handler raises meanwhile, put them back.

        The core appends the messages to a list of this function, so that none is lost between the core and the
        ``return``.
        """
        got: list[_core.Message] = []
        try:
            if not (self._deferred and self._take_deferred(got, max_items)):
                if not self._native.take_into(got, max_items):
                    self._wait_for_messages(got, max_items, timeout)
                if self._raises_lag:
                    self._raise_if_missed(got)
        except BaseException:
            if got:
                self._native.put_back(got)
            raise
        return got

    def _wait_for_messages(self, got: list[_core.Message], max_items: int, timeout: float | None) -> None:
        """Block the thread until the core has appended messages to ``got``.

        Raises WaitTimeout, WaitStopped, SlowConsumer, PublisherGone and DecodeError.
        """
        end = end_of_wait(timeout)
        while not got:
            waited = self._native.wait_into(got, max_items, seconds_left(end))
            if waited is None:
                raise wait_stopped_error(self._object)
            if not waited and seconds_left(end) == 0:  # Else another thread was quicker.
                self._raise_no_message(timeout)

    def __iter__(self) -> Iterator[_core.Message]:
        while True:
            yield self.get()


@renamed_options(slow="slow_policy=", on_gone="on_publisher_lost=")
@public_name("subscribe")
def blocking_subscribe(
    name: str,
    *,
    slow_policy: SlowPolicy = "block",
    history: int | Literal["oldest"] = 0,
    on_lag: Literal["count", "raise"] = "count",
    on_publisher_lost: Literal["wait", "raise"] = "wait",
    raw: bool = False,
    codec: CodecName = "msgspec",
) -> BlockingSubscription:
    """Open a topic to read it, as :func:`shmrpc.subscribe` does, for threads. Raises the same errors."""
    return BlockingSubscription._wrap_subscriber(
        open_topic(name, raw), slow_policy, history, on_lag, on_publisher_lost, codec
    )
