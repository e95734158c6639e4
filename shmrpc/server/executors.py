"""The threads and processes of a server, for handlers that would block its event loop."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from shmrpc.errors import LocalProtocolError
from shmrpc.service.call import Call
from shmrpc.service.service import Service

if TYPE_CHECKING:
    from shmrpc.server.thread_pool import ThreadPool
    from shmrpc.service.endpoints import Endpoint


class Processes(Protocol):
    """The processes of a server."""

    async def run(self, function: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any], /) -> Any:
        """Call the function in one of the processes; return its result or raise its exception.

        Raises RuntimeError if the process dies or a value cannot be sent, LocalProtocolError after :meth:`close`.
        """
        ...

    async def close(self) -> None:
        """Terminate the processes and their work, and wait for their end. Idempotent."""
        ...


_makers: list[Callable[[], Processes]] = []


def set_process_factory(maker: Callable[[], Processes]) -> None:
    """Set the function that makes a server's processes. The layer of pools, which is above this one, provides it."""
    _makers[:] = [maker]


class Executors:
    """A server's threads and processes, created when the first handler needs them."""

    def __init__(self) -> None:
        #: Thread pools by service, and by service and endpoint for endpoints with threads of their own.
        self._threads: dict[str, ThreadPool] = {}
        self._processes: Processes | None = None
        self._is_closed = False
        #: Calls for which threads are working, including abandoned calls.
        self.working: list[Call] = []

    def threads(self, service: Service, endpoint: Endpoint) -> ThreadPool:
        """Return the thread pool of an endpoint, its own or that of its service. The first call creates the pool.

        Call this in the event loop. Raises LocalProtocolError after :meth:`close`.
        """
        self._check_open()
        # Imported here, because few servers have threads.
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
        """Call the function in another process; return its result or raise its exception.

        A cancellation ends the work there. Raises RuntimeError if the process dies, or if the arguments or the result
        cannot be sent; LocalProtocolError after :meth:`close`.
        """
        self._check_open()
        if self._processes is None:
            self._processes = _makers[0]()
        return await self._processes.run(function, args, kwargs)

    def _check_open(self) -> None:
        """Raise LocalProtocolError after :meth:`close`: a handler that outlives its server must start no more work."""
        if self._is_closed:
            raise LocalProtocolError("the server is closed")

    def close(self) -> None:
        """Shut down the thread pools without waiting: a running handler continues to its end.

        The processes stay: :meth:`close_processes` terminates them. Idempotent.
        """
        self._is_closed = True
        for threads in self._threads.values():
            threads.close()
        self._threads.clear()

    async def close_processes(self) -> None:
        """Terminate the processes, and wait for their end. Call this after :meth:`close`. Idempotent."""
        processes, self._processes = self._processes, None
        if processes is not None:
            await processes.close()
