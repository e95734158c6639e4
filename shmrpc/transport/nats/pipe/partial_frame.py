"""A frame of which parts have come."""

from __future__ import annotations

import struct
from typing import Final

from shmrpc import _core
from shmrpc.errors import RemoteProtocolError
from shmrpc.wire.codec import Body

#: Bytes of a part that is kept within its message; of a smaller one a copy is kept, since each object takes memory too.
_LARGE: Final = 16 << 10


class PartialFrame:
    """A frame of which parts have come: the sizes of its buffers, the body, and the buffers."""

    def __init__(self, opcode: int, call_id: int, size: int, count: int, max_memory: int) -> None:
        self.opcode, self.call_id = opcode, call_id
        self._max_memory = max_memory
        self._sizes = [8 * count, size]
        #: The bytes of each that have come. Large parts keep their messages; in the end all are copied once.
        self._parts: list[list[memoryview | bytearray]] = [[], []]
        self._place = 0
        self._missing = 8 * count
        self._resume()

    def _resume(self) -> None:
        """Goes on to the next part that is not whole."""
        while not self._missing and self._place < len(self._sizes):
            if not self._place:
                self._read_sizes()
            self._place += 1
            self._missing = self._sizes[self._place] if self._place < len(self._sizes) else 0

    def _read_sizes(self) -> None:
        table = b"".join(self._parts[0])
        sizes = struct.unpack(f"<{len(table) // 8}Q", table)
        if sum(sizes) > self._max_memory:
            raise RemoteProtocolError(f"it sent buffers of {sum(sizes):,} bytes, max_memory={self._max_memory:,}")
        self._sizes += sizes
        self._parts += ([] for _ in sizes)

    @property
    def is_whole(self) -> bool:
        """True once the whole frame is there."""
        return self._place == len(self._sizes)

    def fill(self, data: memoryview) -> int:
        """Takes what belongs to it; how many bytes. Raises RemoteProtocolError if its buffers are too large."""
        used = 0
        while used < len(data) and not self.is_whole:
            step = min(self._missing, len(data) - used)
            self._keep(data[used : used + step])
            self._missing -= step
            used += step
            self._resume()
        return used

    def _keep(self, data: memoryview) -> None:
        parts = self._parts[self._place]
        if len(data) >= _LARGE:
            parts.append(data)
        elif parts and isinstance(parts[-1], bytearray):
            parts[-1] += data
        else:
            parts.append(bytearray(data))

    def body(self) -> Body:
        """The body, with its buffers."""
        _, body, *buffers = map(b"".join, self._parts)
        return _core.Parcel(body, buffers) if buffers else body
