"""Invalid control messages, from either side: cut, too long, mutated, out of order, with any descriptors."""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import socket
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgpack
import pytest

import shmrpc
from shmrpc.transport.connection_options import ConnectionOptions
from shmrpc.transport.listener import Offer
from shmrpc.transport.shm import handshake
from shmrpc.wire import control
from tests.helpers import traces
from tests.helpers.scale import scaled
from tests.helpers.server_process import eventually, eventually_in_loop
from tests.helpers.services import service
from tests.helpers.wire_client import MAX_MESSAGE, Control, Gone, WireClient, unpacked
from tests.reliability import figures
from tests.reliability.hostile.hostile_peers import CHOSEN, Polite, Watched, mutated, served

LOOP = "either"

HELLO = {"type": "hello", "version": 5, "max_frame": 1 << 20}
SHAPES = [None, {"streams": True}, {"inputs": [["numbers", 0]]}]


def memfd() -> int:
    file = os.memfd_create("hostile")
    os.truncate(file, 4096)
    return file


def pipe() -> int:
    reading, writing = os.pipe()
    os.close(reading)
    return writing


def unix_socket() -> int:
    left, right = socket.socketpair(type=socket.SOCK_SEQPACKET)
    right.close()
    return left.detach()


#: Functions that open a wrong descriptor.
DESCRIPTORS: list[Callable[[], int]] = [
    memfd,
    pipe,
    unix_socket,
    lambda: os.eventfd(0, os.EFD_NONBLOCK),
    lambda: os.eventfd(0),
    lambda: os.eventfd(2**32 - 2, os.EFD_SEMAPHORE),
    lambda: os.open("/", os.O_RDONLY),
    lambda: os.open("/dev/null", os.O_RDWR),
    lambda: os.open("/dev/zero", os.O_RDONLY),
]


@contextlib.contextmanager
def descriptors(dice: random.Random, count: int) -> Iterator[list[int]]:
    made = [dice.choice(DESCRIPTORS)() for _ in range(count)]
    try:
        yield made
    finally:
        for each in made:
            os.close(each)


def any_message(dice: random.Random) -> bytes:
    """Return a packet for a control socket, valid or invalid."""
    messages: list[dict[str, Any]] = [
        HELLO,
        HELLO | {"version": dice.choice(CHOSEN)},
        HELLO | {"max_frame": dice.choice(CHOSEN)},
        HELLO | {"pickle": True},
        {"type": "confirm"},
        {"type": "status"},
        {"type": "goaway"},
        {"type": "goodbye", "reason": "x" * dice.choice((0, 1, 1000)), "reached": dice.choice(CHOSEN)},
        {"type": "goodbye", "reason": "x", "fault": True},
        {"type": "refuse", "reason": "x"},
        {"type": dice.choice(("", "hello\0", "HELLO", "unheard of"))},
    ]
    packet: bytes = msgpack.packb(dice.choice(messages))
    match dice.randrange(8):
        case 0 | 1 | 2:
            return mutated(dice, packet)
        case 3:
            return packet[: dice.randrange(len(packet))]
        case 4:
            return packet + bytes(dice.choice((1, 1000, MAX_MESSAGE - len(packet), MAX_MESSAGE)))
        case 5:
            return bytes([dice.randrange(256)])
        case _:
            return packet


def send_messages(dice: random.Random, outcomes: Counter[str]) -> int:
    """Open a control socket, send some messages and count the answers; return the number of messages."""
    client, sent = Control("tested"), 0
    client.socket.settimeout(30)
    with client.socket:
        if dice.random() < 0.3:
            client.send("hello", version=5, max_frame=1 << 20)
        for _ in range(dice.randrange(1, 5)):
            with descriptors(dice, dice.choice((0, 0, 1, 3, 8, 9, 50))) as files:
                try:
                    socket.send_fds(client.socket, [any_message(dice)], files)
                except (BrokenPipeError, ConnectionResetError):
                    break
            sent += 1
        if dice.random() < 0.3:
            outcomes["left without a word"] += 1
            return sent  # The server's answers are not read.
        client.socket.shutdown(socket.SHUT_WR)
        with contextlib.suppress(Gone):
            while True:
                message, came = client.receive()
                for each in came:
                    os.close(each)
                outcomes[message["type"]] += 1
    return sent


@pytest.mark.slow
def test_invalid_control_messages_harm_no_other_client() -> None:
    """Silent clients occupy handshakes of the server at the same time."""
    dice, outcomes, sent = random.Random(9), Counter[str](), 0
    with served() as process, Polite("tested") as polite, shmrpc.sync.connect("tested") as client:
        watched = Watched(process)
        before = client.descriptors()
        silent = [Control("tested") for _ in range(50)]
        for each in silent[:25]:
            each.send("hello", version=5, max_frame=1 << 20)
        for _ in range(scaled(250, 4_000)):
            sent += send_messages(dice, outcomes)
        for each in silent:
            each.socket.close()
        assert client.add(1, 2) == 3
        assert eventually(lambda: client.descriptors() == before, 30)
        growth = watched.check()
    assert outcomes["refuse"] and outcomes["welcome"]
    figures.note(
        "hostile peer: control messages",
        sent=sent,
        polite_calls=polite.calls,
        server_grew=growth,
        **{kind.replace(" ", "_"): count for kind, count in outcomes.items()},
    )


def test_any_message_but_goodbye_ends_an_established_connection() -> None:
    dice, outcomes = random.Random(10), Counter[str]()
    with served() as process, Polite("tested"):
        for _ in range(scaled(60, 600)):
            with WireClient("tested") as wire, descriptors(dice, dice.choice((0, 1, 3, 8, 9, 50))) as files:
                socket.send_fds(wire.control.socket, [any_message(dice)], files)
                wire.control.socket.settimeout(30)
                with pytest.raises(Gone):
                    while True:
                        message, _ = wire.control.receive()
                        assert message["type"] == "goodbye" and message["reason"]
                outcomes["ended"] += 1
        assert process.process.poll() is None
    figures.note("hostile peer: messages to a connection", **outcomes)


@pytest.mark.slow
async def test_a_client_that_is_slow_in_the_handshake_is_disconnected(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(control, "STEP_TIMEOUT", 2)  # Enough for a client that gets no CPU for a second.

    def silent_after(packets: int) -> None:
        client = Control("tested")
        with client.socket:
            if packets:
                client.send("hello", version=5, max_frame=1 << 20)
                for each in client.expect("welcome")[1]:
                    os.close(each)
            client.socket.settimeout(20)
            with pytest.raises(Gone):
                client.receive()

    async with shmrpc.serve(service) as server, shmrpc.connect("tested") as other:
        await asyncio.gather(*(asyncio.to_thread(silent_after, packets) for packets in (0, 1, 0, 1)))
        assert await eventually_in_loop(lambda: (server.connections, server.arriving) == (1, 0), 30)
        assert await other.add(1, 2) == 3


class HostileServer:
    """A server that answers each client with the messages of `script`."""

    def __init__(self, runtime: Path, script: Callable[[socket.socket], None]) -> None:
        runtime.mkdir(mode=0o700, exist_ok=True)
        self._script = script
        self._over = False
        self._listening = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._listening.bind(str(runtime / "hostile.sock"))
        self._listening.listen(5)
        self._thread = threading.Thread(target=self._serve)

    def _serve(self) -> None:
        while True:
            client, _ = self._listening.accept()
            with client, contextlib.suppress(ConnectionError, TimeoutError):
                if self._over:
                    return
                client.settimeout(10)
                self._script(client)

    def __enter__(self) -> HostileServer:
        self._thread.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._over = True
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as last:
            last.connect(self._listening.getsockname())
        self._thread.join(30)
        self._listening.close()
        assert not self._thread.is_alive()


def shapes_of_all_kinds(dice: random.Random) -> Any:
    place = dice.choice([*CHOSEN, -1, -2])
    return dice.choice(
        [
            SHAPES,
            [None, None, {"inputs": [["a", place]]}],
            [{"streams": True}] * 4,
            [None, None, {"inputs": [["", 0], ["b", 0]]}],
        ]
    )


def corrupt_handshake(dice: random.Random) -> Callable[[socket.socket], None]:
    """Return a script of a handshake that is corrupt in one of its steps."""

    def script(client: socket.socket) -> None:
        hello = control.decode(client.recv(1000))
        assert isinstance(hello, control.Hello)
        offer = Offer("hostile", ["add", "count", "total"], {})
        made = handshake.accept_client(hello, offer, ConnectionOptions(1 << 20, 1 << 20, spin=0))
        try:
            send_corrupt_welcome(client, made.welcome, [each.fileno() for each in made.theirs])
        finally:
            made.close()

    def send_corrupt_welcome(client: socket.socket, packet: bytes, files: list[int]) -> None:
        welcome = unpacked(packet)
        what = dice.randrange(8)
        with descriptors(dice, 12) as others:
            match what:
                case 0:
                    packet = mutated(dice, packet)
                case 1:
                    files[dice.randrange(2)] = others[0]
                case 2:
                    files = (files + others)[: dice.choice((0, 1, 3, 4, 8, 12))]
                case 3:
                    field = dice.choice(("capacity", "max_frame", "pid"))
                    packet = msgpack.packb(welcome | {field: dice.choice([*CHOSEN, -1])})
                case 4:
                    packet = msgpack.packb(welcome | {"shapes": shapes_of_all_kinds(dice)})
                case 5:
                    names = ["", "\0", "/", "..", "x" * 300, welcome["segment"], f"sem.{welcome['segment']}.c2s"]
                    packet = msgpack.packb(welcome | {"semaphores": [dice.choice(names), dice.choice(names)]})
                case 6:
                    packet = msgpack.packb(
                        welcome | {"segment": dice.choice(["", "\0", "..", "sem." + "x", "x" * 300])}
                    )
                case _:
                    packet = any_message(dice)
            socket.send_fds(client, [packet], files)
        client.recv(1000)  # confirm, if the client accepted the welcome.
        for _ in range(dice.randrange(3)):
            with descriptors(dice, dice.choice((0, 3))) as others:
                good = control.encode(control.GoAway())
                socket.send_fds(client, [dice.choice([any_message(dice), good])], others)
        # A client that accepted the handshake calls; its calls are not answered.

    return script


#: Errors that a client may raise because of such a server.
EXPECTED_ERRORS = (shmrpc.ProtocolError, shmrpc.ServiceUnavailable, shmrpc.ConnectionLost, shmrpc.CallError)


@pytest.mark.parametrize("blocking", [False, True], ids=["loop", "threads"])
async def test_a_client_reports_a_corrupt_handshake_and_its_other_connections_go_on(
    runtime: Path, blocking: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The client raises an error and keeps no descriptor."""
    monkeypatch.setattr(control, "STEP_TIMEOUT", 10)
    dice, outcomes = random.Random(11), Counter[str]()

    def in_threads() -> None:
        with shmrpc.sync.connect("hostile", timeout=0, call_timeout=0.1) as client:
            client.add(1, 2)

    async def in_a_loop() -> None:
        async with shmrpc.connect("hostile", timeout=0, call_timeout=0.1) as client:
            await client.add(1, 2)

    with HostileServer(runtime, corrupt_handshake(dice)):
        async with shmrpc.serve(service), shmrpc.connect("tested") as good:
            assert await good.add(1, 2) == 3
            before = traces.settled_descriptors()
            for _ in range(scaled(40, 300)):
                try:
                    await (asyncio.to_thread(in_threads) if blocking else in_a_loop())
                except EXPECTED_ERRORS as error:
                    outcomes[type(error).__name__] += 1
                assert await good.add(1, 2) == 3
            assert await eventually_in_loop(lambda: traces.descriptors() == before, 30)
    assert outcomes["RemoteProtocolError"]
    figures.note(f"hostile peer: handshake of a server, {'threads' if blocking else 'loop'}", **outcomes)
