"""Messages between a pool, its fork server and a new worker, in packets of MessagePack."""

from __future__ import annotations

from typing import Final

import msgspec


class SpawnRequest(msgspec.Struct):
    """The first packet to a new worker; also a request to the fork server to fork one."""

    number: int
    #: Pickled data for multiprocessing's `spawn.prepare()`, by which the worker finds `__main__`.
    preparation: bytes
    #: CPU to which the worker is pinned.
    cpu: int | None
    #: Maximum bytes of data.
    memory: int | None
    #: True if classes of the program go by value, because workers cannot import the program.
    by_value: bool


class ForkServerSetup(msgspec.Struct):
    """The first packet to a fork server."""

    preparation: bytes
    #: True if the fork server imports the program, for all workers.
    imports_program: bool


class Compatible(msgspec.Struct, tag=True):
    """Answer of a fork server that can fork workers."""


class Incompatible(msgspec.Struct, tag=True):
    """Answer of a fork server that cannot fork workers, and ends."""

    reason: str


class Forked(msgspec.Struct, tag=True):
    """Answer of a fork server that has forked a worker, whose pidfd comes with the packet."""

    pid: int


class ForkFailed(msgspec.Struct, tag=True):
    """Answer of a fork server that could not fork a worker."""

    errno: int
    reason: str


class WorkerExited(msgspec.Struct, tag=True):
    """Notice of a fork server that a worker has ended."""

    pid: int
    #: Exit status, or the negative number of a signal.
    status: int


ForkServerMessage = Compatible | Incompatible | Forked | ForkFailed | WorkerExited

encode: Final = msgspec.msgpack.Encoder().encode
decode_message: Final = msgspec.msgpack.Decoder[ForkServerMessage](ForkServerMessage).decode
decode_request: Final = msgspec.msgpack.Decoder(SpawnRequest).decode
decode_setup: Final = msgspec.msgpack.Decoder(ForkServerSetup).decode
