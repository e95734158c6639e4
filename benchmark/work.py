"""The work that every server does: a small call, a large one, a stream, and looking at messages."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any


def add(a: int, b: int) -> int:
    """Return the small call."""
    return a + b


def echo(value: Any) -> Any:
    """Return the large call: what comes in goes out."""
    return value


async def count(n: int) -> AsyncIterator[int]:
    """Yield the stream: each item is sent as it is made."""
    for i in range(n):
        yield i


class MessageTally:
    """Messages without answers: how many came, and the sum of their last bytes."""

    def __init__(self) -> None:
        self._counts = [0, 0]

    def take(self, message: bytes | memoryview) -> None:
        """Look at the length and the last byte of a message."""
        self._counts[0] += 1
        self._counts[1] += message[len(message) - 1]

    def taken(self) -> list[int]:
        """Return the number and the sum of the messages since the last call."""
        counts, self._counts = self._counts, [0, 0]
        return counts


def nested() -> dict[str, Any]:
    """Return a nested record of about 31 KB as JSON, as an order book or a page of search results would be."""
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
