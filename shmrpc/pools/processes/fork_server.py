"""A process that workers are forked from: it has imported what they need, and has one thread and nothing open.

It is a pool's own, and started by exec. The user's process is never forked.
"""

from __future__ import annotations

import contextlib
import fcntl
import gc
import os
import pickle
import select
import signal
import socket
import sys
from multiprocessing import spawn
from typing import Any, Final

import msgspec

from shmrpc import _core
from shmrpc.host.standard_descriptors import keep_standard_descriptors
from shmrpc.pools.processes import bootstrap as beginning
from shmrpc.pools.processes.spawner import Ended, Fit, NotForked, Order, Setup, Started, Unfit
from shmrpc.pools.worker import task_runner as worker

_LARGEST: Final = 1 << 20


def main() -> None:
    """Forks workers for the pool at the other end of the descriptor that the first argument names.

    The second one is a pipe of the pool's: this process ends with it, also while it imports the program.
    """
    keep_standard_descriptors()
    control, life = socket.socket(fileno=int(sys.argv[1])), int(sys.argv[2])
    del sys.argv[:3]
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    fcntl.fcntl(life, fcntl.F_SETOWN, os.getpid())
    fcntl.fcntl(life, fcntl.F_SETFL, os.O_ASYNC | os.O_NONBLOCK)  # At its end comes SIGIO, which ends this process.
    packet, descriptors, *_ = socket.recv_fds(control, _LARGEST, 1)
    if not packet:  # The pool has gone meanwhile.
        return
    setup = msgspec.msgpack.decode(packet, type=Setup)
    why = _unfit(setup)
    children = signal.signal(
        signal.SIGCHLD, signal.SIG_DFL
    )  # Ignored, it would hide how they end. Workers get it back.
    control.send(msgspec.msgpack.encode(Fit() if why is None else Unfit(why)))
    if why is None:
        _Template(control, life, descriptors[0], setup, children).serve()


def _unfit(setup: Setup) -> str | None:
    """Imports the program, unless workers are to do so; why this is no template then."""
    if (threads := _threads()) > 1:
        return f"it has {threads} threads as it begins"
    if setup.prepares:
        before = _descriptors()
        try:
            with worker.importing_program():
                spawn.prepare(pickle.loads(setup.preparation))
        except BaseException as error:  # The worker will say so, where it is asked for.
            return f"the program cannot be imported: {type(error).__name__}: {error}"
        keep_standard_descriptors()  # Which it may have closed.
        if (threads := _threads()) > 1:
            return f"the program has {threads} threads once it is imported"
        if opened := _descriptors() - before:
            return f"the program has opened {', '.join(sorted(opened))} as it was imported"
    for stream in (sys.stdout, sys.stderr):
        if stream is not None:
            stream.flush()  # Each child would print it again.
    gc.collect()
    gc.freeze()
    return None


def _threads() -> int:
    return len(os.listdir("/proc/self/task"))


def _descriptors() -> set[str]:
    """What is open, by what it is."""
    found = set()
    for number in os.listdir("/proc/self/fd"):
        with contextlib.suppress(FileNotFoundError):
            found.add(f"{number} ({os.readlink(f'/proc/self/fd/{number}')})")
    return {each for each in found if "/proc/" not in each}


class _Template:
    """Forks on request, and tells how the children have ended."""

    def __init__(self, control: socket.socket, life: int, master: int, setup: Setup, children: Any) -> None:
        self._control, self._life, self._master, self._setup = control, life, master, setup
        #: The handling of SIGCHLD that the program, or its parent, has set.
        self._on_children = children
        self._own = os.pidfd_open(os.getpid())
        self._poll = select.poll()
        self._poll.register(control, select.POLLIN)
        self._poll.register(master, select.POLLIN)
        #: By the descriptor that becomes readable at its end.
        self._children: dict[int, int] = {}

    def serve(self) -> None:
        """Serves until the pool ends. In a child: until that has done its work."""
        while True:
            for descriptor, _ in self._poll.poll():
                if descriptor == self._master:
                    return
                if descriptor != self._control.fileno():
                    self._tell_end(descriptor)
                    continue
                packet, descriptors, *_ = socket.recv_fds(self._control, _LARGEST, 1)
                if not packet:
                    return
                with socket.socket(fileno=descriptors[0]) as end:
                    order = msgspec.msgpack.decode(packet, type=Order)
                    if not self._fork():
                        self._work(end, order)
                        return

    def _fork(self) -> bool:
        """Forks, and tells the pool of the child; False in that."""
        try:
            child = os.fork()
        except OSError as error:
            self._tell(NotForked(error.errno or 0, error.strerror or str(error)))
            return True
        if not child:
            return False
        pidfd = os.pidfd_open(child)
        self._children[pidfd] = child
        self._poll.register(pidfd, select.POLLIN)
        self._tell(Started(child), pidfd)
        return True

    def _tell(self, what: Any, *descriptors: int) -> None:
        with contextlib.suppress(OSError):  # The pool has gone; it is seen in a moment.
            socket.send_fds(self._control, [msgspec.msgpack.encode(what)], descriptors)

    def _tell_end(self, pidfd: int) -> None:
        child = self._children.pop(pidfd)
        self._poll.unregister(pidfd)
        os.close(pidfd)
        status = os.waitpid(child, 0)[1]
        self._tell(Ended(child, os.waitstatus_to_exitcode(status)))

    def _work(self, end: socket.socket, order: Order) -> None:
        """In a child: becomes a worker, with nothing of the template's."""
        # A group in the template's session: if the template ends, the kernel ends what is stopped in such a group.
        os.setpgid(0, 0)
        self._control.close()
        if self._on_children is not None:
            signal.signal(signal.SIGCHLD, self._on_children)
        for descriptor in self._children:
            os.close(descriptor)
        gc.unfreeze()
        if "numpy.random" in sys.modules:
            sys.modules["numpy.random"].seed()  # All children would draw the same; Python's own is seeded by the fork.
        # With a master that dies the template has to go first: it may be stopped itself, and then sees nothing.
        _core.die_with(self._master, self._own, self._life)
        for descriptor in (self._own, self._master, self._life):
            os.close(descriptor)
        beginning.become(end, order, prepared=self._setup.prepares)
