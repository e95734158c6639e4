"""Subscriptions for event loops."""

from __future__ import annotations

import functools
from typing import Literal, Self

from shmrpc import _core
from shmrpc.basics.checks import public_class
from shmrpc.basics.drivers import AsyncIterableOnly
from shmrpc.basics.renamed import renamed_options
from shmrpc.objects.arguments import check_timeout
from shmrpc.objects.handle import AsyncContextHandle
from shmrpc.objects.turn_queue import TurnQueue
from shmrpc.objects.yield_budget import LoopYielder
from shmrpc.topics.slow_policy import SlowPolicy
from shmrpc.topics.subscription_base import SubscriptionBase
from shmrpc.topics.topic_base import ITEMS, open_topic
from shmrpc.wire.codec import CodecName


@public_class("shmrpc.Subscription")
class Subscription(AsyncIterableOnly, AsyncContextHandle, LoopYielder, SubscriptionBase):
    """A subscription to a topic, in asyncio: see :func:`shmrpc.subscribe`.

    ``async for`` yields each message: its ``value``, and its ``seq`` among those of its ``publisher``. A wait raises
    WaitTimeout if the timeout is over, SlowConsumer if a publisher has cut this subscriber off (and again as long as
    that is the only publisher), PublisherGone and MessagesLost if the options request them, DecodeError for a message
    that cannot be read, WaitStopped after :meth:`stop`, and LocalProtocolError if the handle is closed. After
    PublisherGone and MessagesLost, the next call goes on with the messages that are left. An invalid argument raises
    TypeError or ValueError. A cancelled wait has received nothing.
    """

    async def get(self, timeout: float | None = None) -> _core.Message:
        """Wait for a message, for at most ``timeout`` seconds (None: no limit), and return it."""
        if timeout is not None:
            timeout = check_timeout(timeout)
        if self._budget.is_spent():
            await self._yield_to_loop()
        message = self.get_nowait() if self._raises_lag else self._native.get_now()
        return (await self.get_many(1, timeout))[0] if message is None else message

    async def get_many(self, max_items: int = 256, timeout: float | None = None) -> list[_core.Message]:
        """Wait for a message; return it and those that follow, up to ``max_items`` in all.

        Does not wait for more than one. Returns fewer if they have many bytes: at most a quarter of what publishers
        hold for small ones.
        """
        if timeout is not None:
            timeout = check_timeout(timeout)
        if self._budget.is_spent():
            await self._yield_to_loop()
        messages = self.get_many_nowait(max_items)
        if messages:
            return messages
        self._native.may_wait()
        native, receive = self._native, functools.partial(self._receive, max_items)
        received = await self._wait_queue(ITEMS, TurnQueue).try_in_turn(
            native.glance, native.may_receive, receive, _wake_nothing, timeout
        )
        if received is None:
            self._raise_no_message(timeout)
        return received

    def _receive(self, max_items: int) -> list[_core.Message] | None:
        """Return messages that have arrived; return None if there are none.

        Raises the errors of a wait, also SlowConsumer if none can come.
        """
        if messages := self.get_many_nowait(max_items):
            return messages
        self._native.may_wait()
        return None

    def __aiter__(self) -> Self:
        return self

    __anext__ = get


def _wake_nothing() -> None:
    """Do nothing: each message wakes all subscribers, so that no other waiter misses a wake-up."""


@renamed_options(slow="slow_policy=", on_gone="on_publisher_lost=")
def subscribe(
    name: str,
    *,
    slow_policy: SlowPolicy = "block",
    history: int | Literal["oldest"] = 0,
    on_lag: Literal["count", "raise"] = "count",
    on_publisher_lost: Literal["wait", "raise"] = "wait",
    raw: bool = False,
    codec: CodecName = "msgspec",
) -> Subscription:
    """Open a topic to read it, for asyncio: ``async with shmrpc.subscribe("ticks") as s: async for m in s: ...``.

    ``slow_policy``: the policy for a slow subscriber. With ``"block"``, publishers wait for the subscriber. With
    ``shmrpc.KeepLast(n)``, the subscriber skips messages older than the last n, and counts them in ``lost``. With
    ``"disconnect"`` or ``shmrpc.Disconnect(n)``, publishers cut the subscriber off. ``history``: the number of past
    messages of each publisher to begin with, or ``"oldest"`` for all that are still there. ``on_lag="raise"``: raise
    MessagesLost when messages were missed. ``on_publisher_lost="raise"``: raise PublisherGone when a publisher has
    ended and all of its messages are read; by default, wait for the next publisher. ``raw``, ``codec``: as for
    :func:`shmrpc.topic`.

    The topic needs no publisher. Raises NameConflict if the name is open as something else, SharedMemoryError if there
    is no room, TypeError or ValueError for an invalid argument, and LocalProtocolError, WaitTimeout and
    RemoteProtocolError as :class:`Semaphore` does.
    """
    return Subscription._wrap_subscriber(open_topic(name, raw), slow_policy, history, on_lag, on_publisher_lost, codec)
