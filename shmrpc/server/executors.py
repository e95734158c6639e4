"""Where handlers run that must not hold the loop: threads, and processes of the server's own."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from shmrpc.service.call import Call

if TYPE_CHECKING:
    from shmrpc.server.thread_pool import ThreadPool
    from shmrpc.service.endpoints import Endpoint
from shmrpc.service.service import Service


class Processes(Protocol):
    """Processes of a server."""

    async def run(self, function: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any], /) -> Any:
        """Calls the function in one of them. Raises RuntimeError if that dies."""
        ...

    async def close(self) -> None:
        """Ends them, and what they do."""
        ...


_makers: list[Callable[[], Processes]] = []


def set_process_factory(maker: Callable[[], Processes]) -> None:
    """Says how the processes of a server are made: by a pool, whose workers are servers, so the package says it."""
    _makers[:] = [maker]


class Executors:
    """A server's threads and processes, made when the first handler needs them."""

    def __init__(self) -> None:
        #: By service, and by service and endpoint for those that have threads of their own.
        self._threads: dict[str, ThreadPool] = {}
        self._processes: Processes | None = None
        #: The calls for which threads work at the moment, abandoned ones included.
        self.working: list[Call] = []

    def threads(self, service: Service, endpoint: Endpoint) -> ThreadPool:
        """The threads of an endpoint."""
        # Imported when first needed: few servers have threads.
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
        """Calls the function in another process. Cancelled, it is ended there."""
        if self._processes is None:
            self._processes = _makers[0]()
        return await self._processes.run(function, args, kwargs)

    def close(self) -> None:
        """Lets the threads end. A handler that runs in one cannot be stopped: it runs to its end."""
        for threads in self._threads.values():
            threads.close()
        self._threads.clear()

    async def close_processes(self) -> None:
        """Ends the processes. Again: nothing."""
        processes, self._processes = self._processes, None
        if processes is not None:
            await processes.close()
