"""Types of the claims and items of a queue, in a loop and in threads."""

from __future__ import annotations

from typing import Any, assert_type

import shmrpc


async def in_a_loop() -> None:
    async with shmrpc.queue("queued") as q:
        assert_type(q, shmrpc.Queue)
        assert_type(await q.claim(), shmrpc.Claim)
        async with q.claim(timeout=1.0) as claim:
            assert_type(claim, shmrpc.Claim)
        async for each in q.claims(prefetch=2):
            assert_type(each, shmrpc.Claim)
        assert_type(q.peek(), list[shmrpc.WaitingItem])
        assert_type(q.peek()[0].error, shmrpc.DecodeError | None)
        assert_type(q.stats().held, list[shmrpc.HeldItem])


def in_threads() -> None:
    with shmrpc.sync.queue("queued") as q:
        assert_type(q, shmrpc.sync.Queue)
        assert_type(q.claim(), shmrpc.Claim)
        with q.claim() as claim:
            assert_type(claim, shmrpc.Claim)
        for each in q.claims():
            assert_type(each, shmrpc.Claim)


async def attaches() -> None:
    assert_type(await shmrpc.attach("numbers"), Any)
    assert_type(await shmrpc.attach("numbers", kind=shmrpc.Queue), shmrpc.Queue)
    assert_type(shmrpc.sync.attach("numbers", None, kind=shmrpc.sync.Store), shmrpc.sync.Store)
    assert_type(await shmrpc.queue("numbers"), shmrpc.Queue)
    shmrpc.sync.attach("numbers", kind=int)  # type: ignore[type-var]
