"""Metadata: to the handler, and back with a result, a failure, or the items of a stream."""

from __future__ import annotations

import contextlib
import os
from typing import Any, Final

import pytest

from shmrpc.service.call import Metadata
from tests.helpers import stream_service

SERVICE = stream_service.service

#: More items than may be under way, so that the end has not come with the first.
_MANY: Final = 4_000
_EARLY: Final = {"first": "1", "changes": "early"}
_ALL: Final = {"first": "1", "changes": "late", "last": b"2"}


async def test_metadata_travels_with_the_call_and_its_reply(client: Any) -> None:
    reply: Metadata = {}
    marked = client.with_options(metadata={"text": "a", "raw": b"\xff\x00"}, reply_metadata=reply)
    assert await marked.metadata() == {"text": "'a'", "raw": repr(b"\xff\x00")}
    assert reply == {"pid": str(os.getpid()), "raw": b"\x00\xff"}
    more = marked.with_options(metadata={"text": "b", "more": "c"})
    assert await more.metadata() == {"text": "'b'", "raw": repr(b"\xff\x00"), "more": "'c'"}
    assert await client.metadata() == {}


async def test_with_a_failure(client: Any) -> None:
    reply: Metadata = {}
    with pytest.raises(KeyError, match="no"):
        await client.with_options(reply_metadata=reply).metadata_and_failure()
    assert reply == {"why": "because"}


async def test_each_call_through_an_option_adds_to_the_same_dict(client: Any) -> None:
    reply: Metadata = {"mine": "kept"}
    marked = client.with_options(reply_metadata=reply, timeout=60)
    with pytest.raises(KeyError, match="no"):
        await marked.metadata_and_failure()
    assert await marked.add(1, b=2) == 3
    await marked.metadata()
    assert reply == {"mine": "kept", "why": "because", "pid": str(os.getpid()), "raw": b"\x00\xff"}


@pytest.mark.parametrize("fails", [False, True])
async def test_metadata_set_before_the_first_item_arrives_with_it(client: Any, fails: bool) -> None:
    reply: Metadata = {}
    stream = aiter(client.with_options(reply_metadata=reply).metadata_and_items(_MANY, fails=fails))
    assert await anext(stream) == 0
    assert reply == _EARLY
    with pytest.raises(ValueError, match="at the end") if fails else contextlib.nullcontext():
        assert [item async for item in stream] == list(range(1, _MANY))
    assert reply == _ALL


async def test_of_a_stream_without_items(client: Any) -> None:
    reply: Metadata = {}
    assert [item async for item in client.with_options(reply_metadata=reply).metadata_and_items(0)] == []
    assert reply == {"first": "1", "changes": "late"}


async def test_of_a_stream_that_is_read_by_hand(client: Any) -> None:
    async with client.with_options(reply_metadata={}).open("metadata_and_items", _MANY) as call:
        await call.read()
        assert call.reply_metadata == _EARLY
        assert [item async for item in call] == list(range(1, _MANY))
        assert call.reply_metadata == _ALL


async def test_of_a_call_with_a_stream_to_the_server(client: Any) -> None:
    reply: Metadata = {}
    marked = client.with_options(metadata={"scale": "2"}, reply_metadata=reply)
    assert await marked.metadata_and_total(iter(range(10))) == 90
    assert reply == {"items": "10"}


async def test_reply_metadata_must_be_a_dict(client: Any) -> None:
    for wrong in ("text", 5, [("a", "b")]):
        with pytest.raises(TypeError, match="reply_metadata: expected a dict"):
            client.with_options(reply_metadata=wrong)
