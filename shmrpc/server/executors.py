"""Where handlers run that must not hold the loop: threads, and processes of the server's own."""

from __future__ import annotations

import asyncio
import contextlib
import functools
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Executor, Future
from typing import TYPE_CHECKING, Any

from shmrpc.service.call import Call

if TYPE_CHECKING:
    from shmrpc.server.processes import Processes
    from shmrpc.server.thread_pool import ThreadPool
    from shmrpc.service.service import Endpoint, Service


class Executors:
    """A server's threads and processes, made when the first handler needs them."""

    def __init__(self) -> None:
        #: By service, and by service and endpoint for those that have threads of their own.
        self._threads: dict[str, ThreadPool] = {}
        self._processes: Processes | None = None
        #: The calls that threads work for at the moment, also those of which nobody waits for the end any more.
        self.working: list[Call] = []

    def threads(self, service: Service, endpoint: Endpoint) -> ThreadPool:
        """The threads of an endpoint."""
        # Few servers have some.
        from shmrpc.server.thread_pool import ThreadPool

        name, size = service.name, service.threads
        whose, remedy = f"service {name!r}", f"shmrpc.Service({name!r}, threads=N)"
        if endpoint.threads is not None:
            size, whose = endpoint.threads, f"endpoint {name}.{endpoint.name}()"
            name, remedy = f"{name} {endpoint.name}", "@service.endpoint(run_in='thread', threads=N)"
        if name not in self._threads:
            self._threads[name] = ThreadPool(size, whose, remedy, self.working)
        return self._threads[name]

    async def in_process(self, function: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """Calls the function in another process. Function, arguments and result are pickled."""
        if self._processes is None:
            # Few servers have one, and what a pool of processes imports takes a tenth of all that is imported here.
            from shmrpc.server.processes import Processes

            self._processes = Processes()
        return await self._processes.run(function, args, kwargs)

    def close(self) -> None:
        """Ends the processes. A handler that runs in a thread cannot be stopped: it runs to its end."""
        for threads in self._threads.values():
            threads.close()
        self._threads.clear()
        if self._processes is not None:
            self._processes.close()
            self._processes = None


class Job:
    """Work that an executor does. ``on_end`` is called in the loop when it has ended, in whatever way."""

    def __init__(
        self, executor: Executor, work: Callable[[], Any], on_end: Callable[[Job], None] = lambda job: None
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._on_end = on_end
        self._over = self._loop.create_future()
        self._future = executor.submit(work)
        self._future.add_done_callback(functools.partial(_notify, [self]))

    def _end(self) -> None:
        self._on_end(self)
        if not self._over.done():
            self._over.set_result(None)

    async def ended(self) -> None:
        """Waits until it has ended, or was given up before it began."""
        if not self._future.done():
            over = self._over = self._loop.create_future()
            await over

    async def result(self) -> Any:
        """What the work returns or raises. Work that has not begun is given up if nobody waits for it any more."""
        try:
            await self._over
        except asyncio.CancelledError:
            self._future.cancel()
            raise
        try:
            if self._future.cancelled():  # The executor has ended before its turn came.
                raise asyncio.CancelledError
            # What it raised is raised here: the loop's future would take no StopIteration.
            return self._future.result()
        finally:
            del self  # Its exception has this frame in its traceback.


def _notify(job: list[Job], future: Future[Any]) -> None:
    """Tells the job's loop that it has ended. The future keeps this, but not the job: the two would keep the result."""
    ended = job.pop()
    with contextlib.suppress(RuntimeError):  # The loop is closed: nobody waits.
        ended._loop.call_soon_threadsafe(ended._end)
