"""A peer that overwrites all shared memory at random: its connection may end, and no other.

The memory is the segment, both semaphores, and the blocks that either side lends; at rest and while traffic runs.
"""

from __future__ import annotations

import asyncio
import contextlib
import mmap
import os
import random
import socket
import struct
import threading
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import msgpack
import numpy as np
import pytest

import shmrpc
from shmrpc import _core
from shmrpc.transport.connection_options import ConnectionOptions
from shmrpc.transport.listener import Offer
from shmrpc.transport.shm import handshake
from shmrpc.wire import control
from tests.helpers.scale import scaled
from tests.helpers.server_process import eventually
from tests.helpers.wire_client import (
    BYTES,
    CALL,
    ON_BELL,
    ON_SEMAPHORE,
    READER_WAITS,
    Gone,
    WireClient,
    extension,
    frame,
)
from tests.helpers.wire_memory import PARCEL, Theirs, parcel
from tests.reliability import figures
from tests.reliability.hostile.hostile_peers import Polite, Watched, served, word

#: Offsets of the most important words: both rings' control, and the beginning of each one's data.
CONTROL = [*range(128, 1152, 128)]


#: Bytes from which on the other side answers with a loan.
LARGE = 50_000


class Writable(Theirs):
    """The server's extents, mapped writable."""

    access = mmap.PROT_READ | mmap.PROT_WRITE


class Sharing(WireClient):
    """A client with writable mappings of all memory that it shares with the server."""

    def _map(self) -> None:
        super()._map()
        self.theirs = Writable(self.updates)
        names = self.welcome["semaphores"]
        opened = [os.open(f"/dev/shm/sem.{name}", os.O_RDWR) for name in names]
        self.semaphores = [mmap.mmap(descriptor, 0) for descriptor in opened]
        for descriptor in opened:
            os.close(descriptor)

    def close(self, **goodbye: object) -> None:
        super().close(**goodbye)
        for semaphore in self.semaphores:
            semaphore.close()


class Overwriter:
    """A connection whose client overwrites any word; it reads only how the connection ends."""

    def __init__(self, dice: random.Random) -> None:
        self._dice = dice
        self._wire = wire = Sharing("tested", semaphores=True)
        wire.gives_back = False
        self._calls = [(CALL | wire.number("add") << 8, msgpack.packb([1, 1]))]
        # A lent value returns in a block of the server, which the client keeps.
        line = wire.extent().lend(bytes(LARGE))
        self._calls.append(
            (
                CALL | PARCEL | wire.number("echo") << 8,
                parcel([line], msgpack.packb([extension(BYTES, 0)])),
            )
        )
        wire.send(*self._calls[1])
        answer = wire.receive()[2]
        assert len(wire.theirs.extents) == 1, answer[:100]
        wire.control.socket.setblocking(False)
        self._words = wire._view.cast("Q")
        shared = (*wire.semaphores, wire._own[0].memory, *wire.theirs.extents.values())
        self._others = [memoryview(each).cast("Q") for each in shared]
        self._tail = wire.out.tail

    def write_calls(self, times: int) -> None:
        """Write valid calls at the ring's end, without regard to its room."""
        ring = self._wire.out
        self._wire.into.set_flag(READER_WAITS, self._dice.choice((ON_BELL, ON_SEMAPHORE)))
        for number in range(times):
            opcode, body = self._calls[self._dice.random() < 0.1]
            data = frame(opcode, number + 2, body)
            at = (self._tail + ring.shift) % ring.used
            if at + len(data) > ring.used:
                break  # Not across the end: the indices matter here, not the data.
            ring._data[at : at + len(data)] = data
            self._tail += len(data)
        ring._indices[0] = self._tail

    def overwrite(self, times: int) -> None:
        dice = self._dice
        for _ in range(times):
            words = self._words if dice.random() < 0.7 else dice.choice(self._others)
            if words is self._words and dice.random() < 0.3:
                at = dice.choice(CONTROL) // 8
            else:
                at = dice.randrange(len(words))
            words[at] = word(dice)

    def wake(self) -> None:
        self._wire.wake_server()

    def ended(self) -> str | None:
        """Return the server's reason for ending the connection, or None."""
        try:
            message, _ = self._wire.control.receive()
        except BlockingIOError:
            return None
        except Gone:
            return "gone"
        assert message["type"] == "goodbye" and message["fault"], message
        self._wire.control.socket.settimeout(20)
        with pytest.raises(Gone, match="None"):  # The server closes after its goodbye.
            self._wire.control.receive()
        return str(message["reason"])

    def close(self) -> None:
        for words in (self._words, *self._others):
            words.release()
        self._wire.close()


def reason_in_short(reason: str) -> str:
    return " ".join(each for each in reason.split() if not any(c.isdigit() for c in each))


def overwrite_rounds(
    dice: random.Random, rounds: int, turn: Callable[[], object], *, busy: bool
) -> tuple[int, Counter[str]]:
    """Overwrite memory in many rounds, reconnecting as needed; return the words written, and how connections ended.

    ``turn`` lets the server run: otherwise all rounds may end, and the connections close, before it gets a CPU.
    """
    words, ends = 0, Counter[str]()
    overwriter = Overwriter(dice)
    for number in range(rounds):
        times = dice.choice((1, 2, 20, 500))
        if busy:
            thread = threading.Thread(target=overwriter.overwrite, args=(times,))
            thread.start()
            for _ in range(5):
                overwriter.write_calls(dice.randrange(20))
                overwriter.wake()
            thread.join()
        else:
            overwriter.write_calls(dice.randrange(20))
            overwriter.overwrite(times)
            overwriter.wake()
        words += times
        if number % 10 == 9:
            turn()
        reason = overwriter.ended()
        if reason is not None:
            ends[reason_in_short(reason)] += 1
            overwriter.close()
            overwriter = Overwriter(dice)
    overwriter.close()
    return words, ends


@pytest.mark.slow
@pytest.mark.parametrize("busy", [False, True], ids=["at rest", "while traffic runs"])
def test_a_client_that_overwrites_shared_memory_harms_no_other_connection(busy: bool) -> None:
    with served() as process, Polite("tested") as polite:
        watched = Watched(process)
        with shmrpc.sync.connect("tested") as client:
            before = client.descriptors()
            words, ends = overwrite_rounds(random.Random(5), scaled(300, 4_000), lambda: client.add(1, 2), busy=busy)
            assert client.add(1, 2) == 3
            assert eventually(lambda: client.descriptors() == before, 20)
        growth = watched.check()
    assert ends, "the server has found no corruption"
    figures.note(
        f"hostile peer: segment, {'busy' if busy else 'at rest'}",
        words=words,
        connections_ended=sum(ends.values()),
        polite_calls=polite.calls,
        server_grew=growth,
    )


def test_each_value_of_a_control_word_ends_the_connection_or_leaves_it_working() -> None:
    """One corrupt word for each connection: the server ends it for a fault, or answers the call that follows."""
    dice = random.Random(6)
    values = (1, 8, 2**32 - 1, 2**63, 2**64 - 8, 2**64 - 1)
    others = [(at, value) for at in range(0, 1280, 8) if at != TAIL for value in values]
    corruptions = [*((TAIL, value) for value in values), *dice.sample(others, scaled(60, len(others)))]
    ends = Counter[str]()
    with served() as process, Polite("tested"):
        for at, value in corruptions:
            with WireClient("tested") as wire:
                assert wire.call("add", 1, 2) == 3
                struct.pack_into("=Q", wire._mmap, at, value)
                ends[outcome(wire, at)] += 1
        assert process.process.poll() is None
    assert ends["ended"] >= len(values) and ends["answered"]
    figures.note("hostile peer: control words", words=len(corruptions), **ends)


#: The offset of the client's write index.
TAIL = 128


def outcome(wire: WireClient, at: int) -> str:
    """Return how a connection goes on after a word was corrupted."""
    if at == TAIL:
        wire.wake_server()  # A call would correct the word.
        wire.control.socket.settimeout(30)
        message, _ = wire.control.expect("goodbye")
        return "ended" if message["fault"] else "lost"
    try:
        return "answered" if wire.call("add", 3, 4) == 7 else "wrong"
    except Gone as gone:
        return "ended" if gone.message and gone.message["fault"] else "lost"
    except AssertionError:
        return "misled"  # The client itself reads the corrupt word.


#: A body that is an array in its first buffer.
ARRAY = msgpack.packb(extension(5, ["|u1", [LARGE], 0]))


class OverwritingServer:
    """A server that answers correctly, and overwrites the memory that it shares with its clients at the same time."""

    def __init__(self, runtime: Path, dice: random.Random) -> None:
        self._dice = dice
        runtime.mkdir(mode=0o700, exist_ok=True)
        self._listening = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._listening.bind(str(runtime / "hostile.sock"))
        self._listening.listen(5)
        self._over = threading.Event()
        self.words = 0
        self._thread = threading.Thread(target=self._serve)

    def __enter__(self) -> OverwritingServer:
        self._thread.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._over.set()
        with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as last:
            last.connect(self._listening.getsockname())
        self._thread.join(30)
        self._listening.close()
        assert not self._thread.is_alive()

    def _serve(self) -> None:
        while True:
            client, _ = self._listening.accept()
            # A client may leave at any point.
            with client, contextlib.suppress(ConnectionError, TimeoutError, shmrpc.ConnectionLost):
                if self._over.is_set():
                    return
                client.settimeout(30)
                self._serve_client(client)

    def _serve_client(self, client: socket.socket) -> None:
        hello = control.decode(client.recv(1000))
        assert isinstance(hello, control.Hello)
        offer = Offer("hostile", ["add", "echo"], {})
        made = handshake.accept_client(hello, offer, ConnectionOptions(1 << 20, 1 << 20, spin=0))
        welcome = control.decode(made.welcome)
        assert isinstance(welcome, control.Welcome)
        shared = []
        for name in (welcome.segment, *(f"sem.{each}" for each in welcome.semaphores or ())):
            opened = os.open(f"/dev/shm/{name}", os.O_RDWR)
            shared.append(mmap.mmap(opened, 0))
            os.close(opened)
        socket.send_fds(client, [made.welcome], [each.fileno() for each in made.theirs])
        made.close_sent()
        assert isinstance(control.decode(client.recv(1000)), control.Confirm)
        made.segment.unlink()
        client.setblocking(False)
        try:
            self._answer(client, made.channel, shared)
        finally:
            made.channel.close()
            made.bell.close()
            for each in shared:
                each.close()

    def _answer(self, client: socket.socket, channel: _core.Channel, shared: list[mmap.mmap]) -> None:
        dice = self._dice
        lent: list[memoryview] = []
        while not self._over.is_set():
            with contextlib.suppress(BlockingIOError):
                client.recv(1000)
                return
            try:
                channel.wake()
                call = channel.receive()
                if call is not None and isinstance(call[2], _core.Parcel):
                    (theirs,) = call[2].buffers
                    ours = channel.allocate(LARGE)
                    lent = [memoryview(theirs.shared()), memoryview(ours)]
                    channel.send(0, call[1], _core.Parcel(ARRAY, [ours]))
                elif call is not None:
                    channel.send(0, call[1], msgpack.packb(sum(msgpack.unpackb(bytes(call[2])))))
            except (_core.ChannelError, _core.NoMemory, ValueError, TypeError, AttributeError):
                return  # The server has read its own corruption.
            if call is None:
                time.sleep(0.0005)
            elif dice.random() < 0.1:
                for _ in range(dice.randrange(1, 50)):
                    others: list[mmap.mmap | memoryview] = [*shared[1:], *lent]
                    where = shared[0] if not others or dice.random() < 0.7 else dice.choice(others)
                    at = dice.choice(CONTROL) if dice.random() < 0.1 else dice.randrange(0, len(where), 8)
                    struct.pack_into("=Q", where, at % (len(where) - 7), word(dice))
                    self.words += 1


#: Errors that a call to such a server may raise. An undetected corruption is a wrong answer.
EXPECTED_ERRORS: tuple[type[Exception], ...] = (shmrpc.RemoteProtocolError, shmrpc.ConnectionLost, shmrpc.CallError)


@pytest.mark.slow
@pytest.mark.parametrize("blocking", [False, True], ids=["loop", "threads"])
async def test_a_server_that_overwrites_shared_memory_harms_no_other_connection(runtime: Path, blocking: bool) -> None:
    """Both kinds of clients, in a process that has a client of a correct server too."""
    outcomes = Counter[str]()
    with served(), OverwritingServer(runtime, random.Random(7)) as hostile:
        async with shmrpc.connect("tested") as good:
            for _ in range(scaled(8, 40)):
                if blocking:
                    await asyncio.to_thread(call_in_threads, outcomes)
                else:
                    await call_in_a_loop(outcomes)
                assert await good.add(1, 2) == 3
    assert outcomes["answered"] and outcomes.total() > outcomes["answered"]
    figures.note(
        f"hostile peer: overwriting server, {'threads' if blocking else 'loop'}", words=hostile.words, **outcomes
    )


async def call_in_a_loop(outcomes: Counter[str]) -> None:
    async with shmrpc.connect("hostile", timeout=30, call_timeout=0.5) as client:
        for number in range(60):
            try:
                if number % 10 == 9:
                    (await client.echo(np.zeros(LARGE, "u1"))).sum()
                await client.add(number, 1)
            except EXPECTED_ERRORS as error:
                outcomes[type(error).__name__] += 1
                return
            outcomes["answered"] += 1


def call_in_threads(outcomes: Counter[str]) -> None:
    with shmrpc.sync.connect("hostile", timeout=30, call_timeout=0.5) as client:
        for number in range(60):
            try:
                if number % 10 == 9:
                    client.echo(np.zeros(LARGE, "u1")).sum()
                client.add(number, 1)
            except EXPECTED_ERRORS as error:
                outcomes[type(error).__name__] += 1
                return
            outcomes["answered"] += 1
