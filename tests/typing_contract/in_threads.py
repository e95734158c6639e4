"""Types of a client without a loop. Each `type: ignore` is needed: a checker reports an unnecessary one."""

from __future__ import annotations

from collections.abc import AsyncIterator, Generator
from concurrent.futures import Future
from typing import Any, assert_type

import shmrpc
from tests.typing_contract.offered import (
    Point,
    add,
    countdown,
    greet,
    halved,
    letters,
    move,
    names,
    nothing,
    offered,
    points,
    ticks,
    total,
    untold,
)


def accepted() -> None:
    with shmrpc.sync.connect(offered) as client:
        assert_type(client, shmrpc.sync.Client)
        assert_type(client.call(add, 1, 2), int)
        assert_type(client.call(add, a=1), int)
        assert_type(client.call(greet, "Ada", punctuation="?"), str)
        assert_type(client.call(move, Point(1, 2), by=1), Point)
        assert_type(client.call(names), list[str])
        client.call(nothing)
        assert_type(client.call("add", 1, 2), Any)
        client.call(untold, [1])

        assert_type(client.call(ticks, 3), Generator[int, None, None])
        assert_type(list(client.call(points, 3)), list[Point])
        assert_type(list(client.call(countdown, 3)), list[int])
        assert_type(list(client.call(letters, "word")), list[str])

        assert_type(client.call(total, [1, 2, 3], 2), int)
        assert_type(client.call(total, range(3), factor=2), int)
        assert_type(client.call(halved, (1, 2), offset=2), Generator[float, None, None])

        assert_type(list(client.map(add, [1], [2])), list[int])
        assert_type(list(client.map(add, range(3), chunk=2)), list[int])
        assert_type(list(client.map(greet, ["Ada"])), list[str])
        assert_type(list(client.map("add", [1], [2])), list[Any])

        with client.open(halved, offset=2) as conversation:
            assert_type(conversation, shmrpc.sync.StreamCall[int, float])
            conversation.write(1)
            assert_type(conversation.read(), float)
            conversation.write("one")  # type: ignore[arg-type]
        with client.open(total, 2) as upload:
            assert_type(upload.result(), int)

        with client.batch() as batch:
            sum_of = batch.call(add, 1, 2)
            greeting_of = batch.call(greet, "Ada")
        assert_type(sum_of, Future[int])
        assert_type(greeting_of, Future[str])

        client.notify(add, 1, 2)
        client.notify("add", 1, 2)
        assert_type(client.with_options(timeout=1), shmrpc.sync.Client)
        assert_type(client.describe(), shmrpc.Description)
        assert_type(client.add(1, 2), Any)


def refused(client: shmrpc.sync.Client, words: AsyncIterator[str]) -> None:
    client.call(add, "one")  # type: ignore[call-overload]
    client.call(add)  # type: ignore[call-overload]
    client.call(add, 1, 2, 3)  # type: ignore[call-overload]
    client.call(greet, "Ada", "?")  # type: ignore[call-overload]
    client.call(greet, "Ada", ending="?")  # type: ignore[call-arg]
    client.call(move, {"x": 1, "y": 2}, 1)  # type: ignore[call-overload]
    client.call(total, words)  # type: ignore[call-overload]
    client.call(total, ["one"])  # type: ignore[call-overload]
    client.call(3)  # type: ignore[call-overload]
    client.call(ticks, "three")  # type: ignore[call-overload]
    client.call(add, 1, 2).upper()  # type: ignore[attr-defined]
    client.map(add, 1, 2)  # type: ignore[call-overload]
    client.map(add, ["one"])  # type: ignore[arg-type]
    client.map(move, [Point(1, 2)])  # type: ignore[arg-type]
    client.batch().call(add, "one")  # type: ignore[call-overload]
    client.notify(greet, 1)  # type: ignore[call-overload]
