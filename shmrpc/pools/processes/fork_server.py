"""A process that workers are forked from: it has imported what they need, and has one thread and no open files.

Each pool has its own fork server, started by exec. The user's process is never forked.
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

from shmrpc import _core
from shmrpc.host.standard_descriptors import keep_standard_descriptors
from shmrpc.pools.processes.bootstrap import become_worker
from shmrpc.pools.processes.spawn_messages import (
    Compatible,
    Forked,
    ForkFailed,
    ForkServerMessage,
    ForkServerSetup,
    Incompatible,
    SpawnRequest,
    WorkerExited,
    decode_request,
    decode_setup,
    encode,
)
from shmrpc.pools.worker.current_worker import importing_program

_MAX_PACKET: Final = 1 << 20


def main() -> None:
    """Fork workers for the pool at the other end of the descriptor in the first argument.

    The descriptor in the second argument is a pipe of the pool's process. When that process closes the pipe, the kernel
    ends this process, even while it imports the program.
    """
    keep_standard_descriptors()
    control, lifeline = socket.socket(fileno=int(sys.argv[1])), int(sys.argv[2])
    del sys.argv[:3]
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    fcntl.fcntl(lifeline, fcntl.F_SETOWN, os.getpid())
    fcntl.fcntl(lifeline, fcntl.F_SETFL, os.O_ASYNC | os.O_NONBLOCK)  # The end raises SIGIO, which ends this process.
    packet, descriptors, *_ = socket.recv_fds(control, _MAX_PACKET, 1)
    if not packet:  # The pool has ended.
        return
    setup = decode_setup(packet)
    reason = _prepare_to_fork(setup)
    # If SIGCHLD were ignored, exit statuses would be lost. Workers get the handler back.
    sigchld_handler = signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    control.send(encode(Compatible() if reason is None else Incompatible(reason)))
    if reason is None:
        ForkServer(control, lifeline, descriptors[0], setup, sigchld_handler).serve()


def _prepare_to_fork(setup: ForkServerSetup) -> str | None:
    """Import the program if the setup requests that, and freeze the garbage collector.

    Return None, or the reason for which this process cannot be a fork server.
    """
    if (threads := _count_threads()) > 1:
        return f"it has {threads} threads as it begins"
    if setup.imports_program:
        before = _open_descriptors()
        try:
            with importing_program():
                spawn.prepare(pickle.loads(setup.preparation))
        except BaseException as error:  # A worker will raise it again, where it is reported.
            return f"the program cannot be imported: {type(error).__name__}: {error}"
        keep_standard_descriptors()  # The program may have closed them.
        if (threads := _count_threads()) > 1:
            return f"the program has {threads} threads once it is imported"
        if opened := _open_descriptors() - before:
            return f"the program has opened {', '.join(sorted(opened))} as it was imported"
    for stream in (sys.stdout, sys.stderr):
        if stream is not None:
            stream.flush()  # Otherwise each child would print the buffer again.
    gc.collect()
    gc.freeze()
    return None


def _count_threads() -> int:
    """Return the number of threads of this process."""
    return len(os.listdir("/proc/self/task"))


def _open_descriptors() -> set[str]:
    """Return a description of each open descriptor, except those of /proc."""
    found = set()
    for number in os.listdir("/proc/self/fd"):
        with contextlib.suppress(FileNotFoundError):
            found.add(f"{number} ({os.readlink(f'/proc/self/fd/{number}')})")
    return {each for each in found if "/proc/" not in each}


class ForkServer:
    """The loop of a fork server: forks workers on request, and reports their exit statuses."""

    def __init__(
        self, control: socket.socket, lifeline: int, master: int, setup: ForkServerSetup, sigchld_handler: Any
    ) -> None:
        self._control, self._lifeline, self._master, self._setup = control, lifeline, master, setup
        #: Handler of SIGCHLD that the program, or the parent process, has set.
        self._sigchld_handler = sigchld_handler
        self._own_pidfd = os.pidfd_open(os.getpid())
        self._poll = select.poll()
        self._poll.register(control, select.POLLIN)
        self._poll.register(master, select.POLLIN)
        #: Pids of the workers by pidfd.
        self._workers: dict[int, int] = {}

    def serve(self) -> None:
        """Serve until the pool ends. In a forked child, run the worker, and return when the worker ends."""
        while True:
            for descriptor, _ in self._poll.poll():
                if descriptor == self._master:
                    return
                if descriptor != self._control.fileno():
                    self._report_exit(descriptor)
                    continue
                packet, descriptors, *_ = socket.recv_fds(self._control, _MAX_PACKET, 1)
                if not packet:
                    return
                with socket.socket(fileno=descriptors[0]) as worker_end:
                    request = decode_request(packet)
                    if not self._fork():
                        self._run_child(worker_end, request)
                        return

    def _fork(self) -> bool:
        """Fork, and report the worker, or the failure, to the pool; return True in this process, False in the child."""
        try:
            child = os.fork()
        except OSError as error:
            self._send(ForkFailed(error.errno or 0, error.strerror or str(error)))
            return True
        if not child:
            return False
        pidfd = os.pidfd_open(child)
        self._workers[pidfd] = child
        self._poll.register(pidfd, select.POLLIN)
        self._send(Forked(child), pidfd)
        return True

    def _send(self, message: ForkServerMessage, *descriptors: int) -> None:
        """Send a message and descriptors to the pool; do nothing if the pool has ended."""
        with contextlib.suppress(OSError):  # The pool has ended, which poll() reports next.
            socket.send_fds(self._control, [encode(message)], descriptors)

    def _report_exit(self, pidfd: int) -> None:
        """Reap a worker that has ended, and report its status to the pool."""
        child = self._workers.pop(pidfd)
        self._poll.unregister(pidfd)
        os.close(pidfd)
        status = os.waitpid(child, 0)[1]
        self._send(WorkerExited(child, os.waitstatus_to_exitcode(status)))

    def _run_child(self, worker_end: socket.socket, request: SpawnRequest) -> None:
        """Drop, in a child, the state of the fork server, and run the worker."""
        # A process group in the fork server's session: if the fork server ends, the kernel also ends stopped workers.
        os.setpgid(0, 0)
        self._control.close()
        if self._sigchld_handler is not None:
            signal.signal(signal.SIGCHLD, self._sigchld_handler)
        for descriptor in self._workers:
            os.close(descriptor)
        gc.unfreeze()
        if "numpy.random" in sys.modules:
            sys.modules["numpy.random"].seed()  # Otherwise all children draw the same; os.fork() seeds Python's own.
        # The fork server dies before its pool: it may be stopped, and then does not notice the pool's end.
        _core.die_with(self._master, self._own_pidfd, self._lifeline)
        for descriptor in (self._own_pidfd, self._master, self._lifeline):
            os.close(descriptor)
        become_worker(worker_end, request, has_program=self._setup.imports_program)
