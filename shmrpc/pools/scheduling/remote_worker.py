"""A worker as its pool sees it: a process, the connection to it, and the chunks and coroutines that it has."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import fcntl
import math
import os
import re
import socket
import time
from collections import deque
from collections.abc import AsyncGenerator, Callable
from typing import Any, Final

from shmrpc import _core
from shmrpc.client.aio.client import Client
from shmrpc.client.aio.reconnector import LoopReconnector
from shmrpc.client.common.call_errors import decode_error
from shmrpc.client.common.call_options import Options
from shmrpc.errors import ConnectionLost, EncodeError, ShmrpcError
from shmrpc.pools.processes.spawner import WorkerProcess
from shmrpc.pools.scheduling.chunks import LONG, Chunk
from shmrpc.pools.transfer import log_forwarding as logs
from shmrpc.pools.transfer.functions import Function, Reference
from shmrpc.pools.transfer.remote_failure import Failed, of_task, read, read_all
from shmrpc.pools.transfer.shared_values import SharedValues
from shmrpc.pools.worker.task_runner import INTERRUPT, SERVICE
from shmrpc.transport.connection import Connection
from shmrpc.transport.connection_options import ConnectionOptions
from shmrpc.transport.shm import loop_client as shm_client
from shmrpc.values.pickling import LazyPickle
from shmrpc.wire.codec import identity_codec
from shmrpc.wire.control import MAX_MAX_MEMORY
from shmrpc.wire.frames import MAX_MAX_FRAME

#: A task may be as large as there is room for.
_OPTIONS = ConnectionOptions(codec="pickle", max_frame=MAX_MAX_FRAME, max_memory=MAX_MAX_MEMORY)
#: Seconds between two looks whether a worker has ended whose threads go on.
_LOOK: Final = 0.02
#: What an error says before it comes to the reason.
_BEFORE = re.compile(r"^initialize\(\): an argument cannot be sent as MessagePack: ")


@dataclasses.dataclass(eq=False, slots=True)
class Waiting:
    """A task of the pool's loop that waits for a worker, and can be told that its work was taken back from there."""

    task: asyncio.Task[Any] | None
    #: Its seat, if it is a coroutine.
    seat: int = 0
    #: Whether it waits no more.
    is_over: bool = False
    #: Whether its work was taken back, and how many cancellations it had then.
    is_taken: bool = False
    _cancelling: int = 0

    def end(self) -> None:
        """It waits no more. Nothing of it is kept, since it has the task's result."""
        self.is_over, self.task = True, None

    def take(self) -> None:
        """Its work was taken back: wakes it, by a cancellation that is its own affair."""
        assert self.task is not None
        self.is_taken, self._cancelling = True, self.task.cancelling()
        self.task.cancel()

    def was_taken(self) -> bool:
        """Whether that is the cancellation which was just raised, and there is no other."""
        return self.is_taken and self.task is not None and self.task.uncancel() <= self._cancelling


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
        #: Who waits for the call that is a None there, as long as it can be told that it was taken back.
        self.caller: asyncio.Task[Any] | None = None
        self._taken: Waiting | None = None
        #: The slots whose task is to end within moments, or this worker does.
        self.ending: set[int] = set()
        #: Tasks of async functions that it has.
        self.tasks_in_loop = 0
        #: Those that had not begun when this was last looked at, or are newer; the oldest one first.
        self.coroutines: deque[Waiting] = deque()
        #: Seats that were never used, and those that are free again.
        self._next_seat, self._seats = 0, list[int]()
        #: Those of coroutines that were taken back, while they may be on the way.
        self._left_seats: list[int] = []
        #: It gets no more tasks.
        self.retiring = False
        #: It was stopped, by a signal, when that was last looked at.
        self.stopped = False
        self.gone = False
        #: Whether it had begun something when it was lost.
        self.was_at_work = False
        #: Why its pool has killed it.
        self.killed = ""
        #: The numbers of the functions that it was sent.
        self.known: set[int] = set()
        reconnector = LoopReconnector(SERVICE, self._dial, shm_client.INHERITED_TIMEOUT, reconnect=False)
        # The deadline of a handler that waits for a task is its own affair: when it ends, it cancels the task.
        self._client = Client(reconnector, identity_codec(), Options(timeout=math.inf), {})

    async def _dial(self, timeout: float | None, note: Any) -> Connection:
        self._connection = await shm_client.inherit(self.process.control, SERVICE, _OPTIONS)
        # The end of a chunk wakes us, and no result before it: a wake-up costs more than a short task.
        self._connection.polls_items = True
        return self._connection

    async def connect(self) -> None:
        """Connects. Raises ConnectionLost if it has died."""
        await self._client.__aenter__()
        self.run, self.run_named, self.run_timed = self._client.run, self._client.run_named, self._client.run_timed
        self.run_async, self.ready = self._client.run_async, self._client.ready

    async def prepare(self) -> Any:
        """Has it import the program; the names that it has of that, or what importing has raised."""
        found = await self._client.prepare()
        return read(found, "prepare") if type(found) is LazyPickle else found

    async def initialize(self, initializer: Reference | None, args: tuple[Any, ...], levels: logs.Levels) -> Any:
        """Has it call the pool's initializer; None, or what that has raised. Raises EncodeError for the arguments."""
        try:
            failed = await self._client.initialize(initializer, args, levels)
        except EncodeError as error:
            raise EncodeError(
                f"initargs: {_BEFORE.sub('', str(error))}; locks, queues and the like of multiprocessing go to "
                "children that it starts itself: give workers those of a multiprocessing.Manager()"
            ) from error.__cause__
        return read(failed, "initializer") if type(failed) is LazyPickle else failed

    @property
    def takes_tasks(self) -> bool:
        """Whether it is given tasks: not if it is to end, is about to be killed, or stands still."""
        return not (self.retiring or self.ending or self.stopped)

    async def know(self, function: Function) -> None:
        """Sends it a function that it does not know."""
        if function.number not in self.known:
            await self._client.define(function.number, function.reference)
            self.known.add(function.number)

    def open(self, slot: int, chunk: Chunk) -> None:
        """Opens a slot for a chunk: at once, so that what is taken back of it is its own."""
        self.progress.open(slot, len(chunk.items))
        self.chunks[slot] = chunk
        self.tasks += len(chunk.items)

    def open_call(self, caller: asyncio.Task[Any] | None) -> None:
        """Opens the first slot for a call."""
        self.caller = caller
        self.progress.open(0, 1)
        self.chunks[0] = None
        self.tasks += 1

    def seat(self, task: asyncio.Task[Any]) -> Waiting | None:
        """A seat for a coroutine, for which a task waits; None if there is none."""
        if self._seats:
            seat = self._seats.pop()
        elif self._next_seat < _core.Progress.SEATS:
            seat = self._next_seat
            self._next_seat += 1
        else:
            return None
        self.progress.seat(seat)
        waiting = Waiting(task, seat)
        self.coroutines.append(waiting)
        self.tasks_in_loop += 1
        self.tasks += 1
        return waiting

    def has_begun(self, waiting: Waiting) -> bool:
        """Whether a coroutine was begun; if not, it never will be."""
        if not waiting.is_taken:
            waiting.is_taken = self.progress.claim(waiting.seat)
        return not waiting.is_taken

    def leave_seat(self, waiting: Waiting, *, answered: bool) -> bool:
        """A coroutine has no seat any more; whether this is to be told when all that was sent has been seen."""
        waiting.end()
        self.tasks_in_loop -= 1
        if answered or self.has_begun(waiting):
            self._seats.append(waiting.seat)
            return False
        self._left_seats.append(waiting.seat)
        return len(self._left_seats) == 1

    async def free_seats(self) -> None:
        """Frees the seats of coroutines that were taken back, once nothing on the way has them."""
        while left := len(self._left_seats):
            await self.ready()
            self._seats += self._left_seats[:left]
            del self._left_seats[:left]

    def take_call(self, slot: int) -> None:
        """Takes back the call in a slot, unless it was begun."""
        caller, self.caller = self.caller, None
        if caller is not None and not caller.cancelling() and not self.progress.take_back(slot, 0):
            self._taken = Waiting(caller)
            self._taken.take()

    def call_was_taken(self) -> bool:
        """Whether that is why the call was cancelled."""
        taken, self._taken = self._taken, None
        return taken is not None and taken.was_taken()

    @property
    def has_unbegun(self) -> bool:
        """Whether there is something that it was given and has not begun."""
        self.forget_begun()
        return bool(self.coroutines) or not all(map(self.progress.begun, self.chunks))

    def forget_begun(self) -> None:
        """Forgets the coroutines that have begun; as a rule those before others."""
        coroutines = self.coroutines
        while coroutines and (coroutines[0].is_over or self.progress.is_claimed(coroutines[0].seat)):
            coroutines.popleft()

    def take_coroutines(self) -> None:
        """Takes back those that have not begun."""
        for waiting in self.coroutines:
            if waiting.task is not None and not waiting.task.cancelling() and self.progress.claim(waiting.seat):
                waiting.take()
        self.coroutines.clear()

    async def perform(self, slot: int, chunk: Chunk, shared: SharedValues) -> AsyncGenerator[list[Any], None]:
        """Has it run a chunk; its results, some at a time, and behind the last one the seconds that it took."""
        source = chunk.source
        await self.know(source.function)
        items = chunk.items
        if shared.places:
            items = shared.placed(items) if source.single else list(map(shared.placed, items))
        if len(items) == 1 and (source.function.seconds or 0) > LONG:
            yield await self._perform_one(slot, chunk, items[0])
            return
        name = source.function.name

        def unreadable(error: Exception) -> Failed:
            return Failed.of(of_task(decode_error(name, error), name))

        number, single = source.function.number, source.single
        async for results in self._client._iter_chunks(unreadable, "chunk", slot, number, single, items):
            # Those that were not pickled are there.
            yield read_all(results, name) if LazyPickle in map(type, results) else results

    async def _perform_one(self, slot: int, chunk: Chunk, item: Any) -> list[Any]:
        """Has it run a chunk of one long task by a call, which costs less than a stream."""
        source, sent = chunk.source, time.monotonic()
        args = (item,) if source.single else tuple(item)
        result = await self.run_timed(slot, source.function.number, args)
        if not chunk.limit:  # It was taken back.
            return [0.0]
        if not self.progress.begun(slot):  # It has a result, and has not begun: it lies.
            return []
        seconds = min(self.progress.time(slot) * 1e-9, time.monotonic() - sent)
        return [*read_all([result], source.function.name), seconds]

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

    def kill(self, why: str) -> None:
        """Ends it at once, for a reason."""
        self.killed = self.killed or why
        self.process.kill()

    async def end(self, grace: float, is_patient: Callable[[], bool] = lambda: False) -> None:
        """Closes the connection, upon which it ends; kills it if it has not after ``grace`` seconds.

        As long as ``is_patient`` says so, the threads that its tasks have left there go on, unless it stands still.
        """
        works_on = is_patient() and not self.chunks and await self._works_on(grace)
        await self._client.close()
        while works_on and is_patient() and not (self.process.has_ended() or self.process.is_stopped()):
            await asyncio.sleep(_LOOK)
        if self.process.status() is None:
            await asyncio.to_thread(self.process.wait, grace)
        self.process.close()
        self._logs.close()

    async def _works_on(self, grace: float) -> bool:
        with contextlib.suppress(TimeoutError, ShmrpcError):
            async with asyncio.timeout(grace):
                return bool(await self._client.works_on())
        return False

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
