"""A user of NATS with the permissions of a client, and the source at hand, can do nothing to others."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import struct
from collections.abc import AsyncIterator, Iterator
from typing import Any

import msgspec
import nats as nats_py
import pytest

import shmrpc
from shmrpc.transport.nats import messages, subjects
from shmrpc.wire import control, frames
from tests.helpers.nats_servers import NatsServer, flush
from tests.helpers.server_process import PATIENCE

LOOP = "either"

#: The permissions of docs/how-to/hosts.md: front is a server, and a client of back; evil is a client of front.
CONFIG = """
jetstream { store_dir: "%s" }
accounts: { SHOP: { jetstream: enabled, users: [
  { user: evil, password: p, permissions: {
      publish: ["shmrpc.hello.front", "shmrpc.status", "shmrpc.to.>"], subscribe: ["shmrpc.to.evil.>"] } },
  { user: front, password: p, permissions: {
      publish: ["shmrpc.to.>", "shmrpc.hello.back"],
      subscribe: ["shmrpc.hello.front shmrpc", "shmrpc.status", "shmrpc.to.front.>"] } },
  { user: back, password: p, permissions: {
      publish: ["shmrpc.to.>"],
      subscribe: ["shmrpc.hello.back shmrpc", "shmrpc.status", "shmrpc.to.back.>"] } },
  { user: admin, password: p } ] } }
"""
NO_RESPONDERS = b"NATS/1.0 503\r\n\r\n"

back = shmrpc.Service("back")
front = shmrpc.Service("front")
#: The orders that were paid, and those that may go on.
paid: list[str] = []
may_end: list[str] = []


@back.endpoint
async def pay(order: str) -> str:
    paid.append(order)
    while order == "slow" and not may_end:
        await asyncio.sleep(0.01)
    return f"{order} is paid"


@front.endpoint
def hello_there() -> str:
    return "hello"


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NatsServer]:
    server = NatsServer(CONFIG % tmp_path_factory.mktemp("jetstream"))
    yield server
    server.close()


def at(server: NatsServer, user: str) -> str:
    return server.url.replace("://", f"://{user}:p@") + f"?inbox={user}"


@contextlib.asynccontextmanager
async def user(server: NatsServer, name: str) -> AsyncIterator[Any]:
    """Yield a connection of a user to NATS, with NATS's own client."""
    connection = await nats_py.connect(server.url, user=name, password="p", error_cb=_ignore)
    try:
        yield connection
    finally:  # A loop of uvloop that is closed with a connection open may never come back from that.
        await connection.close()


async def until_paid() -> None:
    async with asyncio.timeout(PATIENCE):
        while not paid:
            await asyncio.sleep(0.005)


async def _ignore(_: Exception) -> None:
    pass


@contextlib.asynccontextmanager
async def both(server: NatsServer) -> AsyncIterator[shmrpc.Client]:
    """Front and back, and the client that front's process has of back."""
    paid.clear()
    may_end.clear()
    async with (
        shmrpc.serve(back, at=at(server, "back")),
        shmrpc.serve(front, at=at(server, "front")),
        shmrpc.connect("back", at=at(server, "front"), reconnect=True, timeout=PATIENCE) as client,
    ):
        yield client


def control_message(message: messages.Message) -> bytes:
    data = messages.encode(message)
    return struct.pack("<IQII", 0xFFFF_FFFF, 0, len(data), 0) + data


def hello(inbox: str, **changes: Any) -> bytes:
    versions = (messages.VERSION, control.VERSION)
    said = messages.Hello(versions, 1 << 20, 1 << 20, 2.0, inbox, b"p" * messages.PROOF)
    return messages.encode(msgspec.structs.replace(said, **changes))


async def link_of_front(evil: Any) -> tuple[str, list[str]]:
    """Return the beginning of the subjects of front's process, and the answers to evil, which is a client as well."""
    inbox = "shmrpc.to.evil.x.1"
    answers = await evil.subscribe(inbox)
    await evil.publish("shmrpc.hello.front", hello(inbox), inbox)
    answer = await answers.next_msg(PATIENCE)
    welcome = messages.decode(answer.data[48 + 20 :])
    assert isinstance(welcome, messages.Welcome)
    return welcome.inbox.rpartition(".")[0], [welcome.inbox, answer.reply]


async def send_raw(server: NatsServer, name: str, *lines: bytes) -> None:
    """Send raw lines to NATS, and return once NATS has read them."""
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
    await reader.readline()
    login = b'{"user":"%s","pass":"p","verbose":false,"headers":true,"no_responders":true}' % name.encode()
    writer.write(b"CONNECT " + login + b"\r\n" + b"".join(lines) + b"PING\r\n")
    while not (line := await reader.readline()).startswith(b"PONG"):
        assert line, "NATS has closed the connection"
    writer.close()


def publication(subject: bytes, header: bytes | None, data: bytes, reply: bytes = b"") -> bytes:
    """Return a line of NATS's protocol and its message."""
    if header is None:
        return b"PUB %s %s %d\r\n%s\r\n" % (subject, reply, len(data), data)
    size = len(header)
    return b"HPUB %s %s %d %d\r\n%s%s\r\n" % (subject, reply, size, size + len(data), header, data)


def nothings() -> list[tuple[bytes | None, bytes]]:
    """Return headers and data of messages that look like NATS's report of a subject without subscribers."""
    return [(None, b""), (NO_RESPONDERS, b""), (b"NATS/1.0\r\nStatus: 503\r\n\r\n", b""), (NO_RESPONDERS, b"?")]


async def test_a_client_cannot_end_make_again_or_answer_the_calls_of_others(shop: NatsServer) -> None:
    async with both(shop) as client, user(shop, "evil") as evil:
        link, own = await link_of_front(evil)
        call = asyncio.create_task(client.pay("slow"))
        await until_paid()
        ends = [*map(str, range(40)), "*", ">", "", *(each.rpartition(".")[2] for each in own)]
        welcome = control_message(messages.Welcome(1 << 20, 1 << 20, 2.0, ["pay"], inbox="shmrpc.to.evil.x.1"))
        forged = bytes(16) + struct.pack("<QQQQ", 1, 0, 1 << 20, 0) + welcome
        told = [*nothings(), (None, forged), (None, bytes(16)), (None, b"p" * messages.PROOF)]
        lines = [
            publication(f"{link}.{end}".encode(), header, data, b"shmrpc.to.evil.x.1")
            for end in ends
            for header, data in told
            if end
        ]
        await send_raw(shop, "evil", *lines)
        assert await client.pay("another") == "another is paid"
        may_end.append("slow")
        assert await call == "slow is paid"
        assert paid == ["slow", "another"]


async def test_messages_without_the_proof_are_dropped(shop: NatsServer) -> None:
    async with both(shop) as client, user(shop, "admin") as admin:
        seen = await admin.subscribe("shmrpc.to.>")
        await flush(admin)
        call = asyncio.create_task(client.pay("slow"))
        await until_paid()
        ends = {(await seen.next_msg(PATIENCE)).subject for _ in range(4)}  # Calls, heartbeats and their replies.
        assert len(ends) >= 2
        answer = msgspec.msgpack.encode("forged")
        frame = struct.pack("<IQII", frames.RESULT, 1, len(answer), 0) + answer
        forged = [bytes(16) + struct.pack("<QQQQ", number, 0, 1 << 20, 0) + frame for number in range(1, 6)]
        told = [*nothings(), *((None, data) for data in forged), (None, b"x" * 16), (None, b"x" * 15)]
        lines = [publication(end.encode(), header, data) for end in ends for header, data in told]
        await send_raw(shop, "evil", *lines)
        may_end.append("slow")
        assert await call == "slow is paid"
        assert paid == ["slow"]


async def test_an_inbox_is_known_to_its_peer_alone_and_never_used_again(shop: NatsServer) -> None:
    async with both(shop), user(shop, "admin") as admin:
        said = await admin.subscribe("shmrpc.hello.back")
        await flush(admin)
        ends, proofs = set(), set()
        for _ in range(5):
            async with shmrpc.connect("back", at=at(shop, "front"), timeout=PATIENCE) as client:
                await client.pay("fast")
            message = await said.next_msg(PATIENCE)
            heard = messages.decode(message.data)
            assert isinstance(heard, messages.Hello)
            ends |= {heard.inbox, message.reply}
            proofs.add(heard.proof)
        assert len(ends) == 10 and len(proofs) == 5
        assert all(len(each.rpartition(".")[2]) >= 22 for each in ends)  # 128 bits.


async def test_a_connection_that_is_forgotten_cannot_be_made_to_end_another(shop: NatsServer) -> None:
    """A message of evil's to an unknown end is answered where it asks, with its own bytes and no others."""
    async with both(shop) as client, user(shop, "evil") as evil, user(shop, "admin") as admin:
        link, _ = await link_of_front(evil)
        seen = await admin.subscribe("shmrpc.to.>")
        await flush(admin)
        await client.pay("fast")
        message = await seen.next_msg(PATIENCE)
        for target in (message.subject, message.reply):
            for _ in range(3):
                await evil.publish(f"{link}.unknown", b"x" * 40, target)
        await flush(evil)
        assert await client.pay("fast") == "fast is paid"
        assert await client.pay("fast") == "fast is paid"
        assert paid == ["fast"] * 3


async def test_without_the_permission_to_ask_for_names_a_service_is_unavailable(
    shop: NatsServer, caplog: pytest.LogCaptureFixture
) -> None:
    async with shmrpc.serve(front, at=at(shop, "front")):
        with pytest.raises(shmrpc.ServiceUnavailable, match="no server of 'back'"):
            await shmrpc.connect("back", at=at(shop, "front"), timeout=0.2)
    assert [each.getMessage() for each in caplog.records if each.levelno >= logging.WARNING] == []


#: Headers that nats-py cannot read: it would read nothing more, or end the connection.
HEADERS = [
    b"NATS/1.0\r\n\r\n",
    b"NATS/1.0 999 Weird\r\n\r\n",
    b"NATS/1.0\r\nnocolon\r\n\r\n",
    b"garbage\r\n\r\n",
    b"\x00\xff\xfe\r\n\r\n",
    b"NATS/1.0 \xff\xff\xff \xff\r\n\r\n",
    b"NATS/1.0 503",
    b"\r\n",
    b"N",
]
REPLIES = [b"\xff\xfe", b"a\x0bb", b"a\x0b5", b"\x0c", b"\x00", "é".encode(), b"shmrpc.to.evil.x." + b"y" * 4000]


@pytest.mark.parametrize("subject", ["shmrpc.status", "shmrpc.hello.front", "LINK.unknown", "OWN", "LINK.\x0b\xff"])
async def test_no_message_ends_the_connection_of_a_server_to_nats(
    shop: NatsServer, subject: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    async with both(shop), user(shop, "evil") as evil:
        link, own = await link_of_front(evil)
        where = subject.replace("LINK", link).replace("OWN", own[1]).encode("latin-1")
        lines = [publication(where, header, data) for header in HEADERS for data in (b"", b"x")]
        lines += [publication(where, None, b"x" * 40, reply) for reply in REPLIES]
        async with shmrpc.connect("front", at=at(shop, "evil"), timeout=PATIENCE) as client:
            await client.hello_there()
            await send_raw(shop, "evil", *lines)
            assert await client.hello_there() == "hello"
            assert await client.hello_there() == "hello"
    assert not [each for each in caplog.records if "broke" in each.getMessage() or each.levelno >= logging.ERROR]


async def test_questions_with_a_forbidden_reply_do_not_fill_the_log(
    shop: NatsServer, caplog: pytest.LogCaptureFixture
) -> None:
    async with both(shop), user(shop, "evil") as evil:
        for number in range(30):
            for reply in (f"elsewhere.{number}", "shmrpc.hello.front", "shmrpc.to.evil.x.1", ""):
                await evil.publish(subjects.STATUS, b"?", reply)
        await flush(evil)
        async with shmrpc.connect("front", at=at(shop, "evil"), timeout=PATIENCE) as client:
            assert await client.hello_there() == "hello"
            assert await client.hello_there() == "hello"
    assert [each.getMessage() for each in caplog.records if each.levelno >= logging.WARNING] == []


async def test_a_stream_that_keeps_the_messages_does_not_answer_for_a_server(shop: NatsServer) -> None:
    async with user(shop, "admin") as admin:
        stream = admin.jetstream()
        await stream.add_stream(name="AUDIT", subjects=["shmrpc.>"])
        try:
            async with both(shop) as client:
                assert await client.pay("fast") == "fast is paid"
            words = "no server of 'back' answered .*: none is running while a NATS stream or monitor"
            with pytest.raises(shmrpc.ServiceUnavailable, match=words):
                await shmrpc.connect("back", at=at(shop, "front"), timeout=0)
        finally:
            await stream.delete_stream("AUDIT")
