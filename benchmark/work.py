"""The service under test: a small call, a large one, and a stream."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import shmrpc

service = shmrpc.Service("benchmark")


@service.endpoint
def add(a: int, b: int) -> int:
    """The small call."""
    return a + b


@service.endpoint
def echo(value: Any) -> Any:
    """The large call: what comes in goes out."""
    return value


@service.endpoint
async def count(n: int) -> AsyncIterator[int]:
    """The stream: each item is sent as it is made."""
    for i in range(n):
        yield i


def nested() -> dict[str, Any]:
    """A nested record of about 31 KB as JSON, as an order book or a page of search results would be."""
    return {
        "id": "5f2b7c1e-request",
        "total": 107,
        "items": [
            {
                "id": number,
                "name": f"item-{number:05d}",
                "price": number * 1.25,
                "tags": ["alpha", "beta", f"tag-{number % 7}"],
                "active": number % 3 == 0,
                "owner": {
                    "name": f"user-{number % 11}",
                    "email": f"user{number % 11}@example.com",
                    "score": number / 7,
                },
                "history": [number, number + 1, number + 2, number * 1000, None],
                "note": "a short line of text that a person may have written",
            }
            for number in range(107)
        ],
    }
