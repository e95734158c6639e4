"""A supervisor: it holds the names, passes clients to workers, and replaces workers that die.

It never imports what is served. A worker is a fresh interpreter (:mod:`shmrpc.supervisor.worker`), reached through a
pair of sockets, over which accepted clients go as descriptors. When the supervisor dies, its workers see the end of
that pair.
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
from shmrpc.supervisor.config import Config, ServeError
from shmrpc.supervisor.ending import StopSignals
from shmrpc.supervisor.worker_process import WorkerProcess
from shmrpc.transport.shm.connection_router import ConnectionRouter
from shmrpc.wire.control import Health, StatusReport

logger = logging.getLogger("shmrpc.supervisor")

#: A worker that dies before it serves, or within these seconds after, dies quickly.
_QUICK: Final = 3.0
#: Quick deaths in a row after which the supervisor gives up.
_MAX_QUICK_DEATHS: Final = 5
_WHEN: Final = f"before they served or within {_QUICK:g} s after"
#: Seconds between two samples of the workers' CPU time.
_SAMPLE: Final = 1.0
#: Seconds for which clients wait until all of the first workers serve, once one does.
_TOGETHER: Final = 1.0
#: Seconds until a worker that could not be started is tried again.
_RETRY: Final = 1.0

#: Called when all workers serve, with the endpoints by service and the workers' process ids.
Announce = Callable[[Mapping[str, Sequence[str]], Sequence[int]], None]


class Supervisor:
    """Keeps ``count`` workers that serve what the config says.

    ``keeps_trying``: after quick deaths wait for the next restart instead of giving up, for a developer at work.
    """

    def __init__(self, config: Config, count: int, announce: Announce, *, keeps_trying: bool = False) -> None:
        self._config = config
        self._count = count
        self._announce: Announce | None = announce
        self._keeps_trying = keeps_trying
        self._workers: list[WorkerProcess] = []
        self._desks: dict[str, ConnectionRouter] = {}
        self._refusals = LogThrottle()
        #: Variables that tell numerical libraries in workers their share of the CPUs.
        self._environment = thread_limits(count) if count > 1 else {}
        #: True once all workers were started, after the first one had imported its services.
        self._has_started_all = False
        #: True once a worker has been ready; and the time of that, in seconds of time.monotonic().
        self._has_served = False
        self._serves_since = math.inf
        self._stopping = False
        self._signals = StopSignals()
        self._failure = ""
        #: True if the cause is a wrong target or option.
        self._is_usage = False
        self._restarting: asyncio.Task[None] | None = None
        self._restart_again = False

    async def run(self) -> None:
        """Serve until SIGINT or SIGTERM. Raises ServeError if serving cannot begin, or go on."""
        self._loop = asyncio.get_running_loop()
        self._ended = asyncio.Event()
        self._loop.add_signal_handler(signal.SIGCHLD, self._reap)
        self._loop.add_signal_handler(signal.SIGHUP, self.restart, "SIGHUP")
        for number in (signal.SIGINT, signal.SIGTERM):
            self._loop.add_signal_handler(number, self._on_stop, number)
        sampling = self._loop.create_task(self._look_after_workers()) if self._count > 1 else None
        try:
            self._start()  # The others follow when this one has imported what is served.
            await self._ended.wait()
        finally:
            if sampling is not None:
                sampling.cancel()
            for desk in self._desks.values():
                desk.close()
            for worker in self._workers:
                worker.process.kill()
        if self._failure:
            raise ServeError(self._failure, is_usage=self._is_usage)

    # Starting workers, and what happens when they end.

    def _start(self, quick_deaths: int = 0) -> None:
        if self._stopping:
            return
        try:
            self._spawn(quick_deaths)
        except OSError as error:
            level = self._refusals.level_for(error.errno, logging.ERROR)
            logger.log(level, "cannot start a worker, trying again every %g s: %s", _RETRY, error)
            self._loop.call_later(_RETRY, self._start, quick_deaths)

    def _spawn(self, quick_deaths: int = 0) -> WorkerProcess:
        worker = WorkerProcess(self._config, self._on_imported, self._on_ready, quick_deaths, self._environment)
        self._workers.append(worker)
        logger.debug("worker %d started", worker.pid)
        return worker

    def _on_imported(self, worker: WorkerProcess) -> None:
        try:
            for service in worker.offers if self._config.adopts else ():
                if service not in self._desks:
                    allowed = self._config.connection.users
                    self._desks[service] = ConnectionRouter(service, self._report, self._pass_on, allowed)
        except ShmrpcError as error:
            worker.failure = str(error)
            worker.drain()
            return
        worker.begin()
        if not self._has_started_all:
            self._has_started_all = True
            for _ in range(self._count - 1):
                self._start()

    def _on_ready(self, _: WorkerProcess) -> None:
        if not self._has_served:
            self._has_served, self._serves_since = True, time.monotonic()
        if self._announce is not None and sum(worker.is_ready for worker in self._workers) == self._count:
            self._announce(self._workers[0].offers, [worker.pid for worker in self._workers])
            self._announce = None

    def _reap(self) -> None:
        for worker in list(self._workers):
            if worker.has_ended():
                self._workers.remove(worker)
                self._on_end(worker)
        if self._stopping and not self._workers:
            self._ended.set()

    def _on_end(self, worker: WorkerProcess) -> None:
        """A worker is gone: replace it, unless it was meant to go or replacing it is hopeless."""
        how = f"worker {worker.pid} {worker.end}"
        if self._stopping and worker.forced and not self._failure:
            self._failure = f"worker {worker.pid} did not end by itself, and was ended by force"
        if self._stopping or (worker.dismissed and not worker.failure):
            logger.log(logging.DEBUG if worker.process.returncode == 0 else logging.WARNING, "%s", how)
            return
        if not self._has_served and worker.process.returncode >= 0:
            self._is_usage = worker.failure_is_usage
            self._give_up(worker.failure or f"{how} before it served; what it printed says why")
            return
        logger.error("%s%s", how, f": {worker.failure}" if worker.failure else "")
        if worker.is_successor and not worker.is_ready:
            return  # The worker that it was to replace still serves.
        is_quick = worker.ready_at is None or time.monotonic() - worker.ready_at < _QUICK
        quick_deaths = worker.quick_deaths + 1 if is_quick else 0
        if quick_deaths < _MAX_QUICK_DEATHS:
            self._start(quick_deaths)
        elif self._keeps_trying:
            logger.error("%d workers in a row died %s: waiting for a change", quick_deaths, _WHEN)
        else:
            self._give_up(
                f"{quick_deaths} workers in a row died {_WHEN}, the last one {worker.end}: given up; "
                "what they printed says why"
            )

    def _give_up(self, reason: str) -> None:
        if not self._failure:
            self._failure = reason
            self._drain()

    # Stopping and restarting.

    def _on_stop(self, number: int) -> None:
        if self._signals.is_repeat(number):
            return
        if self._stopping:
            logger.warning("stopping at once: calls under way are cancelled")
            for worker in self._workers:
                worker.quit()
        else:
            self._drain()

    def _drain(self) -> None:
        """Let all workers end gently; new clients are told to come again."""
        self._stopping = True
        if self._restarting is not None:
            self._restarting.cancel()
        for worker in self._workers:
            worker.drain()
        if not self._workers:
            self._ended.set()

    def restart(self, reason: str) -> None:
        """Replace each worker by a new one without losing a call."""
        if self._stopping:
            return
        logger.info("%s: each worker is replaced by a new one", reason)
        self._restart_again = True
        if self._restarting is None:
            self._restarting = self._loop.create_task(self._restart())

    async def _restart(self) -> None:
        try:
            while self._restart_again:
                self._restart_again = False
                await self._replace_all()
                self._release_names()
        except OSError as error:
            logger.error("cannot start a worker: %s; those that there are go on", error)
        finally:
            self._restarting = None

    async def _replace_all(self) -> None:
        old_workers = [worker for worker in self._workers if not worker.dismissed]
        for old in old_workers:
            old.outdated = True
        if not old_workers:  # They all died quickly; the change may have cured that.
            self._start()
        for old in old_workers:
            if old not in self._workers:
                continue  # It has died meanwhile, and has been replaced already.
            new = self._spawn()
            new.is_successor = True
            if not await new.ready:
                logger.error("the new worker does not serve; the old ones go on")
                for each in old_workers:
                    each.outdated = False
                return
            new.is_successor = False
            if old not in self._workers:
                new.drain()  # The old worker died while this one started, and has been replaced already.
                continue
            old.drain()
            logger.info("worker %d takes the place of worker %d", new.pid, old.pid)

    def _release_names(self) -> None:
        """Release the names of services that no worker offers any more."""
        offered = {service for worker in self._workers if not worker.dismissed for service in worker.offers}
        if offered:
            for service in self._desks.keys() - offered:
                self._desks.pop(service).close()

    # Clients.

    @property
    def _is_gathering(self) -> bool:
        """True while the first workers become ready: the first of them must not get all clients."""
        return self._has_served and self._announce is not None and time.monotonic() < self._serves_since + _TOGETHER

    def _takers(self, service: str) -> list[WorkerProcess]:
        """The workers that can take a client of a service."""
        if self._is_gathering:
            return []
        return [each for each in self._workers if each.is_ready and not each.draining and service in each.offers]

    async def _pass_on(self, service: str, accepted: socket.socket) -> str | None:
        """Pass a client to the least busy worker that answers and has room for it; None if one took it.

        Otherwise, why none did; an empty text if one may in a moment.
        """
        tried = set[WorkerProcess]()
        while untried := [each for each in self._takers(service) if each not in tried and not each.is_silent]:
            worker = min(untried, key=_busy)
            tried.add(worker)
            if await worker.is_there() and not worker.draining and worker.adopt(service, accepted):
                return None
        takers = self._takers(service)
        if not takers and self._is_gathering and not self._stopping:
            return ""
        if not takers:
            return f"the server is {self._health(service)}"
        if all(each.is_silent for each in takers):
            silent = "; ".join(f"worker {each.pid}: {each.silence}" for each in takers)
            # The client may be in another pid namespace.
            return f"none of its workers answers. {silent} (process ids are those that the server sees)"
        return ""

    def _report(self, desk: ConnectionRouter) -> StatusReport:
        service = desk.service
        endpoints = next((each.offers[service] for each in self._workers if service in each.offers), [])
        workers = {each.pid: each.load.connections.get(service, 0) for each in self._workers if each.is_ready}
        connections, health = sum(workers.values()), self._health(service)
        return StatusReport(service, os.getpid(), desk.uptime, endpoints, connections, health, workers)

    def _health(self, service: str) -> Health:
        return "draining" if self._stopping else "serving" if self._takers(service) else "starting"

    async def _look_after_workers(self) -> None:
        while True:
            await asyncio.sleep(_SAMPLE)
            for worker in self._workers:
                worker.sample_cpu()
            self._balance()

    def _balance(self) -> None:
        """Spread the clients over the workers again, after one was replaced. Those with ``reconnect=True`` move."""
        if self._stopping or self._restarting is not None or self._is_gathering:
            return
        workers = [each for each in self._workers if each.is_ready and not each.draining and not each.is_silent]
        share = math.ceil(sum(each.clients for each in workers) / max(1, len(workers)))
        for worker in workers:
            if worker.clients > share:
                worker.shed(worker.clients - share)


def _busy(worker: WorkerProcess) -> tuple[bool, int, float, float]:
    """Sorts the least busy worker first; during a restart, new ones first. CPU time counts in tenths."""
    return worker.outdated, worker.clients, round(worker.cpu_lately, 1), worker.last_passed


def supervise(config: Config, count: int, announce: Announce) -> None:
    """Serve with ``count`` workers until SIGINT or SIGTERM. Raises ServeError if serving cannot begin, or go on."""
    asyncio.run(Supervisor(config, count, announce).run())
