"""Errors for tasks and pools whose workers end."""

from __future__ import annotations

from typing import Final

from shmrpc.errors import ConnectionLost, LocalProtocolError, PoolBroken, WorkerDied
from shmrpc.host.processes import describe_killed
from shmrpc.host.resource_limits import descriptor_errno, no_descriptor_error
from shmrpc.pools.scheduling.remote_worker import RemoteWorker

#: Number of deaths in a row: before a worker is ready, until the pool breaks; before a task begins, until it fails.
MAX_WORKER_DEATHS: Final = 5


def describe_exit(worker: RemoteWorker) -> str:
    """Return a description of a worker's end, as the predicate of a sentence."""
    if worker.kill_reason:
        return worker.kill_reason
    status = worker.process.status()
    if status is None:
        if worker.process.has_ended():
            return "has ended with an unknown status: this process ignores SIGCHLD, or the fork server has died,"
        return "has closed its connection"
    if status >= 0:
        return f"exited with status {status}"
    return describe_killed(-status)


def worker_died_error(worker: RemoteWorker, function: str, *, begun: bool) -> WorkerDied:
    """Return the error of a task with which a worker has died.

    ``begun``: True if the worker had begun the task; False if several workers died before that.
    """
    who = f"worker {worker.number} (process {worker.pid})"
    if not begun:
        return WorkerDied(
            f"{who} {describe_exit(worker)} before it began {function}(), as {MAX_WORKER_DEATHS - 1} others did: "
            "check whether its arguments kill the process that reads them"
        )
    return WorkerDied(
        f"{who} {describe_exit(worker)} while it ran {function}(), and may have done part of it; to run such "
        "tasks again, pass pool(retries=1)"
    )


def initializer_error(error: BaseException) -> Exception:
    """Return what an initializer raised, wrapped unless it is an Exception: SystemExit must not end the program."""
    if isinstance(error, Exception):
        return error
    wrapped = LocalProtocolError(f"the initializer raised {error!r}")
    wrapped.__cause__ = error
    return wrapped


def pool_broken_error(error: Exception, worker: RemoteWorker | None) -> PoolBroken:
    """Return the error of a pool whose workers cannot start. ``worker``: the last one, if its process started."""
    number = descriptor_errno(error)
    why = str(error if number is None else no_descriptor_error(number, "for a worker"))
    if worker is None:
        message = f"cannot start a worker: {why}"
    else:
        what = "could not start"
        if isinstance(error, ConnectionLost):
            what, why = "died before they were ready", describe_exit(worker)
        message = f"{MAX_WORKER_DEATHS} workers in a row {what}; the last: {why}"
    broken = PoolBroken(f"the pool is broken: {message}")
    broken.__cause__ = error
    return broken
