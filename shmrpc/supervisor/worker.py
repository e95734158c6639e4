"""The inside of a worker process of a supervisor. See :mod:`shmrpc.supervisor.supervisor`."""

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
from shmrpc.supervisor.config import ServeConfig, ServeError
from shmrpc.supervisor.runner import ServerRunner
from shmrpc.supervisor.targets import TargetImportError, load_services

logger = logging.getLogger("shmrpc.server")

#: Seconds until a message is sent again after the supervisor's socket was full.
_RETRY: Final = 0.1


class SupervisedWorker:
    """A worker that serves the clients of its supervisor. ``descriptor``: its end of their pair of sockets."""

    def __init__(self, descriptor: int) -> None:
        self._socket = socket.socket(fileno=descriptor)
        self._socket.set_inheritable(False)
        #: Closed to receive the next client: without a free descriptor the kernel drops the client.
        self._spare_descriptor = SpareDescriptor()
        self._spare_descriptor.open()
        #: Number of clients that were passed to this worker, including those that were lost on the way.
        self._adopted = 0
        #: Scheduled report of the connections to the supervisor.
        self._report_handle: asyncio.Handle | None = None
        self._log_throttle = LogThrottle()
        fork.abandon_in_child(self)

    def run(self) -> None:
        """Serve until a signal, the supervisor, or the supervisor's death ends the worker.

        Exits with code 1 if the services cannot be imported or served; the supervisor gets the reason, except for an
        exception of the user's code, which is printed. Returns at once if the supervisor has gone.
        """
        packet = b""
        with contextlib.suppress(ConnectionResetError):
            packet = self._socket.recv(messages.MAX_PACKET)
        if not packet:
            return
        config = msgspec.msgpack.decode(packet, type=ServeConfig)
        try:
            config.configure_logging()
            services = load_services(config.targets, config.app_dir)
            for service in services:
                self._send(messages.ServiceOffer(service.name, list(service.endpoints)))
            self._send(messages.ImportDone())
            if self._receive_message() is not None:
                self._server = config.make_server(services, adopting=True)
                self._runner = ServerRunner(self._server, config.grace, self._schedule_report)
                config.run(self._serve())
                self._handle_signals()
        except TargetImportError as error:
            print(f"Error: {error}", file=sys.stderr)  # noqa: T201
            sys.exit(1)
        except (ServeError, ShmrpcError) as error:
            self._send(messages.StartFailed(str(error), isinstance(error, ServeError) and error.is_usage))
            sys.exit(1)

    async def _serve(self) -> None:
        """Run the server in an event loop, and handle the messages of the supervisor."""
        self._loop = asyncio.get_running_loop()
        self._socket.setblocking(False)
        self._loop.add_reader(self._socket, self._on_message)
        self._handle_signals()
        try:
            await self._runner.run(self._on_ready)
        finally:
            self._loop.remove_reader(self._socket)
            if self._report_handle is not None:
                self._report_handle.cancel()

    def _handle_signals(self) -> None:
        """Install signal handlers: SIGTERM stops the server gracefully, and SIGQUIT stops the server at once."""
        # A second SIGTERM may be the same event as the first, sent by the supervisor and to the whole process group, so
        # only SIGQUIT stops at once.
        self._runner.handle_signals([signal.SIGTERM], at_once=[signal.SIGQUIT])

    def _on_ready(self) -> None:
        """Have the server report changes of its connections, and notify the supervisor that the worker serves."""
        self._server.watch(self._schedule_report)
        self._send(messages.Serving())

    def _send(self, message: messages.WorkerMessage) -> bool:
        """Send a message; return False if the socket is full. If the supervisor has gone, return True all the same."""
        try:
            self._socket.send(messages.encode(message))
        except BlockingIOError:
            return False
        except OSError:
            pass
        return True

    def _receive_message(self) -> tuple[messages.SupervisorMessage, list[int]] | None:
        """Return the next message with its descriptors, or None at the end; the caller closes the descriptors.

        Waits for a message until the event loop runs; from then on, raises BlockingIOError if there is none. The
        descriptor of a client is missing if this process could not take it, even with the spare descriptor.
        """
        self._spare_descriptor.close()
        try:
            packet, descriptors, _, _ = socket.recv_fds(self._socket, messages.MAX_PACKET, 1, socket.MSG_CMSG_CLOEXEC)
        except ConnectionResetError:
            return None
        finally:
            self._spare_descriptor.open()
        return (messages.decode_supervisor_message(packet), descriptors) if packet else None

    def _on_message(self) -> None:
        """Receive and handle one message of the supervisor, if one has arrived.

        Answers a status query, asks surplus clients to reconnect to another worker, or adopts a client. Logs the loss
        of a client whose descriptor did not arrive. Drains the server at the end of the connection, because the
        supervisor orders that, or has died.
        """
        try:
            received = self._receive_message()
        except BlockingIOError:
            return
        if received is None:
            self._loop.remove_reader(self._socket)
            self._runner.drain()
            return
        message, descriptors = received
        if isinstance(message, messages.StatusQuery):
            self._send_status_reply()
            return
        if isinstance(message, messages.ShedClients):
            self._server.shed(message.clients)
            return
        if isinstance(message, messages.AdoptClient):
            self._adopted += 1  # Also if the client is lost: the supervisor counts the clients that it has passed.
            if descriptors:
                self._server.adopt(socket.socket(fileno=descriptors[0]), message.service)
            else:
                error = rendezvous.dropped_descriptors_error(self._socket)
                level = self._log_throttle.level_for(error.errno, logging.ERROR)
                logger.log(level, "a client was lost, and retries if it has a timeout: %s", error)
        self._schedule_report()

    def _send_status_reply(self) -> None:
        """Answer a status query: the reply, which is empty, shows that the worker runs and accepts clients.

        If the socket is full, try again after ``_RETRY`` seconds.
        """
        if not self._send(messages.StatusReply()):
            self._loop.call_later(_RETRY, self._send_status_reply)

    def _schedule_report(self) -> None:
        """Send a report of the connections in the next iteration of the event loop."""
        if self._report_handle is None:
            self._report_handle = self._loop.call_soon(self._send_report)

    def _send_report(self) -> None:
        """Send a report of the connections; try again later if the socket is full."""
        self._report_handle = None
        server = self._server
        report = messages.ConnectionReport(
            self._adopted, server.arriving, server.connections_by_service, self._runner.is_draining
        )
        if not self._send(report):
            self._report_handle = self._loop.call_later(_RETRY, self._send_report)

    def abandon(self) -> None:
        """Close the descriptors in a forked child, which is no worker."""
        fork.close_socket(self._socket)
        self._spare_descriptor.close()


def main() -> None:
    """Run the worker process, whose first argument is the descriptor of its socket to the supervisor.

    Ignore SIGINT and SIGHUP, which the supervisor handles; exit at once on SIGQUIT until the loop handles the signal.
    """
    # A terminal sends these signals to all processes. The supervisor decides what they do.
    numbers = [signal.SIGINT, signal.SIGHUP]
    for number in numbers:
        signal.signal(number, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, numbers)
    signal.signal(signal.SIGQUIT, lambda *_: os._exit(0))  # Until the loop has its own handler; the default dumps core.
    SupervisedWorker(int(sys.argv[1])).run()
