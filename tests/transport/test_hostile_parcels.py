"""Hostile peers that send wrong parcels, extents and releases, at either side: only their own connection ends."""

from __future__ import annotations

import asyncio
import fcntl
import os
import re
import socket
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, Protocol

import msgpack
import pytest

import shmrpc
from shmrpc import _core
from shmrpc.wire import control
from tests.helpers.hostile_server import SUM, Misdeed, ScriptedServer, connected, scripted_server
from tests.helpers.server_process import eventually_in_loop
from tests.helpers.services import service
from tests.helpers.stream_service import service as flows
from tests.helpers.wire_client import (
    BYTES,
    CALL,
    CANCEL,
    CREDIT,
    FAILURE,
    ITEM,
    RESULT,
    RESULT_WITH,
    Gone,
    Parcel,
    WireClient,
    extension,
    frame,
    unpacked,
)
from tests.helpers.wire_memory import (
    GONE,
    HERE,
    NEW,
    PAGE,
    PARCEL,
    RECEIVER,
    RELEASE,
    SENDER,
    Entry,
    Extent,
    extent_update,
    here,
    parcel,
    release,
)

MAX_FRAME: Final = 1 << 20
HUGE: Final = (1 << 64) - 1
TABLE: Final = "the table of a parcel is malformed"
NEWS: Final = "a message about extents is malformed"
EXTENT: Final = "extent 0 is unknown, or cannot be mapped"
MEMORY: Final = "bytes together are over the limit of"
BLOCK: Final = "there is no loan of block"
UNALIGNED: Final = "does not begin at a multiple of"
#: The body of a good request.
ARGUMENTS: Final = b"\x92\x01\x02"


class HostilePeer(Protocol):
    """A side that attacks the other."""

    #: The hostile end of the socket for updates of extents.
    updates: socket.socket

    def say(self, opcode: int, payload: bytes) -> None:
        """Send the frame that the other side waits for if the opcode is PARCEL; else a frame of no call."""
        ...


class HostileClient:
    def __init__(self, wire: WireClient) -> None:
        self.wire = wire
        self.updates = wire.updates

    def say(self, opcode: int, payload: bytes) -> None:
        if opcode == PARCEL:
            self.wire.send(CALL | PARCEL | self.wire.number("add") << 8, payload)
        else:
            self.wire.send(opcode, payload, 0)


class HostileServer:
    def __init__(self, hostile: ScriptedServer, call_id: int) -> None:
        self.hostile = hostile
        self.updates = hostile.updates
        self._call_id = call_id

    def say(self, opcode: int, payload: bytes) -> None:
        self.hostile.send(opcode, self._call_id if opcode == PARCEL else 0, payload)


Attack = Callable[[HostilePeer], object]


def says(payload: bytes, opcode: int = PARCEL) -> Attack:
    def attack(peer: HostilePeer) -> None:
        peer.say(opcode, payload)

    return attack


def tell(peer: HostilePeer, number: int = 0, size: int = 1 << 20) -> None:
    """Send the other side a correct extent."""
    extent = Extent(number, size)
    extent.announce(peer.updates)
    extent.close()


def names(*entries: Entry, body: bytes | None = ARGUMENTS, size: int = 1 << 20) -> Attack:
    """Return an attack that sends extent 0, then a parcel with these buffers."""

    def attack(peer: HostilePeer) -> None:
        tell(peer, size=size)
        peer.say(PARCEL, parcel(entries, body))

    return attack


def memfd(size: int = PAGE, seals: int = fcntl.F_SEAL_SHRINK) -> int:
    file = os.memfd_create("hostile", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    os.truncate(file, size)
    fcntl.fcntl(file, fcntl.F_ADD_SEALS, seals)
    return file


def write_only() -> int:
    file = memfd()
    try:
        return os.open(f"/proc/self/fd/{file}", os.O_WRONLY)
    finally:
        os.close(file)


def plain_file() -> int:
    file, path = tempfile.mkstemp()
    os.unlink(path)
    os.truncate(file, PAGE)
    return file


def tells(packet: bytes, *make: Callable[[], int]) -> Attack:
    """Return an attack that sends a packet with these descriptors, then a parcel that names extent 0."""

    def attack(peer: HostilePeer) -> None:
        files = [each() for each in make]
        socket.send_fds(peer.updates, [packet], files) if files else peer.updates.send(packet)
        for file in files:
            os.close(file)
        peer.say(PARCEL, parcel([Entry(SENDER, 0, 0, 0, 1)]))

    return attack


def tells_twice(peer: HostilePeer) -> None:
    tell(peer)
    tells(extent_update(NEW, 0, PAGE), memfd)(peer)


def hangs_up(peer: HostilePeer) -> None:
    peer.updates.shutdown(socket.SHUT_RDWR)
    peer.say(PARCEL, parcel([Entry(SENDER, 0, 0, 0, 1)]))


def table(count: int, first_is_body: int, rest: bytes = b"") -> bytes:
    return count.to_bytes(4, "little") + first_is_body.to_bytes(4, "little") + rest


ENTRY: Final = parcel([here(b"")])[8:40]

TABLES: dict[str, bytes] = {
    "nothing": b"",
    "half a head": table(0, 0)[:7],
    "an entry that is missing": table(1, 0),
    "an entry that is cut": table(1, 0, ENTRY[:31]),
    "one entry too few": table(3, 0, ENTRY * 2),
    "a count that is huge": table((1 << 32) - 1, 0, ENTRY),
    "no buffer to be the body": table(0, 1),
    "an unknown place of the body": table(1, 2, ENTRY),
    "a body in two places": parcel([here(b"")], None) + b"\xc0",
    "a buffer that lies nowhere": parcel([Entry(3, 0, 0, 0, 0)]),
    "a buffer that lies far out": parcel([Entry((1 << 32) - 1, 0, 0, 0, 0)]),
    "a buffer that has not come": parcel([here(b"12345")], b"", b"1234"),
    "a body that has not come": parcel([here(b"12345")], None, b"1234"),
    "lengths that have no sum": parcel([Entry(HERE, 0, 0, 0, HUGE), Entry(HERE, 0, 0, 0, 2)], b"\xc0", b"x"),
    "a length that is huge": parcel([Entry(HERE, 0, 0, 0, HUGE)]),
}
SIZE: Final = 1 << 20
NAMES: dict[str, tuple[Entry, ...]] = {
    "a block beyond the end": (Entry(SENDER, 0, SIZE, 0, 1),),
    "a start beyond the end": (Entry(SENDER, 0, 0, SIZE, 1),),
    "a length beyond the end": (Entry(SENDER, 0, 0, 0, SIZE + 1),),
    "one byte beyond the end": (Entry(SENDER, 0, SIZE - PAGE, 1, PAGE),),
    "a block that is huge": (Entry(SENDER, 0, HUGE, 1, 0),),
    "a start that is huge": (Entry(SENDER, 0, PAGE, HUGE, 1),),
    "a length that is huge": (Entry(SENDER, 0, PAGE, 0, HUGE),),
    "a sum that is small again": (Entry(SENDER, 0, PAGE, HUGE - PAGE + 1, 1),),
    "a bad one after good ones": (*[Entry(SENDER, 0, 0, 0, 9)] * 3, Entry(SENDER, 0, 0, 0, SIZE + 1)),
    "a block of the sender's as the receiver's": (Entry(RECEIVER, 0, 0, 0, 1),),
    "nothing of the receiver's": (Entry(RECEIVER, 0, 0, 0, 0),),
    "far outside the receiver's": (Entry(RECEIVER, (1 << 32) - 1, HUGE, HUGE, HUGE),),
}
PACKETS: dict[str, tuple[Attack, str]] = {
    "no descriptor": (tells(extent_update(NEW, 0, PAGE)), NEWS),
    "two descriptors": (tells(extent_update(NEW, 0, PAGE), memfd, memfd), NEWS),
    "twenty descriptors": (tells(extent_update(NEW, 0, PAGE), *[memfd] * 20), NEWS),
    "a descriptor of what is gone": (tells(extent_update(GONE, 0, 0), memfd), NEWS),
    "a size of what is gone": (tells(extent_update(GONE, 0, PAGE)), NEWS),
    "no bytes": (tells(extent_update(NEW, 0, 0), lambda: memfd(0)), NEWS),
    "an unknown kind": (tells(extent_update(3, 0, PAGE), memfd), NEWS),
    "no kind": (tells(extent_update(0, 0, 0)), NEWS),
    "a short packet": (tells(extent_update(NEW, 0, PAGE)[:15], memfd), NEWS),
    "a long packet": (tells(extent_update(NEW, 0, PAGE) + b"\0", memfd), NEWS),
    "a very long packet": (tells(b"\1" * 60_000), NEWS),
    "an empty packet": (tells(b""), NEWS),
    "a packet of text": (tells(b"sixteen letters!"), NEWS),
    "no seal": (tells(extent_update(NEW, 0, PAGE), lambda: memfd(seals=0)), EXTENT),
    "another seal": (tells(extent_update(NEW, 0, PAGE), lambda: memfd(seals=fcntl.F_SEAL_GROW)), EXTENT),
    "fewer bytes than it has": (tells(extent_update(NEW, 0, PAGE), lambda: memfd(2 * PAGE)), EXTENT),
    "more bytes than it has": (tells(extent_update(NEW, 0, PAGE), lambda: memfd(PAGE - 1)), EXTENT),
    "more bytes than can be": (tells(extent_update(NEW, 0, HUGE), memfd), MEMORY),
    "more bytes than are mapped": (tells(extent_update(NEW, 0, (1 << 44) + 1), lambda: memfd((1 << 44) + 1)), MEMORY),
    "no memory": (tells(extent_update(NEW, 0, PAGE), lambda: os.eventfd(0)), EXTENT),
    "a file": (tells(extent_update(NEW, 0, PAGE), plain_file), EXTENT),
    "a directory": (tells(extent_update(NEW, 0, PAGE), lambda: os.open("/", os.O_RDONLY)), EXTENT),
    "what cannot be read": (tells(extent_update(NEW, 0, PAGE), write_only), EXTENT),
    "a number twice": (tells_twice, EXTENT),
    "another number": (tells(extent_update(NEW, 1, PAGE), memfd), EXTENT),
    "nothing at all": (says(parcel([Entry(SENDER, 0, 0, 0, 1)])), EXTENT),
    "the end": (hangs_up, EXTENT),
}
RELEASES: dict[str, tuple[bytes, str]] = {
    "what was never lent": (release(0, 0), BLOCK),
    "what cannot be": (release((1 << 32) - 1, HUGE), BLOCK),
    "nothing": (b"", "a RELEASE has 0 bytes instead of 16"),
    "15 bytes": (release(0, 0)[:15], "a RELEASE has 15 bytes instead of 16"),
    "17 bytes": (release(0, 0) + b"\0", "a RELEASE has 17 bytes instead of 16"),
    "20,000 bytes": (bytes(20_000), "a RELEASE has 20000 bytes instead of 16"),
}
ATTACKS = [
    *(pytest.param(says(payload), TABLE, id=f"table: {name}") for name, payload in TABLES.items()),
    *(pytest.param(names(*entries), BLOCK, id=f"names {name}") for name, entries in NAMES.items()),
    *(pytest.param(attack, words, id=f"tells of {name}") for name, (attack, words) in PACKETS.items()),
    *(pytest.param(says(sent, RELEASE), words, id=f"releases {name}") for name, (sent, words) in RELEASES.items()),
    *(
        pytest.param(names(Entry(SENDER, 0, block, 0, 1)), UNALIGNED, id=f"names a block at {block}")
        for block in (1, 8, 100, PAGE - 1, PAGE + 8, SIZE - 100)
    ),
    pytest.param(
        names(Entry(SENDER, 0, PAGE, 0, 1), size=PAGE + 100), BLOCK, id="names a block that ends behind its extent"
    ),
    pytest.param(
        names(Entry(SENDER, 0, 0, 0, MAX_FRAME + 1), body=None, size=2 * MAX_FRAME),
        "over the limit",
        id="a body that is too large",
    ),
]


def fault_of(wire: WireClient) -> str:
    """Return the reason with which the server ends the connection for a fault of the client."""
    with pytest.raises(Gone) as ended:
        wire.receive()
    goodbye = ended.value.message
    assert goodbye is not None
    assert (goodbye["type"], goodbye["fault"]) == ("goodbye", True)
    return str(goodbye["reason"])


def open_files() -> int:
    return len(os.listdir("/proc/self/fd"))


async def check_attack_of_client(attack: Callable[[WireClient], object], words: str) -> None:
    """Attack a server as a client: the server reports the fault, answers another client and keeps nothing."""

    def client() -> str:
        with WireClient("tested", max_frame=MAX_FRAME) as wire:
            attack(wire)
            return fault_of(wire)

    async with shmrpc.serve(service), shmrpc.connect("tested") as other:
        before = open_files()
        assert words in await asyncio.to_thread(client)
        assert await other.add(1, 2) == 3
        # Fewer, if what an earlier test has left was collected meanwhile.
        assert await eventually_in_loop(lambda: open_files() <= before)


@pytest.mark.parametrize(("attack", "words"), ATTACKS)
async def test_an_attack_of_a_client_ends_only_its_own_connection(attack: Attack, words: str) -> None:
    await check_attack_of_client(lambda wire: attack(HostileClient(wire)), words)


@pytest.mark.parametrize("blocking", [False, True])
@pytest.mark.parametrize(("attack", "words"), ATTACKS)
async def test_an_attack_of_a_server_ends_the_connection_of_its_client(
    runtime: Path, attack: Attack, words: str, blocking: bool
) -> None:
    words = re.escape(words)
    before = open_files()
    with scripted_server(
        runtime, lambda hostile, call_id: attack(HostileServer(hostile, call_id)), forges=True
    ) as hostile:
        async with connected(blocking) as client:
            for _ in range(2):
                with pytest.raises(shmrpc.RemoteProtocolError, match=words):
                    await client.call("add", 1, 2)
    assert isinstance(hostile.heard, control.Goodbye)
    assert hostile.heard.fault
    assert re.search(words, hostile.heard.reason)
    assert await eventually_in_loop(lambda: open_files() <= before)


# Attacks on loans.


def borrow(wire: WireClient) -> Entry:
    """Receive a loan of the server, one block of sixty pages, less 100 bytes, and return its entry."""
    wire.gives_back = False
    wire.send(CALL | wire.number("zeros") << 8, msgpack.packb([PAGE * 60 - 100]))
    body = wire.receive()[2]
    assert isinstance(body, Parcel)
    (line,) = body.entries
    assert (line.whose, line.start) == (SENDER, 0)
    return line


def sends_back(**changes: int) -> Callable[[WireClient], object]:
    """Return an attack that sends back a buffer in the server's memory, with changed numbers."""

    def attack(wire: WireClient) -> None:
        line = borrow(wire)._replace(whose=RECEIVER)
        changed = line._replace(**{name: getattr(line, name) + by for name, by in changes.items()})
        HostileClient(wire).say(PARCEL, parcel([changed]))

    return attack


def releases(**changes: int) -> Callable[[WireClient], object]:
    """Return an attack that releases another block than the borrowed one."""

    def attack(wire: WireClient) -> None:
        line = borrow(wire)
        changed = line._replace(**{name: getattr(line, name) + by for name, by in changes.items()})
        HostileClient(wire).say(RELEASE, release(changed.extent, changed.block))

    return attack


def releases_twice(wire: WireClient) -> None:
    line = borrow(wire)
    for _ in range(2):
        wire.give_back(line)


def releases_a_loan_of_another_client(wire: WireClient) -> None:
    with WireClient("tested") as other:
        line = borrow(other)
        wire.give_back(line)


def sends_back_a_released_loan(wire: WireClient) -> None:
    line = borrow(wire)
    wire.give_back(line)
    HostileClient(wire).say(PARCEL, parcel([line._replace(whose=RECEIVER)]))


def releases_as_the_server_looks_for_memory(wire: WireClient) -> None:
    """Send a wrong release right behind a call, which the server reads when the reply needs memory."""
    requests = [(CALL | wire.number("zeros") << 8, 1, msgpack.packb([500_000])), (RELEASE, 0, release(0, 0))]
    frames = b"".join(frame(*request) for request in requests)
    wire.out.put(memoryview(frames))
    wire.wake_server()


ATTACKS_ON_LOANS_OF_SERVER: dict[str, tuple[Callable[[WireClient], object], str]] = {
    "another extent": (sends_back(extent=1), BLOCK),
    "another block": (sends_back(block=PAGE), BLOCK),
    "what begins behind it": (sends_back(start=PAGE * 60, length=-PAGE * 9), BLOCK),
    "what ends behind it": (sends_back(length=PAGE), BLOCK),
    "one byte too many": (sends_back(length=101), BLOCK),
    "one byte too far": (sends_back(start=1, length=100), BLOCK),
    "a length that is huge": (sends_back(length=HUGE - PAGE * 60), BLOCK),
    "a start that is huge": (sends_back(start=HUGE), BLOCK),
    "what was given back": (sends_back_a_released_loan, BLOCK),
    "the end of another extent's": (releases(extent=1), BLOCK),
    "the end of another block's": (releases(block=PAGE * 60), BLOCK),
    "the end of a part": (releases(block=PAGE), BLOCK),
    "the end twice": (releases_twice, BLOCK),
    "the end of another client's": (releases_a_loan_of_another_client, BLOCK),
    "the end when memory is wanted": (releases_as_the_server_looks_for_memory, BLOCK),
}


@pytest.mark.parametrize("name", ATTACKS_ON_LOANS_OF_SERVER)
async def test_an_attack_of_a_client_on_a_loan_ends_only_its_own_connection(name: str) -> None:
    await check_attack_of_client(*ATTACKS_ON_LOANS_OF_SERVER[name])


async def test_a_buffer_anywhere_within_the_block_may_be_sent_back() -> None:
    """A block is whole pages, and its owner knows no other bound of it."""

    def client() -> Any:
        with WireClient("tested") as wire:
            line = borrow(wire)._replace(whose=RECEIVER)
            for each in (line._replace(length=line.length + 100), line._replace(start=PAGE * 60 - 1, length=1)):
                HostileClient(wire).say(PARCEL, parcel([each], ARGUMENTS))
                assert wire.receive()[2] == b"\x03"

    async with shmrpc.serve(service):
        await asyncio.to_thread(client)


@pytest.mark.parametrize("kind", [ITEM | 1 << 8, CREDIT, CANCEL, CALL | 99 << 8])
async def test_a_bad_table_is_a_fault_in_every_kind_of_frame(kind: int) -> None:
    await check_attack_of_client(lambda wire: wire.send(kind | PARCEL, b"\0", 99), TABLE)


def lends_again(**changes: int) -> Misdeed:
    """Return an attack that sends back block 0 of extent 0, which the client has lent, with changed numbers."""

    def attack(hostile: ScriptedServer, call_id: int) -> None:
        assert isinstance(hostile.body, _core.Parcel)
        line = Entry(RECEIVER, 0, 0, 0, len(memoryview(hostile.body.buffers[0])))
        changed = line._replace(**{name: getattr(line, name) + by for name, by in changes.items()})
        hostile.send(PARCEL, call_id, parcel([changed], SUM))

    return attack


def ends_a_loan_twice(hostile: ScriptedServer, call_id: int) -> None:
    hostile.body = b""  # The loan ends once here.
    hostile.send(RELEASE, 0, release(0, 0))


def sends_back_an_ended_loan(hostile: ScriptedServer, call_id: int) -> None:
    hostile.body = b""
    hostile.send(PARCEL, call_id, parcel([Entry(RECEIVER, 0, 0, 0, 1)], SUM))


def ends_a_part(hostile: ScriptedServer, call_id: int) -> None:
    hostile.send(RELEASE, 0, release(0, PAGE))


ATTACKS_ON_LOANS_OF_CLIENT: dict[str, Misdeed] = {
    "another extent": lends_again(extent=1),
    "another block": lends_again(block=PAGE),
    "what ends behind it": lends_again(length=PAGE),
    "what begins behind it": lends_again(start=1 << 40),
    "what has ended": sends_back_an_ended_loan,
    "the end twice": ends_a_loan_twice,
    "the end of a part": ends_a_part,
}


@pytest.mark.parametrize("blocking", [False, True])
@pytest.mark.parametrize("name", ATTACKS_ON_LOANS_OF_CLIENT)
async def test_an_attack_of_a_server_on_a_loan_ends_the_connection_of_its_client(
    runtime: Path, name: str, blocking: bool
) -> None:
    with scripted_server(runtime, ATTACKS_ON_LOANS_OF_CLIENT[name]) as hostile:
        async with connected(blocking) as client:
            for _ in range(2):
                with pytest.raises(shmrpc.RemoteProtocolError, match=BLOCK):
                    await client.call("add", bytes(PAGE * 60), 2)
    assert isinstance(hostile.heard, control.Goodbye)
    assert hostile.heard.fault


@pytest.mark.parametrize("blocking", [False, True])
async def test_a_buffer_that_the_client_lent_may_be_sent_back(runtime: Path, blocking: bool) -> None:
    with scripted_server(runtime, lends_again()):
        async with connected(blocking) as client:
            for _ in range(3):
                assert await client.call("add", bytes(PAGE * 60), 2) == 3


@pytest.mark.parametrize("blocking", [False, True])
@pytest.mark.parametrize("kind", [ITEM, RESULT, FAILURE, RESULT_WITH])
async def test_a_bad_table_is_a_fault_in_a_stream_too(runtime: Path, kind: int, blocking: bool) -> None:
    with scripted_server(runtime, lambda hostile, call_id: hostile.send(kind | PARCEL, call_id, b"\0")) as hostile:
        async with connected(blocking) as client:
            with pytest.raises(shmrpc.RemoteProtocolError, match=TABLE):
                await client.stream(1)
    assert isinstance(hostile.heard, control.Goodbye)
    assert hostile.heard.fault


@pytest.mark.parametrize("blocking", [False, True])
async def test_a_bad_table_for_no_call_is_a_fault_too(runtime: Path, blocking: bool) -> None:
    with scripted_server(runtime, lambda hostile, call_id: hostile.send(PARCEL, call_id + 1000, b"\0")):
        async with connected(blocking) as client:
            with pytest.raises(shmrpc.RemoteProtocolError, match=TABLE):
                await client.call("add", 1, 2)


async def test_another_server_of_the_same_client_is_not_harmed(runtime: Path) -> None:
    with scripted_server(runtime, lambda hostile, call_id: hostile.send(RELEASE, 0, b"")):
        async with shmrpc.serve(flows), shmrpc.connect("tested.flows") as good, connected(blocking=False) as client:
            with pytest.raises(shmrpc.RemoteProtocolError, match="a RELEASE has 0 bytes"):
                await client.call("add", 1, 2)
            assert await good.add(1, 2) == 3


async def test_superfluous_buffers_and_wrong_positions_fail_at_most_their_own_call() -> None:
    """An error of the value alone fails the call alone."""

    def client() -> list[Any]:
        with WireClient("tested", max_frame=MAX_FRAME) as wire:
            line = wire.extent().lend(b"\xc1" * 100)
            kinds = []
            for place in (1, -1, HUGE, "0", None, 1.0, [0]):
                arguments = msgpack.packb([extension(BYTES, place)])
                wire.send(CALL | PARCEL | wire.number("echo") << 8, parcel([line], arguments))
                kinds.append(unpacked(wire.receive()[2])["kind"])
            plain = msgpack.packb([extension(BYTES, 0)])
            wire.send(CALL | wire.number("echo") << 8, plain)
            kinds.append(unpacked(wire.receive()[2])["kind"])
            wire.send(CALL | PARCEL | wire.number("add") << 8, parcel([line] * 100, ARGUMENTS))
            assert wire.receive()[2] == b"\x03"
            assert wire.call("add", 1, 2) == 3
            assert wire.given_back == [(0, 0)] * 107
            return kinds

    async with shmrpc.serve(service):
        assert await asyncio.to_thread(client) == ["arguments"] * 8
