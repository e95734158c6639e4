"""A worker process of a supervisor, from the inside. See :mod:`shmrpc.supervisor.supervisor`."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import socket
import sys
from typing import Final

import msgspec

from shmrpc.errors import ShmrpcError
from shmrpc.host import fork, rendezvous
from shmrpc.host.log_throttle import LogThrottle
from shmrpc.host.spare_descriptor import SpareDescriptor
from shmrpc.supervisor import messages
from shmrpc.supervisor.config import Config, ServeError
from shmrpc.supervisor.runner import Runner
from shmrpc.supervisor.targets import BrokenModule, load_services

logger = logging.getLogger("shmrpc.server")

#: Seconds until a message is sent again for which the supervisor had no room.
_RETRY: Final = 0.1


class Worker:
    """Serves the clients that its supervisor passes on. ``descriptor``: its end of their pair of sockets."""

    def __init__(self, descriptor: int) -> None:
        self._socket = socket.socket(fileno=descriptor)
        self._socket.set_inheritable(False)
        #: A descriptor to give up for the next client: without one the kernel drops it.
        self._reserve = SpareDescriptor()
        self._reserve.open()
        #: Clients that were passed to us, also those that were lost on the way.
        self._adopted = 0
        #: What will tell the supervisor of our connections.
        self._report: asyncio.Handle | None = None
        self._refusals = LogThrottle()
        fork.abandon_in_child(self)

    def run(self) -> None:
        """Serve what the supervisor says until a signal, the supervisor, or its death ends it."""
        packet = b""
        with contextlib.suppress(ConnectionResetError):
            packet = self._socket.recv(messages.MAX_PACKET)
        if not packet:
            return
        config = msgspec.msgpack.decode(packet, type=Config)
        try:
            config.configure_logging()
            services = load_services(config.targets, config.app_dir)
            for service in services:
                self._tell(messages.WillServe(service.name, list(service.endpoints)))
            self._tell(messages.Imported())
            if self._next_order() is not None:
                self._server = config.server(services, adopting=True)
                self._runner = Runner(self._server, config.grace, self._changed)
                config.run(self._serve())
                self._listen()
        except BrokenModule as error:
            print(f"Error: {error}", file=sys.stderr)  # noqa: T201
            sys.exit(1)
        except (ServeError, ShmrpcError) as error:
            self._tell(messages.Failed(str(error), isinstance(error, ServeError) and error.is_usage))
            sys.exit(1)

    async def _serve(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._socket.setblocking(False)
        self._loop.add_reader(self._socket, self._on_order)
        self._listen()
        try:
            await self._runner.run(self._on_ready)
        finally:
            self._loop.remove_reader(self._socket)
            if self._report is not None:
                self._report.cancel()

    def _listen(self) -> None:
        # The supervisor sends SIGTERM when it is told to stop, and others may send it to all processes: a second one
        # is no reason to hurry.
        self._runner.listen([signal.SIGTERM], at_once=[signal.SIGQUIT])

    def _on_ready(self) -> None:
        self._server.watch(self._changed)
        self._tell(messages.Serving())

    def _tell(self, message: messages.News) -> bool:
        """Send a message; False if there is no room for it. To a supervisor that is gone: nothing."""
        try:
            self._socket.send(messages.encode(message))
        except BlockingIOError:
            return False
        except OSError:
            pass
        return True

    def _next_order(self) -> tuple[messages.Order, list[int]] | None:
        """The next order with its descriptors; None at the end. Raises BlockingIOError if there is none yet.

        A client's descriptor is missing if this process could not take it in spite of the reserve.
        """
        self._reserve.close()
        try:
            packet, descriptors, _, _ = socket.recv_fds(self._socket, messages.MAX_PACKET, 1, socket.MSG_CMSG_CLOEXEC)
        except ConnectionResetError:
            return None
        finally:
            self._reserve.open()
        return (messages.decode_order(packet), descriptors) if packet else None

    def _on_order(self) -> None:
        try:
            order = self._next_order()
        except BlockingIOError:
            return
        if order is None:
            self._loop.remove_reader(self._socket)
            self._runner.drain()
            return
        message, descriptors = order
        if isinstance(message, messages.Ask):
            self._say_here()
            return
        if isinstance(message, messages.Shed):
            self._server.shed(message.clients)
            return
        if isinstance(message, messages.Adopt):
            self._adopted += 1  # Even if it is lost: the supervisor counts the clients that it has passed.
            if descriptors:
                self._server.adopt(socket.socket(fileno=descriptors[0]), message.service)
            else:
                error = rendezvous.dropped_descriptors_error(self._socket)
                level = self._refusals.level_for(error.errno, logging.ERROR)
                logger.log(level, "a client was lost, and tries again if it waits: %s", error)
        self._changed()

    def _say_here(self) -> None:
        if not self._tell(messages.Here()):
            self._loop.call_later(_RETRY, self._say_here)

    def _changed(self) -> None:
        if self._report is None:
            self._report = self._loop.call_soon(self._send_report)

    def _send_report(self) -> None:
        self._report = None
        server = self._server
        report = messages.Connections(
            self._adopted, server.arriving, server.connections_by_service, self._runner.is_draining
        )
        if not self._tell(report):
            self._report = self._loop.call_later(_RETRY, self._send_report)

    def abandon(self) -> None:
        """Close our descriptors in a forked child, which is no worker."""
        fork.close_socket(self._socket)
        self._reserve.close()


def main() -> None:
    """Serve as the supervisor says."""
    # A terminal sends these to all processes. The supervisor, which hears them too, decides.
    numbers = [signal.SIGINT, signal.SIGHUP]
    for number in numbers:
        signal.signal(number, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, numbers)
    signal.signal(signal.SIGQUIT, lambda *_: os._exit(0))  # Until the loop has its own; the default dumps core.
    Worker(int(sys.argv[1])).run()
