"""Helpers of tests of values: received bodies, and received memory without a transport."""

from __future__ import annotations

import mmap
import os
from typing import Any, Self

from shmrpc import _core
from shmrpc.wire.codec import Body, Codec


class FakeBlock(mmap.mmap):
    """Received memory: read-only bytes with the methods of a block."""

    descriptor: int

    def __new__(cls, data: Any) -> Self:
        descriptor = os.memfd_create("block", os.MFD_CLOEXEC)
        size = os.write(descriptor, memoryview(data).cast("B"))
        block = super().__new__(cls, descriptor, size, access=mmap.ACCESS_READ)
        block.descriptor = descriptor
        return block

    def __del__(self) -> None:
        os.close(self.descriptor)

    def to_bytes(self) -> bytes:
        return self[:]

    def private(self) -> mmap.mmap:
        return mmap.mmap(self.descriptor, len(self), access=mmap.ACCESS_COPY)

    def shared(self) -> mmap.mmap:
        return mmap.mmap(self.descriptor, len(self))


def carried(body: Body, *, in_blocks: bool = False) -> Body:
    """Return the body as its receiver gets it, with buffers as bytes or as blocks."""
    if isinstance(body, bytes):
        return body
    make: Any = FakeBlock if in_blocks else bytes
    return _core.Parcel(body.body, [make(memoryview(buffer)) for buffer in body.buffers])


def travelled(codec: Codec, value: Any, *, in_blocks: bool = False) -> Any:
    """Return the value as an untyped receiver gets it."""
    return codec.decode(carried(codec.encode(value), in_blocks=in_blocks))


def buffers_of(body: Body) -> tuple[Any, ...]:
    """Return the buffers that travel beside a body."""
    return () if isinstance(body, bytes) else body.buffers
