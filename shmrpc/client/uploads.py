"""Streams from a client in a loop to a handler: one task for each."""

from __future__ import annotations

import asyncio
import contextlib
import functools
from collections.abc import Sequence
from types import TracebackType
from typing import Any

from shmrpc import _core
from shmrpc.client.requests import Source, unsendable
from shmrpc.client.session import Session
from shmrpc.service.call import Call
from shmrpc.streams.sending import Outgoing
from shmrpc.values.unsendable import UNSENDABLE
from shmrpc.wire import frames
from shmrpc.wire.codec import Codec
from shmrpc.wire.frames import opcode


class Feeding:
    """Sends what the sources yield for as long as the call lasts. Then they are closed."""

    def __init__(self, session: Session, call: Call, codec: Codec, sources: Sequence[Source]) -> None:
        self._session = session
        self._call = call
        self._codec = codec
        self._sources = sources
        self._tasks: list[asyncio.Task[None]] = []
        self._outgoing: list[Outgoing] = []
        self._error: Exception | None = None

    @property
    def touched(self) -> bool:
        """Whether items of the sources are gone: the call cannot be made again."""
        return any(outgoing.touched for outgoing in self._outgoing)

    def take_error(self) -> Exception | None:
        """What a source raised, or what of it could not be sent; None if all went well, and to whoever asks again.

        The traceback of what is raised has who raises it, and so us: we do not keep it.
        """
        error, self._error = self._error, None
        return error

    async def __aenter__(self) -> Feeding:
        for number, source in self._sources:
            # No credit: the handler gives the first when it begins.
            outgoing = Outgoing(self._session.connection.sender(opcode(frames.ITEM, number), self._call.id, 0))
            task = asyncio.ensure_future(self._feed(number, source, outgoing))
            task.add_done_callback(functools.partial(self._fed, number))
            self._session.outgoing[self._call.id, number] = outgoing, task.cancel
            self._tasks.append(task)
            self._outgoing.append(outgoing)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for task in self._tasks:
            task.cancel()
        for number, _ in self._sources:
            self._session.outgoing.pop((self._call.id, number), None)
        if self._tasks:
            await asyncio.wait(self._tasks)
        self._tasks.clear()  # What a source raised has us in its traceback, and its task has it.

    async def _feed(self, number: int, source: Any, outgoing: Outgoing) -> None:
        await outgoing.pump(source, self._codec.encode, UNSENDABLE)
        self._session.send(opcode(frames.END, number), self._call.id, frames.NIL)

    def _fed(self, number: int, task: asyncio.Task[None]) -> None:
        """A stream has ended, in whatever way: if it failed the handler hears of it, which else would wait for ever."""
        if task.cancelled() or (error := task.exception()) is None:
            return
        if isinstance(error, _core.ChannelError):
            return  # The call itself says why.
        if isinstance(error, Exception):
            self._error = unsendable(self._call.endpoint, error)
        session = self._session
        with contextlib.suppress(_core.ChannelError, _core.Backlog):
            body = frames.encode_failure(error, session.connection.max_frame)
            session.send(opcode(frames.ABORT, number), self._call.id, body)
