"""A worker of a supervisor; its argument is the descriptor of their socket. See :mod:`shmrpc.supervisor.supervisor`."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import socket
import sys
from collections.abc import Sequence
from typing import Final

import msgspec

from shmrpc.errors import ShmrpcError
from shmrpc.host import exhaustion, fork, rendezvous
from shmrpc.server.server import Server
from shmrpc.service.service import Service
from shmrpc.supervisor import messages as messages
from shmrpc.supervisor.config import Config, ServeError
from shmrpc.supervisor.running import Running
from shmrpc.supervisor.targets import BrokenModule, load_services

logger = logging.getLogger("shmrpc.server")

#: Seconds until a report is sent again that the supervisor had no room for.
_RETRY: Final = 0.1


class SupervisorLink:
    """A worker's end of the pair of sockets."""

    def __init__(self, descriptor: int) -> None:
        self.socket = socket.socket(fileno=descriptor)
        self.socket.set_inheritable(False)
        #: A descriptor to give up for the client that is passed next: the kernel drops one for which there is none.
        self._reserve = exhaustion.Reserve()
        self._reserve.keep()
        fork.close_in_child(self)

    def tell(self, message: messages.News) -> bool:
        """Sends a message; False if there is no room for it. To a supervisor that is gone: nothing."""
        try:
            self.socket.send(messages.encode(message))
        except BlockingIOError:
            return False
        except OSError:
            pass
        return True

    def order(self) -> tuple[messages.Order, list[int]] | None:
        """The next order with its descriptors; None at the end. Raises BlockingIOError if there is none yet.

        A client's descriptor is missing if this process could not take it, although there was a reserve for it.
        """
        self._reserve.give_up()
        try:
            packet, descriptors, _, _ = socket.recv_fds(self.socket, messages.MAX_PACKET, 1, socket.MSG_CMSG_CLOEXEC)
        except ConnectionResetError:
            return None
        finally:
            self._reserve.keep()
        return (messages.decode_order(packet), descriptors) if packet else None

    def abandon(self) -> None:
        """A forked child is no worker."""
        fork.close(self.socket)
        self._reserve.give_up()


class Worker:
    """Serves the clients that the supervisor passes on."""

    def __init__(self, link: SupervisorLink, server: Server, running: Running) -> None:
        self._link = link
        self._server = server
        self._running = running
        running.on_drain = self._changed
        self._adopted = 0
        self._report: asyncio.Handle | None = None
        self._refusals = exhaustion.Refusals()
        self._loop = asyncio.get_running_loop()

    async def run(self) -> None:
        """Serves until a signal, the supervisor, or its death ends it."""
        self._link.socket.setblocking(False)
        self._loop.add_reader(self._link.socket, self._on_order)
        _listen(self._running)
        try:
            await self._running.run(self._on_ready)
        finally:
            self._loop.remove_reader(self._link.socket)
            if self._report is not None:
                self._report.cancel()

    def _on_ready(self) -> None:
        self._server.watch(self._changed)
        self._link.tell(messages.Ready())

    def _on_order(self) -> None:
        try:
            order = self._link.order()
        except BlockingIOError:
            return
        if order is None:
            self._loop.remove_reader(self._link.socket)
            self._running.drain()
            return
        message, descriptors = order
        if isinstance(message, messages.Ask):
            self._say_here()
            return
        if isinstance(message, messages.Adopt):
            self._adopted += 1  # Also one that is lost: the supervisor counts those that it has passed.
            if descriptors:
                self._server.adopt(socket.socket(fileno=descriptors[0]), message.service)
            else:
                error = rendezvous.untaken(self._link.socket)
                level = self._refusals.level(error.errno, logging.ERROR)
                logger.log(level, "a client was lost, and tries again if it waits: %s", error)
        self._changed()

    def _say_here(self) -> None:
        if not self._link.tell(messages.Here()):
            self._loop.call_later(_RETRY, self._say_here)

    def _changed(self) -> None:
        if self._report is None:
            self._report = self._loop.call_soon(self._send_report)

    def _send_report(self) -> None:
        self._report = None
        server = self._server
        draining = self._running.is_draining
        report = messages.Connections(self._adopted, server.arriving, server.connections_by_service, draining)
        if not self._link.tell(report):
            self._report = self._loop.call_later(_RETRY, self._send_report)


def _prepare(link: SupervisorLink, config: Config) -> list[Service] | None:
    """Imports what is to be served; None if the supervisor does not want it."""
    config.configure_logging()
    services = load_services(config.targets, config.app_dir)
    for service in services:
        link.tell(messages.Offer(service.name, list(service.endpoints)))
    link.tell(messages.Imported())
    return services if link.order() is not None else None


def _serve(link: SupervisorLink, config: Config, services: Sequence[Service]) -> None:
    server = config.server(services, adopting=True)
    running = Running(server, config.grace)

    async def run() -> None:
        await Worker(link, server, running).run()

    config.run(run())
    _listen(running)


def _listen(running: Running) -> None:
    # The supervisor sends one when it is told to stop, and others may send one to all processes: it does not insist.
    running.listen([signal.SIGTERM], at_once=[signal.SIGQUIT])


def main() -> None:
    """Serves as the supervisor says."""
    # Whoever has a terminal sends these to all processes; the supervisor, which hears them too, decides.
    numbers = [signal.SIGINT, signal.SIGHUP]
    for number in numbers:
        signal.signal(number, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, numbers)
    signal.signal(signal.SIGQUIT, lambda *_: os._exit(0))  # Until the loop has its own; its default dumps core.
    link = SupervisorLink(int(sys.argv[1]))
    packet = b""
    with contextlib.suppress(ConnectionResetError):
        packet = link.socket.recv(messages.MAX_PACKET)
    if not packet:
        return
    config = msgspec.msgpack.decode(packet, type=Config)
    try:
        services = _prepare(link, config)
        if services is not None:
            _serve(link, config, services)
    except BrokenModule as error:
        print(f"Error: {error}", file=sys.stderr)  # noqa: T201
        sys.exit(1)
    except (ServeError, ShmrpcError) as error:
        link.tell(messages.Failed(str(error)))
        sys.exit(1)
