"""What a supervisor and its workers tell each other: packets of MessagePack on a pair of sockets.

The first packet is the :class:`~shmrpc.supervisor.config.Config`. The end of the supervisor's side tells a worker to
drain.
"""

from __future__ import annotations

from typing import Final

import msgspec

#: Bytes of one packet: more than any message has, the endpoints of one service included.
MAX_PACKET: Final = 256 << 10


class Begin(msgspec.Struct, tag="begin"):
    """To a worker: the names are ours, serve."""


class Ask(msgspec.Struct, tag="ask"):
    """To a worker: are you there? Answered by :class:`Here`, before a client is passed on."""


class Adopt(msgspec.Struct, tag="adopt"):
    """To a worker: serve a client. Descriptor: its control socket."""

    service: str


class Offer(msgspec.Struct, tag="offer"):
    """From a worker: a service that it will serve."""

    service: str
    endpoints: list[str]


class Imported(msgspec.Struct, tag="imported"):
    """From a worker: all is imported, and the offers are complete."""


class Ready(msgspec.Struct, tag="ready"):
    """From a worker: it serves."""


class Here(msgspec.Struct, tag="here"):
    """From a worker: it runs, and takes what it is passed."""


class Connections(msgspec.Struct, tag="load"):
    """From a worker, whenever this changes."""

    #: Clients that were ever passed to it.
    adopted: int
    #: Those that are about to be connected.
    arriving: int
    #: By service, those that are connected.
    connections: dict[str, int]
    draining: bool


class Failed(msgspec.Struct, tag="failed"):
    """From a worker: it cannot serve, and why. It ends next."""

    reason: str


Order = Begin | Ask | Adopt
News = Offer | Imported | Ready | Here | Connections | Failed

encode = msgspec.msgpack.Encoder().encode
decode_order = msgspec.msgpack.Decoder[Order](Order).decode
decode_news = msgspec.msgpack.Decoder[News](News).decode
