"""Metadata that a handler sets: values that cannot be metadata are an error of the handler."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from typing import Any, Final

import pytest

import shmrpc
from tests.helpers.server_process import PATIENCE

service = shmrpc.Service("tested.told")

#: Key and value that cannot be metadata, and the error's text.
WRONG: Final[dict[str, tuple[Any, Any, str]]] = {
    "a number": ("n", 5, "expected str to str or bytes, got 'n': 5"),
    "a key that is no text": (5, "n", "expected str to str or bytes, got 5: 'n'"),
    "text that is no UTF-8": ("n", "\ud800", "'utf-8' codec can't encode character"),
}


def _set(which: str) -> None:
    key, value, _ = WRONG[which]
    shmrpc.current_call().reply_metadata.update({"fine": "yes", key: value})


@service.endpoint
def plain(which: str) -> int:
    _set(which)
    return 1


@service.endpoint
async def later(which: str) -> int:
    await asyncio.sleep(0)
    _set(which)
    return 1


@service.endpoint
async def early(which: str) -> AsyncIterator[int]:
    _set(which)
    yield 1


@service.endpoint
async def late(which: str) -> AsyncIterator[int]:
    yield 1
    _set(which)


@service.endpoint
async def fails(which: str) -> int:
    _set(which)
    raise LookupError("its own")


async def _ask(client: shmrpc.Client, endpoint: str, which: str) -> None:
    answer = client.with_options(reply_metadata={}).call(endpoint, which)
    if endpoint in ("early", "late"):
        async for _ in answer:
            pass
    else:
        await answer


@pytest.mark.parametrize("which", WRONG)
@pytest.mark.parametrize("endpoint", ["plain", "later", "early", "late"])
async def test_metadata_that_is_none_is_the_handlers_error(
    endpoint: str, which: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with shmrpc.serve(service), shmrpc.connect(service.name, timeout=PATIENCE) as client:
        with caplog.at_level(logging.ERROR, "shmrpc.server"), pytest.raises(shmrpc.EncodeError) as raised:
            await _ask(client, endpoint, which)
        assert str(raised.value).startswith(f"{endpoint}(): reply_metadata: {WRONG[which][2]}")
        assert [r.message for r in caplog.records if f"{endpoint}(): reply_metadata" in r.message]


@pytest.mark.parametrize("which", WRONG)
async def test_an_error_of_the_handler_takes_precedence_over_wrong_metadata(which: str) -> None:
    async with shmrpc.serve(service), shmrpc.connect(service.name, timeout=PATIENCE) as client:
        with pytest.raises(LookupError, match="its own"):
            await _ask(client, "fails", which)
