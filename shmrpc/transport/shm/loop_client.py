"""Connecting to a service over shared memory, in an event loop."""

from __future__ import annotations

import asyncio
import os
import socket
from typing import Final

from shmrpc.basics.loops import running_loop
from shmrpc.errors import ConnectionLost
from shmrpc.host import rendezvous
from shmrpc.host.connect_retry import ConnectRetry, OnRetry
from shmrpc.transport.connection_options import ConnectionOptions
from shmrpc.transport.shm import handshake
from shmrpc.transport.shm.loop_connection import LoopConnection

#: Seconds for a process that has inherited a connection to answer, because it may have to import many modules.
INHERITED_TIMEOUT: Final = 60.0


async def connect(
    service: str, timeout: float | None, note: OnRetry = lambda reason: None, *, options: ConnectionOptions
) -> LoopConnection:
    """Connect to a service within ``timeout`` seconds; None: no limit. For 0 see :class:`ConnectRetry`.

    ``note`` is called with the reason after each failed attempt, "" without a server, and during one that waits. Raises
    ServiceUnavailable if no server takes the client in time, or if one refuses; LocalProtocolError if the server's user
    is not trusted or the directory is not safe; RemoteProtocolError if the server breaks a rule; SharedMemoryError if
    this process lacks a resource; ValueError or TypeError for an invalid name.
    """
    retry = ConnectRetry(service, timeout, options.users, note)
    while True:
        dialled = retry.dial()
        if dialled is not None:
            try:
                return await _run_handshake(dialled, options, retry)
            except ConnectionLost as error:  # The server is about to leave or to appear.
                retry.record_failure(error)
        await asyncio.sleep(retry.next_pause())


async def inherit(control_socket: socket.socket, service: str, options: ConnectionOptions) -> LoopConnection:
    """Connect to the process that inherited the other end of a socket pair.

    The connection owns the socket, which is closed on failure. Raises ConnectionLost if that process has left, or does
    not answer within INHERITED_TIMEOUT seconds, and otherwise as :func:`handshake.connect_client` does.
    """
    retry = ConnectRetry(service, INHERITED_TIMEOUT, step_timeout=INHERITED_TIMEOUT)
    return await _run_handshake(control_socket, options, retry)


async def _run_handshake(dialled: socket.socket, options: ConnectionOptions, retry: ConnectRetry) -> LoopConnection:
    """Run the handshake, and return the connection; close the socket if that fails.

    Raises as :func:`handshake.connect_client` does.
    """
    steps = handshake.connect_client(dialled, options, retry, blocking=False)
    loop = running_loop()
    try:
        step = next(steps)
        while not isinstance(step, handshake.Established):
            step = steps.send(await _receive_answer(dialled, step, retry, options, loop))
        return LoopConnection(dialled, step)
    except BaseException:
        steps.close()
        dialled.close()
        raise


async def _receive_answer(
    dialled: socket.socket,
    pid: int,
    retry: ConnectRetry,
    options: ConnectionOptions,
    loop: asyncio.AbstractEventLoop,
) -> rendezvous.Packet | None:
    """Return the next packet, which is empty at the end; None if none arrives in time."""
    if pid != os.getpid():  # This process may need the loop, or this thread, to answer.
        answer = handshake.receive_in_place(dialled, options)
        if answer is not None:
            return answer
    limit = retry.welcome_timeout(pid)
    readable: asyncio.Future[bool] = loop.create_future()
    timer = loop.call_later(limit, _resolve, readable, False)
    try:
        # The number, because the loop would build a text with both addresses of a new socket object.
        loop.add_reader(dialled.fileno(), _resolve, readable, True)
        return rendezvous.receive_packet(dialled) if await readable else None
    finally:
        timer.cancel()
        loop.remove_reader(dialled.fileno())


def _resolve(future: asyncio.Future[bool], result: bool) -> None:
    """Set the result of a future that is not done."""
    if not future.done():
        future.set_result(result)
