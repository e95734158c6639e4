"""A worker as its pool sees it: a process, the connection to it, and the tasks that it has."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import math
import os
import re
import socket
import time
from collections.abc import AsyncGenerator, Callable
from typing import Any, Final

from shmrpc import _core
from shmrpc.client.aio.client import Client
from shmrpc.client.aio.reconnector import LoopReconnector
from shmrpc.client.common.call_errors import decode_error
from shmrpc.client.common.call_options import CallOptions
from shmrpc.errors import ConnectionLost, EncodeError, ShmrpcError
from shmrpc.pools.processes.spawned_process import SpawnedProcess
from shmrpc.pools.scheduling.chunks import LONG_TASK_SECONDS, Chunk
from shmrpc.pools.scheduling.coroutine_seats import CoroutineSeats, PendingCall
from shmrpc.pools.transfer import log_forwarding
from shmrpc.pools.transfer.functions import FunctionReference, TaskFunction
from shmrpc.pools.transfer.remote_failure import RemoteFailure, name_task_in_error, read_result, read_results
from shmrpc.pools.transfer.shared_values import SharedValues
from shmrpc.pools.worker.current_worker import INTERRUPT, SERVICE
from shmrpc.transport.connection import Connection
from shmrpc.transport.connection_options import ConnectionOptions
from shmrpc.transport.shm import loop_client as shm_client
from shmrpc.values.pickling import LazyPickle
from shmrpc.wire.codec import identity_codec
from shmrpc.wire.control import MAX_MAX_MEMORY
from shmrpc.wire.frames import MAX_MAX_FRAME

#: Options without limits on the size of a task.
_OPTIONS = ConnectionOptions(codec="pickle", max_frame=MAX_MAX_FRAME, max_memory=MAX_MAX_MEMORY)
#: Seconds between two checks of a worker whose threads outlive its tasks.
_EXIT_POLL_SECONDS: Final = 0.02
#: Prefix of an error for arguments of the initializer that cannot be sent.
_ENCODE_ERROR_PREFIX = re.compile(r"^initialize\(\): an argument cannot be sent as MessagePack: ")


class RemoteWorker:
    """A worker, from the start of its process to the end.

    Made in the pool's event loop. The constructor raises OSError if memory or sockets cannot be created or sent; the
    caller then still owns the process.
    """

    def __init__(self, number: int, process: SpawnedProcess) -> None:
        self.number, self.process, self.pid = number, process, process.pid
        pool_end, worker_end = log_forwarding.socket_pair()
        try:
            with worker_end:
                self.progress = _share_progress(process, worker_end)
            self._log_receiver = log_forwarding.LogReceiver(pool_end)
        except BaseException:
            pool_end.close()
            raise
        #: Contents of the slots in use: a chunk, or None for a single call.
        self.slots: dict[int, Chunk | None] = {}
        #: Coroutines of async functions.
        self.coroutines = CoroutineSeats(self.progress)
        #: Number of tasks that the worker was given since its start.
        self.task_count = 0
        #: Task that waits for the single call, as long as the call may be taken back.
        self.caller: asyncio.Task[Any] | None = None
        self._preempted_call: PendingCall | None = None
        #: Slots whose task has to end within the grace period; otherwise the worker is killed.
        self.stopping_slots: set[int] = set()
        #: True if the worker gets no more tasks, and ends after its present ones.
        self.is_retiring = False
        #: True if a signal had stopped the worker at the last check.
        self.is_stopped = False
        #: True once the worker has been removed from its pool.
        self.is_gone = False
        #: True if the worker had begun a task when it was removed.
        self.was_at_work = False
        #: Reason for which the pool has killed the worker, as the predicate of a sentence; "" if it has not.
        self.kill_reason = ""
        #: Numbers of the functions that the worker has.
        self.known_functions: set[int] = set()
        reconnector = LoopReconnector(SERVICE, self._dial, shm_client.INHERITED_TIMEOUT, reconnect=False)
        # A task has no deadline of its own: a handler whose deadline passes cancels the task that it waits for.
        self._client = Client(reconnector, identity_codec(), CallOptions(timeout=math.inf), {})

    async def _dial(self, timeout: float | None, note: Any) -> Connection:
        """Return a connection over the socket that the process has inherited. Ignores the reconnector's arguments."""
        self._connection = await shm_client.inherit(self.process.control, SERVICE, _OPTIONS)
        # Only the end of a chunk wakes the pool: waking it costs more than a short task.
        self._connection.polls_items = True
        return self._connection

    async def connect(self) -> None:
        """Connect to the process, and set the methods that run tasks. Raises ConnectionLost if the process has died."""
        await self._client.__aenter__()
        self.run, self.run_named, self.run_timed = self._client.run, self._client.run_named, self._client.run_timed
        self.run_async, self.ping = self._client.run_async, self._client.ping

    async def import_program(self) -> Any:
        """Have the worker import the program; return the names that it defines, or a RemoteFailure.

        Raises ConnectionLost if the worker dies, as do the other calls of the worker.
        """
        found = await self._client.import_program()
        return read_result(found, "import_program") if type(found) is LazyPickle else found

    async def initialize(
        self, initializer: FunctionReference | None, args: tuple[Any, ...], levels: log_forwarding.Levels
    ) -> Any:
        """Have the worker call the pool's initializer; return None, or a RemoteFailure.

        Raises EncodeError if the arguments cannot be sent.
        """
        try:
            failure = await self._client.initialize(initializer, args, levels)
        except EncodeError as error:
            raise EncodeError(
                f"initargs: {_ENCODE_ERROR_PREFIX.sub('', str(error))}; instead of locks and queues of multiprocessing "
                "itself, pass those of a multiprocessing.Manager()"
            ) from error.__cause__
        return read_result(failure, "initializer") if type(failure) is LazyPickle else failure

    @property
    def accepts_tasks(self) -> bool:
        """True unless the worker is retiring, is stopped, or has a task that must end within the grace period."""
        return not (self.is_retiring or self.stopping_slots or self.is_stopped)

    @property
    def is_busy(self) -> bool:
        """True if the worker has tasks."""
        return bool(self.slots or self.coroutines.count)

    async def ensure_function_sent(self, function: TaskFunction) -> None:
        """Send a function to the worker, unless the worker has it. Harmless if two tasks send the function.

        Waits until the worker has loaded the function. Raises ConnectionLost if the worker dies.
        """
        if function.number not in self.known_functions:
            await self._client.define(function.number, function.reference)
            self.known_functions.add(function.number)

    def open_slot(self, slot: int, chunk: Chunk) -> None:
        """Open a slot for a chunk, before the chunk is sent, so that tasks can be taken back from then on."""
        self.progress.open(slot, len(chunk.items))
        self.slots[slot] = chunk
        self.task_count += len(chunk.items)

    def open_call(self, caller: asyncio.Task[Any] | None) -> None:
        """Open the first slot for a single call, before the call is sent. ``caller``: the task that waits for it."""
        self.caller = caller
        self.progress.open(0, 1)
        self.slots[0] = None
        self.task_count += 1

    def preempt_call(self, slot: int) -> None:
        """Take back the call in a slot and wake its caller, unless the call has begun."""
        caller, self.caller = self.caller, None
        if caller is not None and not caller.cancelling() and not self.progress.shorten(slot, 0):
            self._preempted_call = PendingCall(caller)
            self._preempted_call.preempt()

    def was_call_preempted(self) -> bool:
        """Return True if :meth:`preempt_call` is the only cause of the CancelledError that the caller has caught.

        Revokes that cancellation, and forgets the preempted call.
        """
        call, self._preempted_call = self._preempted_call, None
        return call is not None and call.was_preempted()

    def assign_seat(self, task: asyncio.Task[Any]) -> PendingCall | None:
        """Assign a seat to a coroutine for which ``task`` waits; return None if no seat is free."""
        call = self.coroutines.assign(task)
        self.task_count += call is not None
        return call

    async def free_seats(self) -> None:
        """Free the seats of coroutines that were taken back, once nothing sent to the worker refers to them."""
        with contextlib.suppress(ConnectionLost):
            await self.coroutines.free_quarantined(self.ping)

    def has_unbegun(self) -> bool:
        """Return True if the worker has a chunk or call of which no task has begun, or an unbegun coroutine."""
        return self.coroutines.has_unbegun() or not all(map(self.progress.count_begun, self.slots))

    async def run_chunk(self, slot: int, chunk: Chunk, shared: SharedValues) -> AsyncGenerator[list[Any], None]:
        """Have the worker run a chunk; yield batches of results.

        The last batch ends with the duration of the chunk in seconds. The reader of a batch clears the list after use.
        Raises ConnectionLost if the worker dies, and the errors of arguments and results that cannot be sent.
        """
        source = chunk.source
        await self.ensure_function_sent(source.function)
        items = chunk.items
        if shared.refs:
            items = shared.replace_values(items) if source.single else list(map(shared.replace_values, items))
        if len(items) == 1 and (source.function.seconds or 0) > LONG_TASK_SECONDS:
            yield await self._run_long_task(slot, chunk, items[0])
            return
        name = source.function.name

        def unreadable(error: Exception) -> RemoteFailure:
            return RemoteFailure.from_exception(name_task_in_error(decode_error(name, error), name))

        number, single = source.function.number, source.single
        async for results in self._client._iter_chunks(unreadable, "run_chunk", slot, number, single, items):
            # Results that were not pickled are values already.
            if LazyPickle in map(type, results):
                results[:] = read_results(results, name)
            yield results

    async def _run_long_task(self, slot: int, chunk: Chunk, item: Any) -> list[Any]:
        """Run a chunk of one long task by a call, which costs less than a stream; return its result and its seconds.

        Return only the seconds, 0.0, if the task was taken back, and an empty list if the shared memory is corrupt.
        """
        source, sent = chunk.source, time.monotonic()
        args = (item,) if source.single else tuple(item)
        result = await self.run_timed(slot, source.function.number, args)
        if not chunk.limit:  # The task was taken back.
            return [0.0]
        if not self.progress.count_begun(slot):  # A result without a beginning: the shared memory is corrupt.
            return []
        seconds = min(self.progress.last_duration(slot) * 1e-9, time.monotonic() - sent)
        return [*read_results([result], source.function.name), seconds]

    async def forget_function(self, function: int) -> None:
        """Have the worker forget a function. Does nothing if the worker has died or lacks the function."""
        if function in self.known_functions:
            self.known_functions.discard(function)
            with contextlib.suppress(ConnectionLost):
                await self._client.forget(function)

    async def forget_file(self, file: int) -> None:
        """Have the worker forget a file of shared values, by its inode. Does nothing if the worker has died."""
        with contextlib.suppress(ConnectionLost):
            await self._client.forget_file(file)

    def receive_results(self) -> None:
        """Receive the results that have arrived without a wake-up."""
        self._connection.listen()

    def interrupt(self, slot: int) -> bool:
        """Interrupt the task that runs in a slot; return False if none does."""
        if self.progress.stop(slot):
            self.process.send_signal(INTERRUPT)
            return True
        return False

    def kill(self, reason: str) -> None:
        """Kill the process. ``reason``: predicate of a sentence for errors; the first one counts."""
        self.kill_reason = self.kill_reason or reason
        self.process.kill()

    async def shut_down(self, grace: float, is_patient: Callable[[], bool] = lambda: False) -> None:
        """Close the connection, and wait for the process to end; kill it if it lives ``grace`` seconds later.

        As long as ``is_patient`` returns True, threads and children that tasks have left in the process may go on,
        unless the process is stopped. Closes the descriptors of the process at the end.
        """
        may_go_on = is_patient() and not self.slots and await self._has_leftover_work(grace)
        await self._client.close()
        while may_go_on and is_patient() and not (self.process.has_ended() or self.process.is_stopped()):
            await asyncio.sleep(_EXIT_POLL_SECONDS)
        if self.process.status() is None:
            await asyncio.to_thread(self.process.wait, grace)
        self.process.close()
        self._log_receiver.close()

    async def _has_leftover_work(self, grace: float) -> bool:
        """Ask the worker whether tasks have left threads or children; return False after ``grace`` s without answer."""
        with contextlib.suppress(TimeoutError, ShmrpcError):
            async with asyncio.timeout(grace):
                return bool(await self._client.has_leftover_work())
        return False

    async def wait_for_exit(self, seconds: float) -> None:
        """Wait at most ``seconds`` for the exit status of the process, which follows the end of its connection."""
        end = time.monotonic() + seconds
        while self.process.status() is None and time.monotonic() < end:
            await asyncio.sleep(1e-3)


def _share_progress(process: SpawnedProcess, log_socket: socket.socket) -> _core.WorkerProgress:
    """Create the memory that a pool and a worker share, and send it to the worker, with the worker's log socket.

    Return the pool's mapping. The caller closes the log socket. Raises OSError.
    """
    file = os.memfd_create("shmrpc-progress", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    try:
        os.posix_fallocate(file, 0, _core.WorkerProgress.SIZE)
        fcntl.fcntl(file, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL)
        socket.send_fds(process.control, [b"p"], [file, log_socket.fileno()])
        return _core.WorkerProgress(file)
    finally:
        os.close(file)
