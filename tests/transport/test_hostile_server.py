"""A server that lies, stalls or babbles: the client reads what was wrong, and keeps no descriptor."""

from __future__ import annotations

import contextlib
import os
import socket
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgpack
import pytest

import shmrpc
from shmrpc import _core
from shmrpc.transport.shm.segment import NewSegment
from shmrpc.wire import control

#: The reaction of a server to the hello of a client.
Answer = Callable[[socket.socket, control.Hello], None]


def welcome(**changes: Any) -> bytes:
    fields = {
        "type": "welcome",
        "service": "tested",
        "pid": os.getpid(),
        "segment": "shmrpc.tested." + "0" * 32,
        "capacity": 65536,
        "semaphores": ["a", "b"],
        "max_frame": 2000,
        "endpoints": ["add"],
    }
    packed: bytes = msgpack.packb(fields | changes)
    return packed


def say(packet: bytes, descriptors: int = 0) -> Answer:
    """Answers hello with this packet and so many sockets."""

    def answer(client: socket.socket, hello: control.Hello) -> None:
        sockets = [socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) for _ in range(descriptors)]
        socket.send_fds(client, [packet], [each.fileno() for each in sockets])
        for each in sockets:
            each.close()

    return answer


def with_segment(capacity: int, *, as_asked: bool = True) -> Answer:
    """Return an answer with a segment that exists, of this alleged capacity, but was never laid out.

    ``as_asked``: it has semaphores if the client has asked for them; else only if the client has not.
    """

    def answer(client: socket.socket, hello: control.Hello) -> None:
        segment = NewSegment("tested", semaphores=hello.semaphores == as_asked)
        try:
            say(welcome(segment=segment.name, semaphores=segment.semaphores, capacity=capacity), 2)(client, hello)
            client.recv(1000)
        finally:
            segment.unlink()

    return answer


@contextlib.contextmanager
def fake_server(runtime: Path, answer: Answer) -> Iterator[None]:
    runtime.mkdir(mode=0o700)
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listening:
        listening.bind(str(runtime / "tested.sock"))
        listening.listen(1)

        def serve() -> None:
            client, _ = listening.accept()
            with client, contextlib.suppress(ConnectionError):
                hello = control.decode(client.recv(1000))
                assert isinstance(hello, control.Hello)
                answer(client, hello)
                client.recv(1000)

        thread = threading.Thread(target=serve)
        thread.start()
        yield
        thread.join(10)
        assert not thread.is_alive()


async def connect(blocking: bool, timeout: float) -> None:
    if blocking:
        shmrpc.sync.connect("tested", timeout=timeout, max_frame=1 << 20).__enter__()
    else:
        await shmrpc.connect("tested", timeout=timeout, max_frame=1 << 20)


LIES = [
    (say(b"\xc1"), "cannot be decoded"),
    (say(msgpack.packb({"type": "unheard of"})), "cannot be decoded"),
    (say(msgpack.packb({"type": "confirm"})), "expected welcome, got confirm"),
    (say(welcome(), 0), "0 descriptors with its welcome instead of 2"),
    (say(welcome(), 5), "5 descriptors with its welcome instead of 2"),
    (say(welcome(max_frame=1 << 30), 2), "max_frame"),
    (say(welcome(max_frame=-1), 2), "max_frame"),
    (say(welcome(), 2), "cannot be opened"),
    (say(welcome(segment="../../etc/passwd"), 2), "cannot be opened"),
    (say(welcome(endpoints=5), 2), "cannot be decoded"),
    (say(welcome(endpoints=["add", 5]), 2), "cannot be decoded"),
    (say(welcome(service=5), 2), "cannot be decoded"),
    *((say(welcome(pid=value), 2), r"\$\.pid") for value in (0, -1, 2**31, 2**64 - 1, "1", 1.5)),
    *((say(welcome(capacity=value), 2), r"\$\.capacity") for value in (0, 1023, 2**30 + 1, 2**64 - 1, "1", None)),
    *((say(welcome(max_frame=value), 2), r"max_frame") for value in (0, 1023, 2**20 + 1, 2**40, 2**64 - 1, None)),
    *((say(welcome(max_memory=value), 2), r"max_memory") for value in (0, 2**20 - 1, 2**30 + 1, 2**43, None)),
    *((say(welcome(semaphores=value), 2), r"\$\.semaphores") for value in ([], ["a"], ["a", "b", "c"], [1, 2])),
    (say(welcome(shapes={1: {"streams": True}}), 2), r"\$\.shapes"),
    (say(welcome(shapes=[{"streams": 1}]), 2), r"\$\.shapes"),
    (say(welcome(shapes=[None, None]), 2), "sent 1 endpoints, but 2 shapes"),
    *(
        (say(welcome(shapes=[{"inputs": value}]), 2), r"inputs")
        for value in ({"a": 0}, ["a"], [["a"]], [["a", -2]], [["a", 2**24]])
    ),
    (with_segment(65536, as_asked=False), "semaphores .* that are not those of"),
    (with_segment(65536), "segment (ready|magic) is 0x0 instead of"),
    (with_segment(32768), "bytes instead of"),
    (with_segment(12345), "not a power of two"),
    (with_segment(-1), r"cannot be decoded.*\$\.capacity"),
]


@pytest.mark.parametrize(("answer", "words"), LIES)
@pytest.mark.parametrize("blocking", [False, True])
async def test_a_server_that_lies(runtime: Path, answer: Answer, words: str, blocking: bool) -> None:
    before = len(os.listdir("/proc/self/fd"))
    with fake_server(runtime, answer):
        with pytest.raises(shmrpc.RemoteProtocolError, match=words):
            await connect(blocking, timeout=30)
    # Fewer, if what an earlier test has left was collected meanwhile.
    assert len(os.listdir("/proc/self/fd")) <= before


@pytest.mark.parametrize("blocking", [False, True])
async def test_a_server_that_says_nothing(runtime: Path, monkeypatch: pytest.MonkeyPatch, blocking: bool) -> None:
    monkeypatch.setattr(control, "STEP_TIMEOUT", 0.05)
    with fake_server(runtime, lambda client, hello: None):
        with pytest.raises(shmrpc.ServiceUnavailable):
            await connect(blocking, timeout=0)


async def test_a_server_that_refuses(runtime: Path) -> None:
    packet: bytes = msgpack.packb({"type": "refuse", "reason": "not today"})
    with fake_server(runtime, say(packet)):
        with pytest.raises(shmrpc.ServiceUnavailable, match="refused the connection: not today"):
            await shmrpc.connect("tested", timeout=30)


def open_to_others(runtime: Path) -> None:
    runtime.mkdir()
    runtime.chmod(0o755)


def a_file(runtime: Path) -> None:
    runtime.touch()


def a_link(runtime: Path) -> None:
    (runtime.parent / "real").mkdir(mode=0o700)
    runtime.symlink_to(runtime.parent / "real")


def of_another_user(runtime: Path) -> None:
    runtime.mkdir(mode=0o700)
    if os.geteuid() != 0:
        pytest.skip("only root can give a directory away")
    os.chown(runtime, 12345, 12345)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (open_to_others, "chmod 700"),
        (a_file, "not a directory"),
        (a_link, "not a directory"),
        (of_another_user, "belongs to uid 12345"),
    ],
)
async def test_an_unsafe_rendezvous_directory_is_refused(
    runtime: Path, make: Callable[[Path], None], words: str
) -> None:
    make(runtime)
    service = shmrpc.Service("tested")
    with pytest.raises(shmrpc.LocalProtocolError, match=words):
        async with shmrpc.serve(service):
            pass
    with pytest.raises(shmrpc.LocalProtocolError, match=words):
        await shmrpc.connect("tested", timeout=0)


async def test_a_runtime_directory_that_is_missing(runtime: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(runtime / "absent"))
    with pytest.raises(shmrpc.LocalProtocolError, match=r"absent does not exist.*XDG_RUNTIME_DIR"):
        await shmrpc.connect("tested", timeout=0)


async def test_a_path_too_long_for_a_socket(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    deep = tmp_path / ("d" * 90)
    deep.mkdir()
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(deep))
    with pytest.raises(ValueError, match="over 107 bytes"):
        await shmrpc.connect("tested", timeout=0)


async def test_shared_memory_that_is_full(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(name: str, size: int) -> None:
        raise OSError(28, "No space left on device")

    service = shmrpc.Service("tested")
    async with shmrpc.serve(service):
        with monkeypatch.context() as patched:
            patched.setattr(_core, "create_segment", full)
            with pytest.raises(shmrpc.ServiceUnavailable, match=r"6,144 bytes.*remount,size="):
                await shmrpc.connect("tested", timeout=30)
        async with shmrpc.connect("tested", timeout=30):
            pass
