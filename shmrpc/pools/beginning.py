"""The first steps of a worker: it becomes what its pool wants it to be, and then works."""

from __future__ import annotations

import os
import pickle
import resource
import select
import signal
import socket
import sys
from multiprocessing import spawn

import msgspec

from shmrpc import _core
from shmrpc.pools import worker
from shmrpc.pools.starting import Order


def begin() -> None:
    """Works for the pool at the other end of the descriptor that the last argument names."""
    control = socket.socket(fileno=int(sys.argv[-1]))
    control.set_inheritable(False)
    del sys.argv[1:]
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    select.select([control], [], [])
    order = msgspec.msgpack.decode(_core.receive_packet(control.fileno(), 1 << 20)[0], type=Order)
    _core.die_with(order.master)
    if order.cpu is not None:
        os.sched_setaffinity(0, {order.cpu})
    if order.memory is not None:
        resource.setrlimit(resource.RLIMIT_DATA, (order.memory, order.memory))
    worker.main(control, order.number, lambda: spawn.prepare(pickle.loads(order.preparation)))
