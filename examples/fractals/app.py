"""The explorer's page, and the connection on which it says what it shows and is sent the tiles.

The page sends the list of the tiles that it shows and has not got. Each has a number that the page made up. What is on
the list is painted, what is no longer on it is cancelled: also in the midst of its painting.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import signal
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Annotated, Final

import msgspec
from fastapi import FastAPI, WebSocket, WebSocketDisconnect
from fastapi.responses import HTMLResponse

import shmrpc
from examples.fractals.painter import Painter
from examples.fractals.sets import Tile

#: Seconds between two reports to a page.
REPORT_EVERY: Final = 0.5
#: Number of attempts to paint a tile again after its worker was killed.
RETRIES: Final = 5
#: WebSocket's words for data that cannot be understood, and for what has gone wrong here; bytes of a reason.
_UNSUPPORTED: Final = 1003
_FAILED: Final = 1011
_LONGEST_REASON: Final = 120


class Show(msgspec.Struct, tag="show", forbid_unknown_fields=True):
    """Tiles that the page shows and has not got, the most important first: the number of each tile, and the tile."""

    tiles: Annotated[list[tuple[Annotated[int, msgspec.Meta(ge=0, lt=2**32)], Tile]], msgspec.Meta(max_length=1000)]


class Kill(msgspec.Struct, tag="kill", forbid_unknown_fields=True):
    """Kill a worker."""


_read = msgspec.json.Decoder(Show | Kill)


@contextlib.asynccontextmanager
async def lifespan(app: FastAPI) -> AsyncIterator[None]:
    """Has a pool for as long as the app lives, with a worker for each CPU."""
    async with shmrpc.pool(retries=RETRIES) as pool:
        app.state.painter = Painter(pool)
        yield


app = FastAPI(title="Fractals", lifespan=lifespan)


@app.get("/", response_class=HTMLResponse)
async def page() -> str:
    """Return the page of the explorer."""
    return Path(__file__).with_name("page.html").read_text()


@app.websocket("/tiles")
async def tiles(socket: WebSocket) -> None:
    """Paints what a page shows, until it is closed."""
    await socket.accept()
    with contextlib.suppress(WebSocketDisconnect):
        async with Viewer(socket, socket.app.state.painter) as viewer:
            while True:
                await viewer.heed(await socket.receive_text())


class Viewer:
    """One page, and the tiles that are painted for it."""

    def __init__(self, socket: WebSocket, painter: Painter) -> None:
        self._socket, self._painter = socket, painter
        self._painting: dict[int, asyncio.Task[None]] = {}
        self._reporting: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Viewer:
        self._reporting = asyncio.create_task(self._report())
        return self

    async def __aexit__(self, *exception: object) -> None:
        tasks = [*self._painting.values(), *([self._reporting] if self._reporting else [])]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def heed(self, text: str) -> None:
        """Carry out a message of the page."""
        try:
            said = _read.decode(text)
        except (msgspec.DecodeError, ValueError) as error:
            reason = f"expected a list of tiles, or a worker to be killed: {error}"
            await self._socket.close(_UNSUPPORTED, reason[:_LONGEST_REASON])
            raise WebSocketDisconnect(_UNSUPPORTED) from None
        if isinstance(said, Kill):
            if workers := self._painter.workers():
                os.kill(random.choice(workers), signal.SIGKILL)
        else:
            self._show(dict(said.tiles))

    def _show(self, wanted: dict[int, Tile]) -> None:
        for number in self._painting.keys() - wanted.keys():
            self._painting.pop(number).cancel()
        for number, tile in wanted.items():
            if number not in self._painting:
                self._painting[number] = asyncio.create_task(self._paint(number, tile))

    async def _paint(self, number: int, tile: Tile) -> None:
        with contextlib.suppress(WebSocketDisconnect, RuntimeError):  # The page has been closed meanwhile.
            try:
                pixels = await self._painter.paint(tile)
            except shmrpc.ShmrpcError as error:
                return await self._socket.close(_FAILED, f"no tile can be painted: {error}"[:_LONGEST_REASON])
            await self._socket.send_bytes(number.to_bytes(4, "little") + pixels.tobytes())
        self._painting.pop(number, None)
        return None

    async def _report(self) -> None:
        with contextlib.suppress(WebSocketDisconnect, RuntimeError):
            while True:
                await self._socket.send_text(msgspec.json.encode(self._painter.report()).decode())
                await asyncio.sleep(REPORT_EVERY)
