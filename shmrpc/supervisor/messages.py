"""Messages between a supervisor and its workers, in packets of MessagePack on a pair of sockets.

The first packet is the :class:`~shmrpc.supervisor.config.ServeConfig`. A worker drains when the supervisor closes its
end of the pair.
"""

from __future__ import annotations

from typing import Final

import msgspec

#: Maximum bytes of a packet: more than any message has, including the endpoints of a service.
MAX_PACKET: Final = 256 << 10


class StartServing(msgspec.Struct, tag="begin"):
    """Order to a worker to serve: the supervisor holds the names of the services."""


class StatusQuery(msgspec.Struct, tag="ask"):
    """Question to a worker before it gets a client. The worker answers with a :class:`StatusReply`."""


class AdoptClient(msgspec.Struct, tag="adopt"):
    """Order to a worker to serve a client, whose control socket comes with the packet."""

    service: str


class ShedClients(msgspec.Struct, tag="shed"):
    """Order to a worker to have clients reconnect, which then come to the least busy worker."""

    #: Number of clients.
    clients: int


class ServiceOffer(msgspec.Struct, tag="will serve"):
    """Notice of a worker that it will serve a service."""

    service: str
    endpoints: list[str]


class ImportDone(msgspec.Struct, tag="imported"):
    """Notice of a worker that it has imported everything, and has sent all its offers."""


class Serving(msgspec.Struct, tag="serving"):
    """Notice of a worker that it serves."""


class StatusReply(msgspec.Struct, tag="here"):
    """Answer of a worker that runs and accepts clients."""


class ConnectionReport(msgspec.Struct, tag="connections"):
    """Notice of a worker whenever its connections change."""

    #: Number of clients that were ever passed to the worker.
    adopted: int
    #: Number of clients that are about to be connected.
    arriving: int
    #: Number of connected clients by service.
    connections: dict[str, int]
    #: True if the worker accepts no new clients.
    draining: bool


class StartFailed(msgspec.Struct, tag="failed"):
    """Notice of a worker that cannot serve, and ends."""

    reason: str
    #: True if the cause is a wrong target or option.
    is_usage: bool


SupervisorMessage = StartServing | StatusQuery | AdoptClient | ShedClients
WorkerMessage = ServiceOffer | ImportDone | Serving | StatusReply | ConnectionReport | StartFailed

encode = msgspec.msgpack.Encoder().encode
decode_supervisor_message = msgspec.msgpack.Decoder[SupervisorMessage](SupervisorMessage).decode
decode_worker_message = msgspec.msgpack.Decoder[WorkerMessage](WorkerMessage).decode
