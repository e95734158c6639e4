"""The main function of a worker process: it serves its pool, and no other client."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import select
import signal
import socket
from collections.abc import Callable
from typing import Final

import uvloop

from shmrpc import _core
from shmrpc.pools.worker.current_worker import INTERRUPT, SERVICE, set_current_worker
from shmrpc.pools.worker.task_runner import TaskRunner
from shmrpc.server.server import serve
from shmrpc.service.call import internal_services
from shmrpc.service.service import Service
from shmrpc.wire.codec import identity_codec
from shmrpc.wire.control import MAX_MAX_MEMORY
from shmrpc.wire.frames import MAX_MAX_FRAME

#: Maximum number of calls in flight: more than a pool sends.
_MAX_IN_FLIGHT: Final = 100_000


def run_worker(control: socket.socket, number: int, import_program: Callable[[], None]) -> None:
    """Run the tasks of the pool at the other end of ``control``, until that end closes.

    Call this once, in the main thread, for it sets a signal handler and a hook for forks. ``import_program`` makes the
    program's ``__main__`` a module of this process, before the first task.
    """
    set_current_worker(number)
    internal_services.add(SERVICE)
    # The caller of a task gets the errors of its result.
    logging.getLogger("shmrpc.server.failures").addFilter(
        lambda record: not record.getMessage().startswith(f"{SERVICE}.")
    )
    select.select([control], [], [])
    descriptors = _core.receive_packet(control.fileno(), 1)[1]
    if not descriptors:  # The pool has ended.
        return
    progress_file, log_file = descriptors
    with contextlib.closing(progress_file), contextlib.closing(log_file):
        progress, log_socket = (
            _core.WorkerProgress(progress_file.fileno()),
            socket.socket(fileno=os.dup(log_file.fileno())),
        )
    runner = TaskRunner(progress, log_socket, import_program)
    signal.signal(INTERRUPT, runner.on_interrupt)
    os.register_at_fork(after_in_child=runner.on_fork)
    with log_socket, contextlib.suppress(KeyboardInterrupt):
        uvloop.run(_serve(runner.make_service(), control))


async def _serve(service: Service, control: socket.socket) -> None:
    """Serve the pool until its connection ends."""
    changed = asyncio.Event()
    control.setblocking(False)
    server = serve(
        service,
        codec="pickle",
        adopting=True,
        max_in_flight=_MAX_IN_FLIGHT,
        max_per_connection=_MAX_IN_FLIGHT,
        max_waiting=_MAX_IN_FLIGHT,
        max_frame=MAX_MAX_FRAME,
        max_memory=MAX_MAX_MEMORY,
    )
    server.codec = identity_codec()
    server.logs_blocking = False  # Tasks hold the loop, and there is one client.
    # A pool that closes while this worker connects needs no message about that.
    logging.getLogger("shmrpc.server").addFilter(lambda record: bool(server.connections))
    async with server:
        server.watch(changed.set)
        server.adopt(control)
        while server.connections or server.arriving:
            await changed.wait()
            changed.clear()
