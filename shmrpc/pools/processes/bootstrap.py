"""The first steps of a worker process, before it runs tasks."""

from __future__ import annotations

import contextlib
import io
import os
import pickle
import resource
import select
import signal
import socket
import sys
from multiprocessing import spawn
from typing import Final

from shmrpc import _core
from shmrpc.host.standard_descriptors import keep_standard_descriptors
from shmrpc.pools.processes.spawn_messages import SpawnRequest, decode_request
from shmrpc.pools.worker.worker_main import run_worker
from shmrpc.values.pickling import pickle_main_by_value

_MAX_PACKET: Final = 1 << 20


def main() -> None:
    """Run a worker that was started by exec, for the pool at the other end of the descriptor in the first argument."""
    keep_standard_descriptors()
    control = socket.socket(fileno=int(sys.argv[1]))
    control.set_inheritable(False)
    del sys.argv[:2]
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    select.select([control], [], [])
    packet, descriptors, *_ = _core.receive_packet(control.fileno(), _MAX_PACKET)
    if not descriptors:  # The pool has ended.
        return
    master, lifeline = descriptors
    with contextlib.closing(master), contextlib.closing(lifeline):
        _core.die_with(master.fileno(), None, lifeline.fileno())
    become_worker(control, decode_request(packet), has_program=False)


def become_worker(control: socket.socket, request: SpawnRequest, *, has_program: bool) -> None:
    """Apply the settings of a request to this process, and run its tasks until the pool closes the connection.

    ``has_program``: True if this process has imported the program. Raises OSError or ValueError for a setting that the
    system refuses.
    """
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            # Lines arrive whole and at once, also through a pipe; with -u, print() would write a line in two parts.
            stream.reconfigure(line_buffering=True, write_through=False)
    if request.cpu is not None:
        os.sched_setaffinity(0, {request.cpu})
    if request.memory is not None:
        resource.setrlimit(resource.RLIMIT_DATA, (request.memory, request.memory))
    if request.by_value:
        pickle_main_by_value()
    run_worker(
        control, request.number, lambda: None if has_program else spawn.prepare(pickle.loads(request.preparation))
    )
