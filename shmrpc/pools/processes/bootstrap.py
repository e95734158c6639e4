"""The first steps of a worker: it becomes what its pool wants it to be, and then works."""

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

import msgspec

from shmrpc import _core
from shmrpc.host.standard_descriptors import keep_standard_descriptors
from shmrpc.pools.processes.spawner import Order
from shmrpc.pools.worker import task_runner as worker
from shmrpc.values.pickling import pickle_main_by_value

_LARGEST: Final = 1 << 20


def begin() -> None:
    """Works for the pool at the other end of the descriptor that the first argument names. Without a template."""
    keep_standard_descriptors()
    control = socket.socket(fileno=int(sys.argv[1]))
    control.set_inheritable(False)
    del sys.argv[:2]
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    select.select([control], [], [])
    packet, descriptors, *_ = _core.receive_packet(control.fileno(), _LARGEST)
    if not descriptors:  # The pool has gone meanwhile.
        return
    master, life = descriptors
    with contextlib.closing(master), contextlib.closing(life):
        _core.die_with(master.fileno(), None, life.fileno())
    become(control, msgspec.msgpack.decode(packet, type=Order), prepared=False)


def become(control: socket.socket, order: Order, *, prepared: bool) -> None:
    """Works as ordered. ``prepared``: the program is imported already."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            # What is printed arrives, also through a pipe, and in whole lines, for which print() writes twice with -u.
            stream.reconfigure(line_buffering=True, write_through=False)
    if order.cpu is not None:
        os.sched_setaffinity(0, {order.cpu})
    if order.memory is not None:
        resource.setrlimit(resource.RLIMIT_DATA, (order.memory, order.memory))
    if order.by_value:
        pickle_main_by_value()
    worker.main(control, order.number, lambda: None if prepared else spawn.prepare(pickle.loads(order.preparation)))
