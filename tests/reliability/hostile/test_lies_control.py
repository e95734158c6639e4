"""Control messages of all wrong kinds, from either side: cut, too long, mutated, out of order, with any descriptors."""

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
from tests.reliability.hostile.liars import CHOSEN, Polite, Watched, mutated, served

LOOP = "either"

HELLO = {"type": "hello", "version": 5, "max_frame": 1 << 20}
SHAPES = [None, {"streams": True}, {"inputs": [["numbers", 0]]}]


def memfd() -> int:
    file = os.memfd_create("liar")
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


#: What may come in the place of a descriptor.
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
    """A packet for a control socket, as it should be or not."""
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


def lied_to_once(dice: random.Random, outcomes: Counter[str]) -> int:
    """One control socket, and some messages on it; how many."""
    liar, sent = Control("tested"), 0
    liar.socket.settimeout(30)
    with liar.socket:
        if dice.random() < 0.3:
            liar.send("hello", version=5, max_frame=1 << 20)
        for _ in range(dice.randrange(1, 5)):
            with descriptors(dice, dice.choice((0, 0, 1, 3, 8, 9, 50))) as files:
                try:
                    socket.send_fds(liar.socket, [any_message(dice)], files)
                except (BrokenPipeError, ConnectionResetError):
                    break
            sent += 1
        if dice.random() < 0.3:
            outcomes["left without a word"] += 1
            return sent  # Whatever comes is not waited for.
        liar.socket.shutdown(socket.SHUT_WR)
        with contextlib.suppress(Gone):
            while True:
                message, came = liar.receive()
                for each in came:
                    os.close(each)
                outcomes[message["type"]] += 1
    return sent


@pytest.mark.slow
def test_control_messages_of_all_kinds_harm_nobody_else() -> None:
    """Meanwhile others say nothing at all, and hold their places."""
    dice, outcomes, sent = random.Random(9), Counter[str](), 0
    with served() as process, Polite("tested") as polite, shmrpc.sync.connect("tested") as client:
        watched = Watched(process)
        before = client.descriptors()
        silent = [Control("tested") for _ in range(50)]
        for each in silent[:25]:
            each.send("hello", version=5, max_frame=1 << 20)
        for _ in range(scaled(250, 4_000)):
            sent += lied_to_once(dice, outcomes)
        for each in silent:
            each.socket.close()
        assert client.add(1, 2) == 3
        assert eventually(lambda: client.descriptors() == before, 30)
        growth = watched.check()
    assert outcomes["refuse"] and outcomes["welcome"]
    figures.note(
        "lies: control messages",
        sent=sent,
        polite_calls=polite.calls,
        server_grew=growth,
        **{kind.replace(" ", "_"): count for kind, count in outcomes.items()},
    )


def test_anything_but_goodbye_ends_a_connection_that_stands() -> None:
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
    figures.note("lies: messages to a connection", **outcomes)


@pytest.mark.slow
async def test_who_is_too_slow_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(control, "STEP_TIMEOUT", 2)  # Who gets no CPU for a second still says hello in time.

    def silent_after(packets: int) -> None:
        liar = Control("tested")
        with liar.socket:
            if packets:
                liar.send("hello", version=5, max_frame=1 << 20)
                for each in liar.expect("welcome")[1]:
                    os.close(each)
            liar.socket.settimeout(20)
            with pytest.raises(Gone):
                liar.receive()

    async with shmrpc.serve(service) as server, shmrpc.connect("tested") as other:
        await asyncio.gather(*(asyncio.to_thread(silent_after, packets) for packets in (0, 1, 0, 1)))
        assert await eventually_in_loop(lambda: (server.connections, server.arriving) == (1, 0), 30)
        assert await other.add(1, 2) == 3


class LyingServer:
    """Answers whoever comes with what ``script`` sends."""

    def __init__(self, runtime: Path, script: Callable[[socket.socket], None]) -> None:
        runtime.mkdir(mode=0o700, exist_ok=True)
        self._script = script
        self._over = False
        self._listening = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._listening.bind(str(runtime / "liar.sock"))
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

    def __enter__(self) -> LyingServer:
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


def handshake_that_lies(dice: random.Random) -> Callable[[socket.socket], None]:
    """A handshake as it should be, but for a lie in one of its steps."""

    def script(client: socket.socket) -> None:
        hello = control.decode(client.recv(1000))
        assert isinstance(hello, control.Hello)
        offer = Offer("liar", ["add", "count", "total"], {})
        made = handshake.accept_client(hello, offer, ConnectionOptions(1 << 20, 1 << 20, spin=0))
        try:
            lie(client, made.welcome, [each.fileno() for each in made.theirs])
        finally:
            made.close()

    def lie(client: socket.socket, packet: bytes, files: list[int]) -> None:
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
        client.recv(1000)  # confirm, if it was believed.
        for _ in range(dice.randrange(3)):
            with descriptors(dice, dice.choice((0, 3))) as others:
                good = control.encode(control.GoAway())
                socket.send_fds(client, [dice.choice([any_message(dice), good])], others)
        # Who was believed is called; its calls are not answered.

    return script


#: What a client may say of such a server.
TOLD = (shmrpc.ProtocolError, shmrpc.ServiceUnavailable, shmrpc.ConnectionLost, shmrpc.CallError)


@pytest.mark.parametrize("blocking", [False, True], ids=["loop", "threads"])
async def test_a_server_whose_handshake_lies(runtime: Path, blocking: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """A client says so, keeps no descriptor, and its other connections go on."""
    monkeypatch.setattr(control, "STEP_TIMEOUT", 10)
    dice, outcomes = random.Random(11), Counter[str]()

    def in_threads() -> None:
        with shmrpc.sync.connect("liar", timeout=0, call_timeout=0.1) as client:
            client.add(1, 2)

    async def in_a_loop() -> None:
        async with shmrpc.connect("liar", timeout=0, call_timeout=0.1) as client:
            await client.add(1, 2)

    with LyingServer(runtime, handshake_that_lies(dice)):
        async with shmrpc.serve(service), shmrpc.connect("tested") as good:
            assert await good.add(1, 2) == 3
            before = traces.settled_descriptors()
            for _ in range(scaled(40, 300)):
                try:
                    await (asyncio.to_thread(in_threads) if blocking else in_a_loop())
                except TOLD as error:
                    outcomes[type(error).__name__] += 1
                assert await good.add(1, 2) == 3
            assert await eventually_in_loop(lambda: traces.descriptors() == before, 30)
    assert outcomes["RemoteProtocolError"]
    figures.note(f"lies: handshake of a server, {'threads' if blocking else 'loop'}", **outcomes)
