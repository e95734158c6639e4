"""Searches source code: ``shmrpc serve examples.code_search.service:code_search``.

It begins with the sources of Python's standard library, and takes in more while it runs.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
from collections.abc import AsyncGenerator, AsyncIterator, Iterator
from typing import Annotated

import msgspec

import shmrpc
from examples.code_search.index import Index, Match, index_library

Text = Annotated[str, msgspec.Meta(min_length=1)]
Limit = Annotated[int, msgspec.Meta(ge=1, le=1000)]


@dataclasses.dataclass(frozen=True)
class Hit:
    """A line that has a text."""

    file: str
    line: int
    text: str


@dataclasses.dataclass(frozen=True)
class Status:
    """Number of files, and the requests with streams that are under way."""

    files: int
    under_way: list[str]


class CodeSearch:
    """The endpoints, and what they share."""

    def __init__(self) -> None:
        self._index = Index()
        self._under_way: list[str] = []

    @contextlib.asynccontextmanager
    async def lifespan(self, _: shmrpc.Service) -> AsyncIterator[None]:
        """Read the library before the first call, in a thread, so that Ctrl-C works meanwhile."""
        self._index = await asyncio.to_thread(index_library)
        yield

    @shmrpc.endpoint
    def search(self, word: Text, limit: Limit = 10) -> list[Match]:
        """Return the files that contain the word, the one with the most occurrences first."""
        shmrpc.current_call().reply_metadata["request-id"] = _request_id()
        return self._index.best(word, limit)

    @shmrpc.endpoint
    async def grep(self, text: Text) -> AsyncGenerator[Hit, None]:
        """Stream every line that has the text, as it is found, for as long as the caller reads."""
        with self._listed():
            for file, lines in list(self._index.files.items()):
                for number, line in enumerate(lines, 1):
                    if text in line:
                        yield Hit(file, number, line)
                await asyncio.sleep(0)  # The other calls have their turn.

    @shmrpc.endpoint
    async def add(self, file: Text, lines: AsyncIterator[str]) -> int:
        """Add a file after all of its lines have come, and return their number."""
        with self._listed():
            self._index.check_is_new(file)  # Before anything is sent for nothing.
            content = [line async for line in lines]
            self._index.add(file, content)
            return len(content)

    @shmrpc.endpoint
    def status(self) -> Status:
        """Return the number of files and the requests under way."""
        return Status(len(self._index.files), list(self._under_way))

    @contextlib.contextmanager
    def _listed(self) -> Iterator[None]:
        request_id = _request_id()
        self._under_way.append(request_id)
        try:
            yield
        finally:  # Also when the caller has gone, or its deadline has passed.
            self._under_way.remove(request_id)


def _request_id() -> str:
    """Return the name that the caller has given to its request."""
    call = shmrpc.current_call()
    return str(call.metadata.get("request-id", f"call {call.id} of process {call.pid}"))


search = CodeSearch()
code_search = shmrpc.Service("code_search", lifespan=search.lifespan)
code_search.include(search)
