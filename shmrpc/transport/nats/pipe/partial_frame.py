"""A frame that arrives in parts."""

from __future__ import annotations

import struct
from typing import Final

from shmrpc import _core
from shmrpc.errors import RemoteProtocolError
from shmrpc.wire.codec import Body

#: Minimum bytes of a part that is kept within its message. Smaller parts are copied, because objects take memory, too.
_LARGE: Final = 16 << 10


class PartialFrame:
    """A partially received frame: the sizes of its buffers, the body, and the buffers."""

    def __init__(self, opcode: int, call_id: int, size: int, count: int, max_memory: int) -> None:
        self.opcode, self.call_id = opcode, call_id
        self._max_memory = max_memory
        self._sizes = [8 * count, size]
        #: Received bytes of each section. Large parts refer to their messages, and are copied once at the end.
        self._parts: list[list[memoryview | bytearray]] = [[], []]
        #: Index of the section that is being received, and its missing bytes.
        self._section = 0
        self._missing = 8 * count
        self._resume()

    def _resume(self) -> None:
        """Advance to the next incomplete section."""
        while not self._missing and self._section < len(self._sizes):
            if not self._section:
                self._read_sizes()
            self._section += 1
            self._missing = self._sizes[self._section] if self._section < len(self._sizes) else 0

    def _read_sizes(self) -> None:
        """Add a section for each buffer. Raises RemoteProtocolError for too large buffers."""
        table = b"".join(self._parts[0])
        sizes = struct.unpack(f"<{len(table) // 8}Q", table)
        if sum(sizes) > self._max_memory:
            raise RemoteProtocolError(f"it sent buffers of {sum(sizes):,} bytes, max_memory={self._max_memory:,}")
        self._sizes += sizes
        self._parts += ([] for _ in sizes)

    @property
    def is_complete(self) -> bool:
        """True once the frame is complete."""
        return self._section == len(self._sizes)

    def fill(self, data: memoryview) -> int:
        """Take the bytes of the frame at the start of ``data``; return their number.

        The frame may refer to ``data``, whose bytes must not change. Raises RemoteProtocolError for too large buffers.
        """
        used = 0
        while used < len(data) and not self.is_complete:
            step = min(self._missing, len(data) - used)
            self._append(data[used : used + step])
            self._missing -= step
            used += step
            self._resume()
        return used

    def _append(self, data: memoryview) -> None:
        """Add bytes to the current section."""
        parts = self._parts[self._section]
        if len(data) >= _LARGE:
            parts.append(data)
        elif parts and isinstance(parts[-1], bytearray):
            parts[-1] += data
        else:
            parts.append(bytearray(data))

    def body(self) -> Body:
        """Return the body of a complete frame, with its buffers."""
        _, body, *buffers = map(b"".join, self._parts)
        return _core.Parcel(body, buffers) if buffers else body
