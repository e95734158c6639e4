"""A supervisor: it holds the names of services, passes clients to workers, and replaces workers that die.

The supervisor never imports the services. A worker is a fresh interpreter (:mod:`shmrpc.supervisor.worker`) at the
other end of a pair of sockets, over which accepted clients go as descriptors. When the supervisor dies, its workers see
the end of that pair.
"""

from __future__ import annotations

import asyncio
import logging
import math
import os
import signal
import socket
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Final

from shmrpc.errors import ShmrpcError
from shmrpc.host.log_throttle import LogThrottle
from shmrpc.pools.processes.cpus import thread_limits
from shmrpc.supervisor.config import ServeConfig, ServeError
from shmrpc.supervisor.forced_exit import StopSignals
from shmrpc.supervisor.worker_process import WorkerProcess
from shmrpc.transport.shm.connection_router import ConnectionRouter
from shmrpc.wire.control import Health, StatusReport

logger = logging.getLogger("shmrpc.supervisor")

#: Seconds after it begins to serve within which the death of a worker counts as quick; so does an earlier death.
QUICK_DEATH_SECONDS: Final = 3.0
#: Quick deaths in a row after which the supervisor gives up.
_MAX_QUICK_DEATHS: Final = 5
_QUICK_DEATH_TEXT: Final = f"before they served or within {QUICK_DEATH_SECONDS:g} s after"
#: Seconds between two samples of the workers' CPU time.
_SAMPLE_INTERVAL: Final = 1.0
#: Seconds that clients wait for all of the first workers to serve, once one does.
_GATHER_SECONDS: Final = 1.0
#: Seconds until the next attempt to start a worker.
_START_RETRY_SECONDS: Final = 1.0

#: Called when all workers serve, with the endpoints by service and the process ids of the workers.
Announce = Callable[[Mapping[str, Sequence[str]], Sequence[int]], None]


class Supervisor:
    """The owner of ``count`` workers that serve the services of a configuration.

    ``keeps_trying``: after quick deaths, wait for the next restart instead of giving up, for development.
    """

    def __init__(self, config: ServeConfig, count: int, announce: Announce, *, keeps_trying: bool = False) -> None:
        self._config = config
        self._count = count
        self._announce: Announce | None = announce
        self._keeps_trying = keeps_trying
        self._workers: list[WorkerProcess] = []
        self._routers: dict[str, ConnectionRouter] = {}
        self._log_throttle = LogThrottle()
        #: Variables that limit the threads of numerical libraries in workers to a share of the CPUs.
        self._environment = thread_limits(count) if count > 1 else {}
        #: True once all workers have been started, which happens after the first one has imported its services.
        self._has_started_all = False
        #: True once a worker has been ready, and the time of that, in seconds of time.monotonic().
        self._has_served = False
        self._first_ready_at = math.inf
        self._is_stopping = False
        self._signals = StopSignals()
        self._failure = ""
        #: True if the cause is a wrong target or option.
        self._is_usage = False
        self._restarting: asyncio.Task[None] | None = None
        self._restart_again = False

    async def run(self) -> None:
        """Serve until SIGINT or SIGTERM; SIGHUP replaces the workers. Call this once, in the main thread.

        Raises ServeError if serving cannot start or continue, or if a worker had to be ended by force. Kills the
        workers that live at the end.
        """
        self._loop = asyncio.get_running_loop()
        self._ended = asyncio.Event()
        self._loop.add_signal_handler(signal.SIGCHLD, self._reap)
        self._loop.add_signal_handler(signal.SIGHUP, self.restart, "SIGHUP")
        for number in (signal.SIGINT, signal.SIGTERM):
            self._loop.add_signal_handler(number, self._on_stop_signal, number)
        sampling = self._loop.create_task(self._monitor_workers()) if self._count > 1 else None
        try:
            self._start()  # The others start when this one has imported the services.
            await self._ended.wait()
        finally:
            if sampling is not None:
                sampling.cancel()
            for router in self._routers.values():
                router.close()
            for worker in self._workers:
                worker.process.kill()
        if self._failure:
            raise ServeError(self._failure, is_usage=self._is_usage)

    # Start and end of workers.

    def _start(self, quick_deaths: int = 0) -> None:
        """Start a worker, unless the supervisor stops; log an OSError of the start, and try again each second."""
        if self._is_stopping:
            return
        try:
            self._spawn(quick_deaths)
        except OSError as error:
            level = self._log_throttle.level_for(error.errno, logging.ERROR)
            logger.log(level, "cannot start a worker, trying again every %g s: %s", _START_RETRY_SECONDS, error)
            self._loop.call_later(_START_RETRY_SECONDS, self._start, quick_deaths)

    def _spawn(self, quick_deaths: int = 0) -> WorkerProcess:
        """Start a worker and return it. Raises OSError if no process can be started."""
        worker = WorkerProcess(self._config, self._on_imported, self._on_ready, quick_deaths, self._environment)
        self._workers.append(worker)
        logger.debug("worker %d started", worker.pid)
        return worker

    def _on_imported(self, worker: WorkerProcess) -> None:
        """Claim the names of the worker's services, let the worker serve, and start the others after the first worker.

        If a name cannot be claimed, record the error as the worker's failure, and order the worker to end.
        """
        try:
            for service in worker.offers if self._config.accepts_sockets else ():
                if service not in self._routers:
                    allowed = self._config.connection.users
                    self._routers[service] = ConnectionRouter(
                        service, self._make_report, self._hand_over_client, allowed
                    )
        except ShmrpcError as error:
            worker.failure = str(error)
            worker.drain()
            return
        worker.start_serving()
        if not self._has_started_all:
            self._has_started_all = True
            for _ in range(self._count - 1):
                self._start()

    def _on_ready(self, _: WorkerProcess) -> None:
        """Record that a worker serves, and announce the server once all first workers do."""
        if not self._has_served:
            self._has_served, self._first_ready_at = True, time.monotonic()
        if self._announce is not None and sum(worker.is_ready for worker in self._workers) == self._count:
            self._announce(self._workers[0].offers, [worker.pid for worker in self._workers])
            self._announce = None

    def _reap(self) -> None:
        """Handle the workers that have ended; end the supervisor after the last one while it stops."""
        for worker in list(self._workers):
            if worker.has_ended():
                self._workers.remove(worker)
                self._on_worker_exit(worker)
        if self._is_stopping and not self._workers:
            self._ended.set()

    def _on_worker_exit(self, worker: WorkerProcess) -> None:
        """Log the end of a worker, and start another one in its place.

        Starts no worker if the supervisor stops, if the worker was ordered to end and has not failed, or if the
        worker was a successor that never served: the old worker still serves. Stops the supervisor with an error if a
        worker exited before any worker served. After too many quick deaths in a row, stops with an error, or waits for
        a change if the supervisor keeps trying.
        """
        how = f"worker {worker.pid} {worker.exit_description}"
        if self._is_stopping and worker.was_forced and not self._failure:
            self._failure = f"worker {worker.pid} did not end by itself, and was ended by force"
        if self._is_stopping or (worker.is_dismissed and not worker.failure):
            logger.log(logging.DEBUG if worker.process.returncode == 0 else logging.WARNING, "%s", how)
            return
        if not self._has_served and worker.process.returncode >= 0:
            self._is_usage = worker.failure_is_usage
            self._fail(worker.failure or f"{how} before it served: see its output for the reason")
            return
        logger.error("%s%s", how, f": {worker.failure}" if worker.failure else "")
        if worker.is_successor and not worker.is_ready:
            return  # The old worker still serves.
        is_quick = worker.ready_at is None or time.monotonic() - worker.ready_at < QUICK_DEATH_SECONDS
        quick_deaths = worker.quick_deaths + 1 if is_quick else 0
        if quick_deaths < _MAX_QUICK_DEATHS:
            self._start(quick_deaths)
        elif self._keeps_trying:
            logger.error("%d workers in a row died %s: waiting for a change", quick_deaths, _QUICK_DEATH_TEXT)
        else:
            self._fail(
                f"{quick_deaths} workers in a row died {_QUICK_DEATH_TEXT}, the last one {worker.exit_description}: "
                "giving up; see their output for the reason"
            )

    def _fail(self, reason: str) -> None:
        """Stop gracefully, after which :meth:`run` raises ServeError with the reason. The first error counts."""
        if not self._failure:
            self._failure = reason
            self._drain()

    # Stopping and restarting.

    def _on_stop_signal(self, number: int) -> None:
        """Stop gracefully on the first signal, at once on the second one."""
        if self._signals.is_repeat(number):
            return
        if self._is_stopping:
            logger.warning("stopping at once: calls in flight are cancelled")
            for worker in self._workers:
                worker.stop_now()
        else:
            self._drain()

    def _drain(self) -> None:
        """Order all workers to end gracefully, cancel a restart, and end the supervisor if no worker is left.

        From now on, the supervisor refuses new clients, with the reason that the server is draining.
        """
        self._is_stopping = True
        if self._restarting is not None:
            self._restarting.cancel()
        for worker in self._workers:
            worker.drain()
        if not self._workers:
            self._ended.set()

    def restart(self, reason: str) -> None:
        """Start to replace each worker by a new one without losing a call. Does not wait.

        Ignored while the supervisor stops. During a restart, another one follows.
        """
        if self._is_stopping:
            return
        logger.info("%s: replacing all workers", reason)
        self._restart_again = True
        if self._restarting is None:
            self._restarting = self._loop.create_task(self._restart())

    async def _restart(self) -> None:
        """Replace all workers and release names that no worker offers; repeat while further restarts are requested.

        If a worker cannot be started, log the error and keep the present workers.
        """
        try:
            while self._restart_again:
                self._restart_again = False
                await self._replace_all()
                self._release_names()
        except OSError as error:
            logger.error("cannot start a worker: %s; the present workers continue", error)
        finally:
            self._restarting = None

    async def _replace_all(self) -> None:
        """Replace the workers one by one; if a new one does not serve, keep the old ones that are left.

        Raises OSError if no process can be started.
        """
        old_workers = [worker for worker in self._workers if not worker.is_dismissed]
        for old in old_workers:
            old.is_outdated = True
        if not old_workers:  # All have died quickly; the change may be the cure.
            self._start()
        try:
            for old in old_workers:
                if old not in self._workers:
                    continue  # The old worker has died and has been replaced.
                new = self._spawn()
                new.is_successor = True
                if not await new.ready:
                    logger.error("the new worker does not serve; the old workers continue")
                    return
                new.is_successor = False
                if old not in self._workers:
                    new.drain()  # The old worker has died while this one started, and has been replaced.
                    continue
                old.drain()
                logger.info("worker %d replaces worker %d", new.pid, old.pid)
        finally:  # The old workers that continue get clients as the new ones do.
            for old in old_workers:
                old.is_outdated = False

    def _release_names(self) -> None:
        """Release the names of services that no worker offers; keep all if no service is offered."""
        offered = {service for worker in self._workers if not worker.is_dismissed for service in worker.offers}
        if offered:
            for service in self._routers.keys() - offered:
                self._routers.pop(service).close()

    # Clients.

    @property
    def _is_gathering(self) -> bool:
        """True while clients wait until all first workers are ready.

        Without this wait, the first ready worker would get all clients. False at the latest ``_GATHER_SECONDS`` after
        the first worker was ready.
        """
        return (
            self._has_served
            and self._announce is not None
            and time.monotonic() < self._first_ready_at + _GATHER_SECONDS
        )

    def _available_workers(self, service: str) -> list[WorkerProcess]:
        """Return the workers that can take a client of a service, silent ones included; none while gathering."""
        if self._is_gathering:
            return []
        return [each for each in self._workers if each.is_ready and not each.draining and service in each.offers]

    async def _hand_over_client(self, service: str, accepted: socket.socket) -> str | None:
        """Pass a client to the least busy worker that answers and has room; return None if a worker took the client.

        Otherwise return the reason, or "" if a worker may take the client in a moment.
        """
        tried = set[WorkerProcess]()
        while untried := [
            each for each in self._available_workers(service) if each not in tried and not each.is_silent
        ]:
            worker = min(untried, key=_load_order)
            tried.add(worker)
            if await worker.is_responsive() and not worker.draining and worker.adopt(service, accepted):
                return None
        takers = self._available_workers(service)
        if not takers and self._is_gathering and not self._is_stopping:
            return ""
        if not takers:
            return f"the server is {self._health(service)}"
        if all(each.is_silent for each in takers):
            silent = "; ".join(f"worker {each.pid}: {each.silence_reason}" for each in takers)
            # The client may be in another pid namespace, where these pids mean nothing.
            return f"none of its workers answers. {silent} (process ids are those that the server sees)"
        return ""

    def _make_report(self, router: ConnectionRouter) -> StatusReport:
        """Return the status report of a service."""
        service = router.service
        endpoints = next((each.offers[service] for each in self._workers if service in each.offers), [])
        workers = {each.pid: each.report.connections.get(service, 0) for each in self._workers if each.is_ready}
        connections, health = sum(workers.values()), self._health(service)
        return StatusReport(service, os.getpid(), router.uptime, endpoints, connections, health, workers)

    def _health(self, service: str) -> Health:
        """Return the health of a service.

        The health is "draining" while the supervisor stops, "serving" if a worker can take a client, otherwise
        "starting".
        """
        return "draining" if self._is_stopping else "serving" if self._available_workers(service) else "starting"

    async def _monitor_workers(self) -> None:
        """Sample the CPU usage of the workers, and balance their clients, at an interval."""
        while True:
            await asyncio.sleep(_SAMPLE_INTERVAL)
            for worker in self._workers:
                worker.sample_cpu()
            self._balance()

    def _balance(self) -> None:
        """Have workers shed the clients above an equal share. Only clients with ``reconnect=True`` move."""
        if self._is_stopping or self._restarting is not None or self._is_gathering:
            return
        workers = [each for each in self._workers if each.is_ready and not each.draining and not each.is_silent]
        share = math.ceil(sum(each.clients for each in workers) / max(1, len(workers)))
        for worker in workers:
            if worker.clients > share:
                worker.shed(worker.clients - share)


def _load_order(worker: WorkerProcess) -> tuple[bool, int, float, float]:
    """Return the sort key of a worker; the worker with the least key gets the next client.

    New workers come before outdated ones during a restart. Then the key is the number of clients, the recent CPU use in
    steps of a tenth, and the time at which the worker last took a client.
    """
    return worker.is_outdated, worker.clients, round(worker.recent_cpu, 1), worker.last_adopted_at


def supervise(config: ServeConfig, count: int, announce: Announce) -> None:
    """Serve with ``count`` workers until SIGINT or SIGTERM. Raises ServeError as :meth:`Supervisor.run` does."""
    asyncio.run(Supervisor(config, count, announce).run())
