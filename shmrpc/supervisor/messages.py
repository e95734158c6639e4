"""What a supervisor and its workers tell each other, in packets of MessagePack on a pair of sockets.

The first packet is the :class:`~shmrpc.supervisor.config.Config`. The worker drains when the
supervisor closes its end.
"""

from __future__ import annotations

from typing import Final

import msgspec

#: The most bytes in a packet: more than any message has, also one with the endpoints of a service.
MAX_PACKET: Final = 256 << 10


class Begin(msgspec.Struct, tag="begin"):
    """To a worker: we hold the names; serve."""


class Ask(msgspec.Struct, tag="ask"):
    """To a worker, before a client is passed to it: are you there? It answers :class:`Here`."""


class Adopt(msgspec.Struct, tag="adopt"):
    """To a worker: serve a client. Descriptor: its control socket."""

    service: str


class Shed(msgspec.Struct, tag="shed"):
    """To a worker: let so many clients connect again, who then come to the least busy worker."""

    clients: int


class WillServe(msgspec.Struct, tag="will serve"):
    """From a worker: a service that it will serve."""

    service: str
    endpoints: list[str]


class Imported(msgspec.Struct, tag="imported"):
    """From a worker: everything is imported, and all that it will serve is said."""


class Serving(msgspec.Struct, tag="serving"):
    """From a worker: it serves."""


class Here(msgspec.Struct, tag="here"):
    """From a worker: it runs, and takes the clients that it is passed."""


class Connections(msgspec.Struct, tag="connections"):
    """From a worker: its connections, whenever they change."""

    #: How many clients were ever passed to it.
    adopted: int
    #: How many clients are about to be connected.
    arriving: int
    #: How many clients are connected, by service.
    connections: dict[str, int]
    #: Whether it takes no new clients.
    draining: bool


class Failed(msgspec.Struct, tag="failed"):
    """From a worker: why it cannot serve. It ends next."""

    reason: str
    #: True if the cause is a wrong target or option.
    is_usage: bool


Order = Begin | Ask | Adopt | Shed
News = WillServe | Imported | Serving | Here | Connections | Failed

encode = msgspec.msgpack.Encoder().encode
decode_order = msgspec.msgpack.Decoder[Order](Order).decode
decode_news = msgspec.msgpack.Decoder[News](News).decode
