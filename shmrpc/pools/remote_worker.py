"""A worker as its pool sees it: a process, the connection to it, and the chunks that it has."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import math
import os
import socket
import time
from collections.abc import AsyncGenerator
from typing import Any

from shmrpc import _core
from shmrpc.client.client import Client
from shmrpc.client.loop_reconnector import LoopReconnector
from shmrpc.client.options import Options
from shmrpc.errors import ConnectionLost
from shmrpc.pools import logs
from shmrpc.pools.chunks import Chunk
from shmrpc.pools.functions import Function
from shmrpc.pools.shared_values import SharedValues
from shmrpc.pools.starting import WorkerProcess
from shmrpc.pools.worker import INTERRUPT, SERVICE
from shmrpc.transport.base import Connection
from shmrpc.transport.options import ConnectionOptions
from shmrpc.transport.shm import client as shm_client
from shmrpc.wire.codec import get_codec

_OPTIONS = ConnectionOptions(codec="pickle")


class RemoteWorker:
    """A worker, from its start to its end."""

    def __init__(self, number: int, process: WorkerProcess) -> None:
        self.number, self.process, self.pid = number, process, process.pid
        ours, theirs = logs.pair()
        with theirs:
            self.progress = _page(process, theirs)
        self._logs = logs.Logs(ours)
        #: The chunk in each slot; a call of its own is None.
        self.chunks: dict[int, Chunk | None] = {}
        #: Tasks that it was given.
        self.tasks = 0
        #: Tasks of async functions that it has.
        self.tasks_in_loop = 0
        #: It gets no more tasks.
        self.retiring = False
        self.gone = False
        #: The numbers of the functions that it was sent.
        self.known: set[int] = set()
        reconnector = LoopReconnector(SERVICE, self._dial, shm_client.INHERITED_TIMEOUT, reconnect=False)
        # The deadline of a handler that waits for a task is its own affair: when it ends, it cancels the task.
        self._client = Client(reconnector, get_codec("pickle"), Options(timeout=math.inf), {})

    async def _dial(self, timeout: float | None, note: Any) -> Connection:
        self._connection = await shm_client.inherit(self.process.control, SERVICE, _OPTIONS)
        # The end of a chunk wakes us, and no result before it: a wake-up costs more than a short task.
        self._connection.patient = True
        return self._connection

    async def connect(self) -> None:
        """Connects. Raises ConnectionLost if it has died."""
        await self._client.__aenter__()
        self.run, self.run_named, self._chunk = self._client.run, self._client.run_named, self._client.chunk
        self.run_async, self.initialize, self.ready = (
            self._client.run_async,
            self._client.initialize,
            self._client.ready,
        )

    async def know(self, function: Function) -> None:
        """Sends it a function that it does not know."""
        if function.number not in self.known:
            await self._client.define(function.number, function.reference)
            self.known.add(function.number)

    def open(self, slot: int, chunk: Chunk | None) -> None:
        """Opens a slot for a chunk, or for a call: at once, so that what is taken back of it is its own."""
        count = 1 if chunk is None else len(chunk.items)
        self.progress.open(slot, count)
        self.chunks[slot] = chunk
        self.tasks += count

    async def perform(self, slot: int, chunk: Chunk, shared: SharedValues) -> AsyncGenerator[list[Any], None]:
        """Has it run a chunk; its results, some at a time, and behind the last one the seconds that it took."""
        source = chunk.source
        await self.know(source.function)
        items = chunk.items
        if shared.places:
            items = shared.placed(items) if source.single else list(map(shared.placed, items))
        async for results in self._client._runs("chunk", slot, source.function.number, source.single, items):
            yield results

    async def forget(self, function: int) -> None:
        """Has it forget a function, if it knows it."""
        if function in self.known:
            self.known.discard(function)
            with contextlib.suppress(ConnectionLost):
                await self._client.forget(function)

    async def forget_file(self, file: int) -> None:
        """Has it forget a file of shared values."""
        with contextlib.suppress(ConnectionLost):
            await self._client.forget_file(file)

    def look(self) -> None:
        """Takes the results that are there."""
        self._connection.listen()

    def interrupt(self, slot: int) -> bool:
        """Stops the task that a slot is at; False if it is at none."""
        if self.progress.stop(slot):
            self.process.interrupt(INTERRUPT)
            return True
        return False

    async def end(self, grace: float) -> None:
        """Closes the connection, upon which it ends; kills it if it has not after ``grace`` seconds."""
        await self._client.close()
        if self.process.status() is None:
            await asyncio.to_thread(self.process.wait, grace)
        self.process.close()
        self._logs.close()

    async def settled(self, seconds: float) -> None:
        """Waits so long at most until it has ended, which comes a moment after its connection has."""
        end = time.monotonic() + seconds
        while self.process.status() is None and time.monotonic() < end:
            await asyncio.sleep(1e-3)


def _page(process: WorkerProcess, records: socket.socket) -> _core.Progress:
    """The page that is shared with a worker, which is sent it, and the end for what it logs."""
    file = os.memfd_create("shmrpc-progress", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    try:
        os.posix_fallocate(file, 0, _core.Progress.SIZE)
        fcntl.fcntl(file, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL)
        socket.send_fds(process.control, [b"p"], [file, records.fileno()])
        return _core.Progress(file)
    finally:
        os.close(file)
