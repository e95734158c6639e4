"""A client in plain Python, written from docs/wire.md alone, without any code of shmrpc.

The client has no memory to lend, unless a test makes an extent for it. It copies received loans and returns them at
once, unless a test makes it keep them.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import select
import socket
import stat
import struct
import threading
import time
from pathlib import Path
from typing import Any, Final

import msgpack
import posix_ipc

from tests.helpers.wire_memory import (
    HERE,
    PARCEL,
    RECEIVER,
    RELEASE,
    SENDER,
    Entry,
    Extent,
    Theirs,
    parsed,
    release,
    released,
)

MAX_MESSAGE: Final = 131_072
RESULT, FAILURE, CALL, CALL_KEYWORDS, CALL_DEADLINE, CALL_WITH, BATCH, DESCRIBE = range(8)
CANCEL, ITEM, END, ABORT, STOP, CREDIT, RESULT_WITH, METADATA = range(8, 16)
#: The number in a BATCH whose calls name their endpoints themselves.
ANY: Final = 0xFF_FFFF
#: The first credit of a stream, and the cost of an item beside the bytes of its body: a fixed sum, and one for so
#: many bytes of its buffers.
WINDOW, OVERHEAD, BUFFER_BYTES_PER_BYTE = 131_072, 48, 16
AWAKE, ON_BELL, ON_SEMAPHORE = range(3)
TAIL, HEAD, READER_WAITS, WRITER_WAITS = 0, 128, 256, 384
DATA: Final = 2048
#: The opcode of the frame that announces that the ring has grown.
GROW: Final = 0x1FF
#: Offsets: control of ring 0, bytes of one control, the four words in it, data; bytes of a word and of a header; offset
#: of the initial capacity.
LAYOUT: Final = (128, 512, TAIL, HEAD, READER_WAITS, WRITER_WAITS, DATA, 8, 16, 40)

Frame = tuple[int, int, bytes]


class Failed(Exception):
    """Raised for a FAILURE; ``map`` is its body."""

    def __init__(self, failure: dict[str, Any]) -> None:
        super().__init__(failure["message"])
        self.map = failure


class Gone(Exception):
    """Raised when the server closes; ``message`` is its last packet, or None."""

    def __init__(self, message: dict[str, Any] | None) -> None:
        super().__init__(str(message))
        self.message = message


def signature(numbers: tuple[int, ...] = LAYOUT) -> int:
    """Return FNV-1a, 64 bits, over the numbers as eight little-endian bytes each."""
    value = 0xCBF29CE484222325
    for byte in b"".join(struct.pack("<Q", number) for number in numbers):
        value = (value ^ byte) * 0x100000001B3 % 2**64
    return value


def padded(length: int) -> int:
    return (length + 7) // 8 * 8


def frame(opcode: int, call_id: int, body: bytes) -> bytes:
    """Return a frame as it is stored in a ring."""
    return struct.pack("=QQ", len(body) | opcode << 32, call_id) + body.ljust(padded(len(body)), b"\0")


#: Codes of the extensions that the client reads: three with bytes or the index of a buffer as payload, and the tuple.
BYTES, BYTEARRAY, MEMORYVIEW, TUPLE = 1, 2, 3, 20


class Parcel(bytes):
    """A body with its buffers and the entries of its table; the body's own entry comes first, if any."""

    buffers: list[bytes]
    entries: list[Entry]


def unpacked(body: bytes) -> Any:
    """Decode a body; keep extensions that this client does not know."""

    def extension(code: int, payload: bytes) -> Any:
        if code not in (BYTES, BYTEARRAY, MEMORYVIEW, TUPLE):
            return msgpack.ExtType(code, payload)
        value = msgpack.unpackb(payload, strict_map_key=False, ext_hook=extension)
        if code == TUPLE:
            return tuple(value)
        data = value[0] if isinstance(value, list) else value
        return body.buffers[data] if isinstance(body, Parcel) and isinstance(data, int) else data

    return msgpack.unpackb(body, strict_map_key=False, ext_hook=extension)


def extension(code: int, content: Any) -> msgpack.ExtType:
    """Return an extension that holds a value."""
    return msgpack.ExtType(code, msgpack.packb(content))


def fence() -> None:
    """Execute a sequentially consistent fence: on x86, taking a lock is one, and Python has no other."""
    with threading.Lock():
        pass


class Control:
    """The control socket, for packets and descriptors."""

    def __init__(self, service: str) -> None:
        shared, base = os.environ.get("SHMRPC_DIRECTORY"), os.environ.get("XDG_RUNTIME_DIR")
        directory = Path(base) / "shmrpc" if base else Path(f"/tmp/shmrpc-{os.geteuid()}")
        if shared:
            directory = Path(shared)
        status = os.lstat(directory)
        assert stat.S_ISDIR(status.st_mode)
        if shared:
            assert directory.is_absolute()
            assert status.st_uid in (0, os.geteuid())
            assert not status.st_mode & 0o022 or status.st_mode & stat.S_ISVTX
        else:
            assert status.st_uid == os.geteuid()
            assert stat.S_IMODE(status.st_mode) & 0o077 == 0
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.socket.settimeout(30)
        self.socket.connect(str(directory / f"{service}.sock"))
        _, self.uid, _ = struct.unpack("iII", self.socket.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
        assert self.uid in (0, os.geteuid())

    def send(self, kind: str, **fields: Any) -> None:
        self.socket.send(msgpack.packb({"type": kind, **fields}))

    def receive(self) -> tuple[dict[str, Any], list[int]]:
        """Return the next message and its descriptors; raise Gone at the end."""
        try:
            packet, descriptors, _, _ = socket.recv_fds(self.socket, MAX_MESSAGE, 8, socket.MSG_CMSG_CLOEXEC)
        except ConnectionResetError:
            raise Gone(None) from None
        if not packet:
            raise Gone(None)
        return unpacked(packet), descriptors

    def expect(self, kind: str) -> tuple[dict[str, Any], list[int]]:
        message, descriptors = self.receive()
        if message["type"] != kind:
            raise Gone(message)
        return message, descriptors


class Ring:
    """One ring of the segment, with this side's own index and the last one that the peer announced."""

    def __init__(self, segment: memoryview, number: int, capacity: int, used: int) -> None:
        control, data = 128 + 512 * number, DATA + capacity * number
        self.capacity = capacity
        #: Bytes in use, and the shift of an index before it is taken modulo these.
        self.used, self.shift = used, 0
        #: The first index after the last growth, and the bytes in use before.
        self.grown_at, self.grown_from = 0, used
        self.start = data
        self.tail = self.head = 0
        self._data = segment[data : data + capacity]
        # Whole words, so that each is one load or one store.
        self._indices = segment[control : control + 512].cast("Q")
        self._flags = segment[control : control + 512].cast("I")

    def room(self) -> int:
        """Return the writer's number of free bytes."""
        head = self._indices[HEAD // 8]
        assert head % 8 == 0
        assert self.head <= head <= self.tail
        self.head = head
        return self._limit() - self.tail

    def _limit(self) -> int:
        """Return the limit of the tail, which keeps room for the frame that announces a larger ring."""
        least = self.grown_at - self.grown_from if self.head < self.grown_at else self.head
        return least + self.used - (16 if self.used < self.capacity else 0)

    def grow(self, used: int) -> None:
        """Grow the ring from this side's index on to so many bytes in use, on both sides."""
        assert used.bit_count() == 1
        assert self.used < used <= self.capacity
        index = self.tail if self.writes else self.head
        self.grown_at, self.grown_from = index, self.used
        self.shift, self.used = self.used - index, used

    #: True if this side writes the ring.
    writes = False

    def put(self, data: memoryview) -> None:
        """Write whole words, then the tail that announces them."""
        at = (self.tail + self.shift) % self.used
        first = min(len(data), self.used - at)
        self._data[at : at + first] = data[:first]
        self._data[: len(data) - first] = data[first:]
        self.announce_tail(self.tail + len(data))

    def announce_tail(self, tail: int) -> None:
        self.tail = tail
        self._indices[TAIL // 8] = tail

    def available(self) -> int:
        """Return the reader's number of available bytes."""
        tail = self._indices[TAIL // 8]
        assert tail % 8 == 0
        assert self.tail <= tail <= self.head + self.capacity
        self.tail = tail
        return self.tail - self.head

    def get(self, length: int) -> bytes:
        """Copy whole words out, then release their room."""
        at = (self.head + self.shift) % self.used
        first = min(length, self.used - at)
        data = bytes(self._data[at : at + first]) + bytes(self._data[: length - first])
        self.announce_head(self.head + length)
        return data

    def announce_head(self, head: int) -> None:
        self.head = head
        self._indices[HEAD // 8] = head

    def set_flag(self, which: int, how: int) -> None:
        self._flags[which // 4] = how

    def flag(self, which: int) -> int:
        return self._flags[which // 4]

    def claim(self, which: int) -> int:
        """Return the object that the peer sleeps on, after a change; the caller must ring it."""
        fence()
        how = self._flags[which // 4]
        if how != AWAKE:
            self._flags[which // 4] = AWAKE
        return how

    def release(self) -> None:
        for view in (self._data, self._indices, self._flags):
            view.release()


class WireClient:
    """A connection. ``how`` is the object that the client sleeps on; ``semaphores`` requests semaphores in any case."""

    def __init__(
        self,
        service: str,
        *,
        how: int = ON_BELL,
        max_frame: int = 64 << 20,
        pickle: bool = False,
        semaphores: bool = False,
    ) -> None:
        self.how = how
        self._asked = semaphores or how == ON_SEMAPHORE
        self.sleeps = 0
        self._ids = 0
        self._unsent: list[tuple[memoryview, int]] = []
        self._header: tuple[int, int, int] | None = None
        self._body = bytearray()
        self._ended: Gone | None = None
        self.was_asked_to_leave = False
        #: True if the client returns loans as soon as it has copied them.
        self.gives_back = True
        #: Our loans that the server has returned: extent and block.
        self.given_back: list[tuple[int, int]] = []
        self._own: dict[int, Extent] = {}
        self.control = Control(service)
        self.control.send("hello", version=5, max_frame=max_frame, pickle=pickle, semaphores=self._asked)
        self.welcome, descriptors = self.control.expect("welcome")
        self.bell, self.updates = (socket.socket(fileno=each) for each in descriptors)
        self.theirs = Theirs(self.updates)
        self._map()
        self._semaphore = posix_ipc.Semaphore(f"/{self.welcome['semaphores'][1]}") if how == ON_SEMAPHORE else None
        self.control.send("confirm")

    def _map(self) -> None:
        capacity = self.welcome["capacity"]
        assert 1024 <= capacity <= 1 << 30
        assert capacity.bit_count() == 1
        segment = os.open(f"/dev/shm/{self.welcome['segment']}", os.O_RDWR | os.O_NOFOLLOW)
        try:
            assert os.fstat(segment).st_uid == self.control.uid
            assert (self.welcome["semaphores"] is not None) == self._asked
            for name, end in zip(self.welcome["semaphores"] or (), (".c2s", ".s2c"), strict=False):
                assert name == self.welcome["segment"] + end
                assert os.lstat(f"/dev/shm/sem.{name}").st_uid == self.control.uid
            size = os.fstat(segment).st_size
            assert size == DATA + 2 * capacity
            self._mmap = mmap.mmap(segment, size)
        except BaseException:
            os.close(segment)
            raise
        self._segment = segment
        self.header = struct.unpack_from("=8sIIQQIII", self._mmap)
        assert self.header[:-1] == (b"shmrpc\0\1", 2, 1, size, signature(), 1, capacity)
        first = self.header[-1]
        assert first.bit_count() == 1
        assert 1024 <= first <= capacity
        self._view = memoryview(self._mmap)
        self.out, self.into = (Ring(self._view, number, capacity, first) for number in (0, 1))
        self.out.writes = True

    def grow(self, used: int) -> None:
        """Grow our ring to so many bytes in use. All frames must be sent before."""
        assert not self._unsent
        os.posix_fallocate(self._segment, self.out.start + self.out.used, used - self.out.used)
        self.out.put(memoryview(frame(GROW, used, b"")))
        self.out.grow(used)

    def call(self, endpoint: str, *args: Any, **kwargs: Any) -> Any:
        """Call and wait; return the result or raise Failed."""
        return self.answer(self.request(endpoint, *args, **kwargs))

    def request(self, endpoint: str, *args: Any, **kwargs: Any) -> int:
        """Send a call without waiting; return its id."""
        kind, arguments = (CALL_KEYWORDS, [args, kwargs]) if kwargs else (CALL, args)
        return self.ask(kind, endpoint, arguments)

    def request_with(self, header: dict[str, Any], endpoint: str, *args: Any, **kwargs: Any) -> int:
        """Send a call with a header, without waiting; return its id."""
        return self.ask(CALL_WITH, endpoint, [header, args, kwargs])

    def ask(self, kind: int, endpoint: str, value: Any) -> int:
        """Send any request to an endpoint; return the call's id."""
        return self.send(kind | self.number(endpoint) << 8, msgpack.packb(value))

    def number(self, endpoint: str) -> int:
        number: int = self.welcome["endpoints"].index(endpoint)
        return number

    def part(self, kind: int, call_id: int, value: Any = None, stream: int = 0) -> None:
        """Send a frame that belongs to an in-flight call or to one of its streams."""
        self.send(kind | stream << 8, msgpack.packb(value), call_id)

    def expect(self, kind: int, call_id: int, stream: int = 0) -> Any:
        """Return the value of the next frame, which must be of this kind and call."""
        opcode, answered, body = self.receive()
        assert (opcode & 0xFF, opcode >> 8, answered) == (kind, stream, call_id), (opcode, answered, body)
        return unpacked(body)

    def answer(self, call_id: int) -> Any:
        """Return the result in the next frame, which must answer this call; raise Failed for a failure."""
        opcode, answered, body = self.receive()
        assert answered == call_id
        return self.read(opcode, body)

    @staticmethod
    def read(opcode: int, body: bytes) -> Any:
        assert opcode in (RESULT, FAILURE)
        value = unpacked(body)
        if opcode == FAILURE:
            raise Failed(value)
        return value

    def send(self, opcode: int, body: bytes, call_id: int | None = None) -> int:
        """Send a request or a part of one, as far as there is room; return its id."""
        if call_id is None:
            self._ids += 1
            call_id = self._ids
        assert len(body) <= self.welcome["max_frame"]
        whole = frame(opcode, call_id, body)
        # A frame of up to half of the bytes in use is sent whole; the first piece of a longer one has the header.
        least = len(whole) if len(whole) <= self.out.used // 2 else 16
        self._unsent.append((memoryview(whole), least))
        self.push()
        return call_id

    def receive(self, timeout: float = 30) -> Frame:
        """Return the next frame: opcode, id and body, also from a parcel. Send pending bytes meanwhile."""
        deadline = time.monotonic() + timeout
        while True:
            self.push()
            frame = self._pull()
            if frame is not None and frame[0] == RELEASE:
                assert frame[1] == 0
                self.given_back.append(released(frame[2]))
                continue
            if frame is not None:
                return self._open(*frame)
            if self._ended is not None:
                raise self._ended
            self._park(deadline - time.monotonic())

    def push(self) -> None:
        """Send what has waited for room, as far as there is room now."""
        while self._unsent:
            frame, least = self._unsent.pop(0)
            piece = min(len(frame), self.out.room())
            if piece < least:
                self._unsent.insert(0, (frame, least))
                return
            self.out.put(frame[:piece])
            self._wake(self.out.claim(READER_WAITS))
            if piece < len(frame):
                self._unsent.insert(0, (frame[piece:], 8))

    def _pull(self) -> Frame | None:
        while self._header is None and self.into.available() >= 16:
            first, call_id = struct.unpack("=QQ", self.into.get(16))
            if first >> 32 == GROW:
                assert first & 0xFFFF_FFFF == 0
                self.into.grow(call_id)
                continue
            self._header = first >> 32, call_id, first & 0xFFFF_FFFF
            assert self._header[2] <= self.welcome["max_frame"]
        if self._header is None:
            return None
        opcode, call_id, length = self._header
        while len(self._body) < padded(length) and self.into.available():
            self._body += self.into.get(min(self.into.available(), padded(length) - len(self._body)))
            self._wake_writer()
        if len(self._body) < padded(length):
            return None
        body = bytes(self._body[:length])
        self._header, self._body = None, bytearray()
        self._wake_writer()
        return opcode, call_id, body

    def _open(self, opcode: int, call_id: int, payload: bytes) -> Frame:
        """Return a frame with its body, which may lie in an extent."""
        if not opcode & PARCEL:
            return opcode, call_id, payload
        entries, body, data = parsed(payload)
        buffers = []
        for entry in entries:
            if entry.whose == HERE:
                buffers.append(data[: entry.length])
                data = data[entry.length :]
            elif entry.whose == SENDER:
                buffers.append(self.theirs.read(entry))
                if self.gives_back:
                    self.give_back(entry)
            else:
                assert entry.whose == RECEIVER
                buffers.append(self._own[entry.extent].read(entry))
        came = Parcel(buffers.pop(0) if body is None else body)
        assert len(came) <= self.welcome["max_frame"]
        came.buffers, came.entries = buffers, entries
        return opcode ^ PARCEL, call_id, came

    def give_back(self, lent: Entry) -> None:
        """Return a loan."""
        assert lent.whose == SENDER
        self.send(RELEASE, release(lent.extent, lent.block), 0)

    def extent(self, number: int = 0, size: int = 1 << 20) -> Extent:
        """Make memory to lend, and announce it to the server."""
        extent = self._own[number] = Extent(number, size)
        extent.announce(self.updates)
        return extent

    def _park(self, seconds: float) -> None:
        """Announce the sleep, check again, and sleep."""
        if seconds <= 0:
            raise TimeoutError
        self.into.set_flag(READER_WAITS, self.how)
        if self._unsent:
            self.out.set_flag(WRITER_WAITS, self.how)
        fence()
        self._wake_writer()
        if not (self.into.available() or (self._unsent and self.out.room() >= self.out.used // 2)):
            self._sleep(seconds)
        self.into.set_flag(READER_WAITS, AWAKE)
        self.out.set_flag(WRITER_WAITS, AWAKE)

    def _sleep(self, seconds: float) -> None:
        self.sleeps += 1
        poll = select.poll()
        poll.register(self.control.socket, select.POLLIN)
        if self._semaphore is not None:
            try:
                self._semaphore.acquire(seconds)
            except posix_ipc.BusyError:
                raise TimeoutError from None
            seconds = 0
        else:
            poll.register(self.bell, select.POLLIN)
        ready = [descriptor for descriptor, _ in poll.poll(seconds * 1000)]
        if self.bell.fileno() in ready:
            with contextlib.suppress(BlockingIOError, ConnectionResetError):  # The control socket reports the end.
                self.bell.recv(1, socket.MSG_DONTWAIT)
        if self.control.socket.fileno() in ready:
            try:
                message, _ = self.control.receive()
                if message["type"] == "goaway":
                    self.was_asked_to_leave = True
                else:
                    self._ended = Gone(message)
            except Gone as gone:
                self._ended = gone

    def _wake_writer(self) -> None:
        if self.into.available() <= self.into.used // 2:
            self._wake(self.into.claim(WRITER_WAITS))

    def _wake(self, how: int) -> None:
        assert how in (AWAKE, ON_BELL), "a server sleeps at the bell"
        if how == ON_BELL:
            self.wake_server()

    def wake_server(self) -> None:
        with contextlib.suppress(BlockingIOError, BrokenPipeError, ConnectionResetError):
            self.bell.send(b"\1", socket.MSG_DONTWAIT)

    def close(self, **goodbye: Any) -> None:
        """Send goodbye and return all loans."""
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            self.control.send("goodbye", **(goodbye or {"reason": "done"}))
        self.control.socket.close()
        self.bell.close()
        for extent in self._own.values():
            extent.close()
        self.theirs.close()
        if self._semaphore is not None:
            self._semaphore.close()
        for ring in (self.out, self.into):
            ring.release()
        self._view.release()
        self._mmap.close()
        os.close(self._segment)

    def __enter__(self) -> WireClient:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()
