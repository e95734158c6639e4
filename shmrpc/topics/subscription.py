"""Subscribing in asyncio."""

from __future__ import annotations

import functools
from typing import Literal, Self

from shmrpc import _core
from shmrpc.basics.checks import public_class
from shmrpc.basics.drivers import AsyncIterableOnly
from shmrpc.objects.arguments import check_timeout
from shmrpc.objects.handle import AsyncClosing
from shmrpc.objects.turn_queue import Turns
from shmrpc.objects.yield_budget import Pausing
from shmrpc.topics.subscription_base import Slow, SubscriptionBase
from shmrpc.topics.topic_base import ITEMS, opened_topic
from shmrpc.wire.codec import CodecName


@public_class("shmrpc.Subscription")
class Subscription(AsyncIterableOnly, AsyncClosing, Pausing, SubscriptionBase):
    """What this process reads of a topic, in asyncio: see :func:`shmrpc.subscribe`.

    ``async for`` yields each message: its ``value``, and its ``seq`` among those of its ``publisher``. What waits
    raises WaitTimeout if the timeout is over, CutOff if a publisher does not wait for this subscriber any more (and
    again as long as that is the only publisher), PublisherGone and MessagesLost if these were asked for, DecodeError
    for a message that cannot be read, and WaitStopped after :meth:`stop`. A wait that is cancelled has taken nothing.
    """

    async def get(self, timeout: float | None = None) -> _core.Message:
        """Waits for a message, and returns it."""
        if timeout is not None:
            timeout = check_timeout(timeout)
        if self._slice.is_over():
            await self._pause()
        message = self.get_nowait() if self._raises_lag else self._native.get_now()
        return (await self.get_many(1, timeout))[0] if message is None else message

    async def get_many(self, most: int = 256, timeout: float | None = None) -> list[_core.Message]:
        """Waits for a message; returns it and those that follow, up to ``most`` in all.

        Fewer if they are many bytes: a quarter of what publishers hold for small ones is taken at once.
        """
        if timeout is not None:
            timeout = check_timeout(timeout)
        if self._slice.is_over():
            await self._pause()
        messages = self.get_many_nowait(most)
        if messages:
            return messages
        self._native.may_wait()
        native, get = self._native, functools.partial(self._get, most)
        found = await self._line(ITEMS, Turns).take(native.glance, native.may_take, get, _nobody, timeout)
        if found is None:
            self._no_message(timeout)
        return found

    def _get(self, most: int) -> list[_core.Message] | None:
        if messages := self.get_many_nowait(most):
            return messages
        self._native.may_wait()
        return None

    def __aiter__(self) -> Self:
        return self

    __anext__ = get


def _nobody() -> None:
    """All that sleep are woken for a message: nobody is to be told that this task has no use for it."""


def subscribe(
    name: str,
    *,
    slow: Slow = "block",
    history: int | Literal["oldest"] = 0,
    on_lag: Literal["count", "raise"] = "count",
    on_gone: Literal["wait", "raise"] = "wait",
    raw: bool = False,
    codec: CodecName = "msgspec",
) -> Subscription:
    """Opens a topic to read it, for asyncio: ``async with shmrpc.subscribe("ticks") as s: async for m in s: ...``.

    ``slow``: what happens if this is slow: ``"block"``, publishers wait for it; ``shmrpc.keep_last(n)``, it skips what
    is older than the last n, and counts that in ``lost``; ``"disconnect"`` or ``shmrpc.disconnect(n)``, it is cut off.
    ``history``: how many of the last messages of each publisher it begins with, or ``"oldest"`` for all that are there.
    ``on_lag="raise"``: MessagesLost is raised when some were missed. ``on_gone="raise"``: PublisherGone is raised when
    a publisher has ended and all of its messages are read; else the next one is waited for. ``raw``, ``codec``: as for
    :func:`shmrpc.topic`.

    Nobody need have published in the topic. Raises NameInUse if the name is open as something else, SharedMemoryError
    if there is no room.
    """
    return Subscription._reading(opened_topic(name, raw), slow, history, on_lag, on_gone, codec)
