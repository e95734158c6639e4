"""A service that takes and returns objects of a store, and opens that store on request."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import shmrpc
import shmrpc.sync
from tests.stores.shared_classes import Player

store_service = shmrpc.Service("stores")
_opened: dict[str, shmrpc.sync.Store] = {}


@store_service.endpoint
def open_store(name: str) -> None:
    _opened[name] = shmrpc.sync.store(name)


@store_service.endpoint
def close_store(name: str) -> None:
    _opened.pop(name).close()


@store_service.endpoint
async def note(item: Any, text: str) -> str:
    """Change a list or a set in place."""
    (item.append if hasattr(item, "append") else item.add)(text)
    return type(item).__name__


@store_service.endpoint(run_in="thread")
def hit(player: Player, by: int) -> int:
    return player.hit(by)


@store_service.endpoint
async def total(values: dict[str, int], more: list[int] = []) -> int:  # noqa: B006
    """Get a plain container where that is declared."""
    assert type(values) is dict and type(more) is list
    return sum(values.values()) + sum(more)


@store_service.endpoint
def item(name: str, key: str) -> Any:
    return _opened[name][key]


@store_service.endpoint
def player(name: str, key: str) -> Player:
    found: Player = _opened[name][key]
    return found


@store_service.endpoint
async def items(name: str) -> AsyncIterator[Any]:
    for each in _opened[name].values():
        yield {"item": [each]}


@store_service.endpoint
async def note_all(given: AsyncIterator[Any], text: str) -> int:
    """Change each list that arrives in a stream."""
    count = 0
    async for each in given:
        each.append(text)
        count += 1
    return count
