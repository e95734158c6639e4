"""Memory that two sides lend each other, written from docs/wire.md alone. It uses nothing of shmrpc."""

from __future__ import annotations

import fcntl
import mmap
import os
import socket
import struct
from collections.abc import Sequence
from typing import Final, NamedTuple

#: The bit of an opcode's kind for a payload that is a parcel.
PARCEL: Final = 0x80
#: The opcode that returns a loan.
RELEASE: Final = 0xFF
#: Places of a buffer.
HERE, SENDER, RECEIVER = range(3)
#: Kinds of extent updates.
NEW, GONE = 1, 2
#: The seals that the owner of an extent sets.
SEALS: Final = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL
PAGE: Final = 4096

_HEAD: Final = struct.Struct("=II")
_ENTRY: Final = struct.Struct("=IIQQQ")
_RELEASE: Final = struct.Struct("=IIQ")
_NEWS: Final = struct.Struct("=IIQ")


class Entry(NamedTuple):
    """An entry of a parcel's table."""

    whose: int
    extent: int
    block: int
    start: int
    length: int


def here(data: bytes) -> Entry:
    """Return the entry of a buffer that lies in the frame."""
    return Entry(HERE, 0, 0, 0, len(data))


def parcel(entries: Sequence[Entry], body: bytes | None = b"\xc0", data: bytes = b"") -> bytes:
    """Return a parcel's payload; without a body, the first buffer is the body. ``data``: buffers in the frame."""
    table = b"".join(_ENTRY.pack(*entry) for entry in entries)
    return _HEAD.pack(len(entries), body is None) + table + (body or b"") + data


def parsed(payload: bytes) -> tuple[list[Entry], bytes | None, bytes]:
    """Split a payload into the arguments of ``parcel``."""
    count, first_is_body = _HEAD.unpack_from(payload)
    end = _HEAD.size + _ENTRY.size * count
    assert first_is_body in (0, 1) and count >= first_is_body and end <= len(payload)
    entries = [Entry(*fields) for fields in _ENTRY.iter_unpack(payload[_HEAD.size : end])]
    body_end = len(payload) - sum(entry.length for entry in entries if entry.whose == HERE)
    assert body_end >= end
    body = payload[end:body_end]
    assert not (first_is_body and body)
    return entries, None if first_is_body else body, payload[body_end:]


def release(extent: int, block: int) -> bytes:
    """Return the payload of a RELEASE."""
    return _RELEASE.pack(extent, 0, block)


def released(payload: bytes) -> tuple[int, int]:
    """Return extent and block of a RELEASE."""
    extent, _, block = _RELEASE.unpack(payload)
    return extent, block


def extent_update(kind: int, number: int, size: int) -> bytes:
    """Return a packet for the socket of extents."""
    return _NEWS.pack(kind, number, size)


class Extent:
    """An extent of this side, which must be announced to the peer."""

    def __init__(self, number: int, size: int, *, seals: int = SEALS, length: int | None = None) -> None:
        self.number = number
        self.size = size
        self.file = os.memfd_create("extent", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        os.posix_fallocate(self.file, 0, size if length is None else length)
        fcntl.fcntl(self.file, fcntl.F_ADD_SEALS, seals)
        self.memory = mmap.mmap(self.file, 0)

    def announce(self, to: socket.socket) -> None:
        """Announce the extent to the peer."""
        socket.send_fds(to, [extent_update(NEW, self.number, self.size)], [self.file])

    def lend(self, data: bytes, block: int = 0, start: int = 0) -> Entry:
        """Write bytes into a block; return the entry that lends it."""
        self.memory[block + start : block + start + len(data)] = data
        return Entry(SENDER, self.number, block, start, len(data))

    def read(self, entry: Entry) -> bytes:
        """Return a copy of a buffer that the peer sends back."""
        begin = entry.block + entry.start
        assert begin + entry.length <= len(self.memory)
        return self.memory[begin : begin + entry.length]

    def close(self) -> None:
        """Unmap the extent here; the peer keeps its mapping."""
        self.memory.close()
        os.close(self.file)


class Theirs:
    """The peer's extents, mapped read-only."""

    #: The protection of the mappings. The peer cannot prevent writes.
    access = mmap.PROT_READ

    def __init__(self, updates: socket.socket) -> None:
        self._updates = updates
        self._updates.setblocking(False)
        self.extents: dict[int, mmap.mmap] = {}
        #: The inode numbers of the extents' files.
        self.inodes: dict[int, int] = {}
        self.gone: list[int] = []

    def receive_updates(self) -> None:
        """Receive the pending extent updates."""
        while True:
            try:
                packet, files, _, _ = socket.recv_fds(self._updates, _NEWS.size + 1, 2, socket.MSG_CMSG_CLOEXEC)
            except (BlockingIOError, ConnectionResetError):
                return
            if not packet:
                return
            kind, number, size = _NEWS.unpack(packet)
            if kind == GONE:
                assert (size, files) == (0, [])
                self.extents.pop(number).close()
                self.gone.append(number)
                continue
            assert kind == NEW and number not in self.extents and number not in self.gone
            (file,) = files
            assert fcntl.fcntl(file, fcntl.F_GET_SEALS) & fcntl.F_SEAL_SHRINK
            assert os.fstat(file).st_size == size
            self.extents[number] = mmap.mmap(file, size, prot=self.access)
            self.inodes[number] = os.fstat(file).st_ino
            os.close(file)

    def read(self, entry: Entry) -> bytes:
        """Return a copy of a buffer that the peer has lent."""
        if entry.extent not in self.extents:
            self.receive_updates()
        memory, begin = self.extents[entry.extent], entry.block + entry.start
        assert begin + entry.length <= len(memory)
        return memory[begin : begin + entry.length]

    def close(self) -> None:
        for memory in self.extents.values():
            memory.close()
        self._updates.close()
