"""Types of topics, subscriptions and their messages, in a loop and in threads."""

from __future__ import annotations

from typing import Literal, assert_type

import shmrpc


async def in_a_loop() -> None:
    async with shmrpc.topic("published", high_watermark=256, low_watermark=128, max_memory="1MiB") as t:
        assert_type(t, shmrpc.Topic)
        await t.publish({"any": "value"}, timeout=1.0)
        await t.publish_many([1, "two"])
        t.publish_nowait(1)
        async with t.reserve((1080, 1920, 3), "f4", timeout=1.0) as array:
            array[:] = 1
        assert_type(t.published, int)
        assert_type(t.subscribers(), list[shmrpc.Subscriber])
        assert_type(t.subscribers()[0].lag, int | None)
        assert_type(t.subscribers()[0].policy, Literal["block", "keep_last", "disconnect"])
    async with shmrpc.subscribe("published", slow_policy=shmrpc.KeepLast(1), history=10, on_lag="raise") as s:
        assert_type(s, shmrpc.Subscription)
        assert_type(await s.get(timeout=1.0), shmrpc.Message)
        assert_type(await s.get_many(64), list[shmrpc.Message])
        assert_type(s.get_nowait(), shmrpc.Message | None)
        async for message in s:
            assert_type(message.seq, int)
            assert_type(message.publisher, shmrpc.Publisher)
            assert_type(message.publisher.pid, int)
        assert_type(s.lost, int)
        assert_type(s.fileno(), int)
        assert_type(s.publishers, list[int])
    shmrpc.subscribe("published", slow_policy="drop")  # type: ignore[arg-type]
    shmrpc.subscribe("published", history="all")  # type: ignore[arg-type]
    shmrpc.subscribe("published", on_publisher_lost="count")  # type: ignore[arg-type]


def in_threads() -> None:
    with shmrpc.sync.topic("published") as t:
        assert_type(t, shmrpc.sync.Topic)
        t.publish(1, timeout=1.0)
        t.publish_many(range(3))
        with t.reserve(1000) as array:
            array[:] = 1
        assert_type(t.subscribers(), list[shmrpc.Subscriber])
    with shmrpc.sync.subscribe(
        "published", slow_policy=shmrpc.Disconnect(5), history="oldest", on_publisher_lost="raise"
    ) as s:
        assert_type(s, shmrpc.sync.Subscription)
        assert_type(s.get(timeout=1.0), shmrpc.Message)
        assert_type(s.get_many(64, timeout=1), list[shmrpc.Message])
        for message in s:
            assert_type(message, shmrpc.Message)
