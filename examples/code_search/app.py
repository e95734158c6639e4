"""The service on the web: ``uvicorn examples.code_search.app:app``, beside the server of the service.

The app's one client is connected for as long as the app lives, and finds the service again after that has
been restarted. ``CODE_SEARCH_AT`` says where, if that is not this host: ``"shm nats://HOST:4222"`` is the service
of this host if there is one, and else that of any other. Arguments are validated by the service; what a call raises
becomes a status of HTTP here.
"""

from __future__ import annotations

import contextlib
import functools
import os
import uuid
from collections.abc import AsyncIterator
from typing import Annotated, Final

from fastapi import Depends, FastAPI, Header, Query, Request, Response
from fastapi.responses import JSONResponse
from starlette.requests import ClientDisconnect

import shmrpc
from examples.code_search.bodies import JSONLines, lines_of
from examples.code_search.index import Match
from examples.code_search.service import Status, code_search, search

#: The HTTP status of a failed call. The FileExistsError that add() raises arrives as one.
STATUSES: Final[dict[type[Exception], int]] = {
    ClientDisconnect: 400,  # An upload that broke off: the answer is not read.
    FileExistsError: 409,
    shmrpc.InvalidArguments: 422,
    shmrpc.ConnectionLost: 503,
    shmrpc.Overloaded: 503,
    shmrpc.ServiceUnavailable: 503,
    shmrpc.DeadlineExceeded: 504,
}


@contextlib.asynccontextmanager
async def lifespan(app: FastAPI) -> AsyncIterator[None]:
    """Connect before the first request. ``timeout`` is the longest wait for a service that starts or is gone."""
    places = os.environ.get("CODE_SEARCH_AT", "shm").split()
    async with shmrpc.connect(code_search, at=places, timeout=10, reconnect=True) as app.state.client:
        yield


async def client_of(
    request: Request,
    timeout: Annotated[float, Query(gt=0, le=3600, description="Seconds for all of it, a stream included")] = 10,
    x_request_id: Annotated[str | None, Header()] = None,
) -> shmrpc.Client:
    """Return the client with the options of a request: its deadline, and its name for the service."""
    client: shmrpc.Client = request.app.state.client
    return client.with_options(timeout=timeout, metadata={"request-id": x_request_id or uuid.uuid4().hex})


async def failed(status: int, _: Request, error: Exception) -> Response:
    """Return the response to a request whose call has failed."""
    return JSONResponse({"detail": str(error)}, status, headers={"Retry-After": "1"} if status == 503 else None)


Client = Annotated[shmrpc.Client, Depends(client_of)]
app = FastAPI(title="Code search", lifespan=lifespan)
for kind, status in STATUSES.items():
    app.add_exception_handler(kind, functools.partial(failed, status))


@app.get("/search")
async def find_files(client: Client, response: Response, word: str, limit: int = 10) -> list[Match]:
    """Return the files that contain a word. The service returns the request's name as metadata."""
    reply: dict[str, str | bytes] = {}
    matches = await client.with_options(reply_metadata=reply).call(search.search, word, limit)
    response.headers["X-Request-ID"] = str(reply["request-id"])
    return matches


@app.get("/grep")
async def find_lines(client: Client, text: str) -> Response:
    """Stream the lines that contain a text, one JSON object per line, each sent when it is found."""
    return await JSONLines.of(client.call(search.grep, text))


@app.put("/files/{file:path}", status_code=201)
async def add_file(client: Client, file: str, request: Request) -> int:
    """Streams the body to the service, line by line, as it comes; how many lines there were."""
    return await client.call(search.add, file, lines_of(request.stream()))


@app.get("/status")
async def get_status(client: Client) -> Status:
    """Return the service's number of files and its requests under way."""
    return await client.call(search.status)
