"""Hostile peers over NATS: each harms its own connection, and no other."""

from __future__ import annotations

import asyncio
import logging
import struct
from typing import Any

import msgspec
import pytest
from click.testing import CliRunner

import shmrpc
from shmrpc.basics.printable import one_line
from shmrpc.cli import main
from shmrpc.transport.nats import messages, status, subjects
from shmrpc.transport.nats.address import parse
from shmrpc.transport.nats.pipe import frame_reader, pipe
from shmrpc.wire import control, frames
from tests.helpers.nats_servers import NatsServer, flush
from tests.helpers.server_process import PATIENCE
from tests.hosts.test_nats_attacks import at, both, control_message, front, hello, shop, user

LOOP = "either"

__all__ = ["shop"]  # A fixture.

plenty = shmrpc.Service("front")
long = shmrpc.Service("long")


@plenty.endpoint
def much(count: int) -> bytes:
    return b"x" * count


for number in range(200):
    long.endpoint(name=f"endpoint_{number:050}")(lambda: None)


class HostileClient:
    """A client that sends the messages of a test, and records those that it receives."""

    def __init__(self, connection: Any, inbox: str) -> None:
        self._connection = connection
        self._inbox = inbox
        self._number = self._received_bytes = 0
        self.said: list[bytes] = []

    async def greet(self, **changes: Any) -> messages.Welcome:
        """Connect to front."""
        has_come = asyncio.Event()

        async def take(message: Any) -> None:
            self._received_bytes += 1
            self.said.append(message.data)
            has_come.set()

        await self._connection.subscribe(self._inbox, cb=take)
        await self._connection.publish("shmrpc.hello.front", hello(self._inbox, **changes), self._inbox)
        async with asyncio.timeout(PATIENCE):
            await has_come.wait()
        welcome = messages.decode(self.said[0][48 + 20 :])
        assert isinstance(welcome, messages.Welcome)
        self._welcome = welcome
        return welcome

    async def say(self, data: bytes = b"", window: int = 1 << 20) -> None:
        """Send a message with these frames."""
        self._number += 1
        header = struct.pack("<QQQQ", self._number, self._received_bytes, window, 0)
        await self._connection.publish(self._welcome.inbox, self._welcome.proof + header + data, self._inbox)
        await flush(self._connection)


def warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [each.getMessage() for each in caplog.records if each.levelno >= logging.WARNING]


async def still_serves(shop: NatsServer) -> None:
    async with shmrpc.connect("front", at=at(shop, "evil"), timeout=PATIENCE) as client:
        assert await client.hello_there() == "hello"


TOO_LONG = ["shmrpc.to.evil.x." + "y" * 5000, f"shmrpc.to.{'e' * 5000}.x.1", f"shmrpc.to.evil.{'x' * 5000}.1"]


@pytest.mark.parametrize("inbox", TOO_LONG)
async def test_a_client_with_a_long_inbox_does_not_end_the_connection_to_nats(
    shop: NatsServer, inbox: str, caplog: pytest.LogCaptureFixture
) -> None:
    """NATS cuts off who sends a line that is longer than it takes, and a subject is part of a line."""
    async with both(shop) as client, user(shop, "evil") as evil:
        call = asyncio.create_task(client.pay("fast"))
        await evil.publish("shmrpc.hello.front", hello(inbox))
        await evil.publish("shmrpc.hello.front", hello(inbox), "shmrpc.to.evil.x.1")
        await flush(evil)
        assert await call == "fast is paid"
        await still_serves(shop)
    assert not [each for each in warnings(caplog) if "broke" in each]


async def test_a_server_with_a_long_inbox_does_not_end_its_clients_connection_to_nats(shop: NatsServer) -> None:
    async with both(shop) as client, user(shop, "admin") as admin:
        welcome = messages.Welcome(1 << 20, 1 << 20, 2.0, [], inbox=TOO_LONG[0], proof=b"p" * messages.PROOF)

        async def welcome_with_a_long_inbox(message: Any) -> None:
            heard = messages.decode(message.data)
            assert isinstance(heard, messages.Hello)
            said = heard.proof + struct.pack("<QQQQ", 1, 0, 1 << 20, 0) + control_message(welcome)
            await admin.publish(heard.inbox, said)

        await admin.subscribe("shmrpc.hello.hostile", cb=welcome_with_a_long_inbox)
        await flush(admin)
        with pytest.raises(shmrpc.RemoteProtocolError, match="as its subject") as error:
            await shmrpc.connect("hostile", at=at(shop, "admin"), timeout=PATIENCE)
        assert len(str(error.value)) < 500
        assert await client.pay("fast") == "fast is paid"


async def test_a_message_of_the_connection_has_a_limit(shop: NatsServer, caplog: pytest.LogCaptureFixture) -> None:
    async with both(shop), user(shop, "evil") as evil:
        hostile = HostileClient(evil, "shmrpc.to.evil.x.2")
        await hostile.greet()
        await hostile.say(struct.pack("<IQII", frame_reader.CONTROL, 0, messages.MAX_MESSAGE + 1, 0))
        await still_serves(shop)
    assert [each for each in warnings(caplog) if f"a body of {messages.MAX_MESSAGE + 1} bytes" in each]


async def test_a_service_has_no_more_endpoints_than_a_welcome_takes(shop: NatsServer) -> None:
    huge = shmrpc.Service("front")
    for number in range(1100):
        huge.endpoint(name=f"endpoint_{number:01000}")(lambda: None)
    with pytest.raises(ValueError, match="split it into several services"):
        async with shmrpc.serve(huge, at=at(shop, "front")):
            pass


async def test_a_client_that_takes_nothing_does_not_hold_up_a_server_that_stops(
    shop: NatsServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pipe, "_MIN_CLOSE_TIMEOUT", 0.1)
    async with user(shop, "evil") as evil:
        hostile = HostileClient(evil, "shmrpc.to.evil.x.3")

        async def go_on() -> None:
            while True:
                await hostile.say(window=0)
                await asyncio.sleep(0.05)

        async with asyncio.timeout(PATIENCE), shmrpc.serve(plenty, at=at(shop, "front")):
            await hostile.greet(heartbeat=3600.0)
            call = msgspec.msgpack.encode([400_000])
            await hostile.say(struct.pack("<IQII", frames.CALL, 1, len(call), 0) + call, window=0)
            attacking = asyncio.create_task(go_on())
        assert not attacking.done()
        attacking.cancel()


async def test_faults_do_not_fill_the_log_or_forge_lines_of_it(
    shop: NatsServer, caplog: pytest.LogCaptureFixture
) -> None:
    forged = "fault\nERROR: all is lost\x1b[2J" + "z" * 50_000
    async with both(shop), user(shop, "evil") as evil:
        for number in range(20):
            hostile = HostileClient(evil, f"shmrpc.to.evil.y.{number}")
            await hostile.greet()
            await hostile.say(control_message(_unchecked(forged)))
            hello_of_no_kind = msgspec.msgpack.encode({"type": forged, "inbox": f"shmrpc.to.evil.y.{number}"})
            await evil.publish("shmrpc.hello.front", hello_of_no_kind)
        await flush(evil)
        await still_serves(shop)
    said = warnings(caplog)
    assert 1 <= len(said) <= 4
    assert all(each.isprintable() and len(each) < 3000 for each in said)


def _unchecked(reason: str) -> control.Goodbye:
    goodbye = control.Goodbye("", fault=True)
    goodbye.reason = reason
    return goodbye


async def test_a_report_that_nats_does_not_take_goes_without_its_endpoints() -> None:
    server = NatsServer("max_payload: 4096")
    try:
        async with shmrpc.serve(long, at=server.url), shmrpc.connect("long", at=server.url, timeout=PATIENCE) as client:
            address, _ = parse(server.url.removeprefix("nats://"))
            [report] = await status.statuses(address)
            assert (report.report.service, report.report.endpoints) == ("long", [])
            assert await client.call(f"endpoint_{0:050}") is None
    finally:
        server.close()


async def test_reports_of_others_are_checked_and_written_as_text(shop: NatsServer) -> None:
    async with shmrpc.serve(front, at=at(shop, "front")), user(shop, "admin") as admin:

        async def welcome_with_a_long_inbox(message: Any) -> None:
            for service in ("x" * 5000, "a\x1b[2Jb", "", "ours"):
                said = control.StatusReport(service, 1, 0.0, ["a\nb"], 0)
                await admin.publish(message.reply, messages.encode(messages.ServerReport("h\x1b[2J", said)))

        await admin.subscribe(subjects.STATUS, cb=welcome_with_a_long_inbox)
        await flush(admin)
        listed = await asyncio.to_thread(CliRunner().invoke, main, ["ls", "--at", at(shop, "admin")])
        assert listed.exit_code == 0, listed.output
        rows = [line.split("  ")[0] for line in listed.output.splitlines()]
        assert rows == ["NAME", "front", "ours"]
        assert all(line.isprintable() for line in listed.output.splitlines())
        assert r"h\x1b[2J" in listed.output and r"a\nb" in listed.output


def test_words_of_a_peer_are_one_short_line() -> None:
    assert one_line("as it is: ä") == "as it is: ä"
    assert one_line("a\nb\x1b\u2028") == r"a\nb\x1b\u2028"
    assert len(one_line("x" * 100_000)) < 3000
    packet = control.encode(_unchecked("a\nb"))
    read = control.decode(packet)
    assert isinstance(read, control.Goodbye) and read.reason == r"a\nb"
    with pytest.raises(shmrpc.RemoteProtocolError, match=r"Invalid value 'a\\nb'"):
        control.decode(msgspec.msgpack.encode({"type": "a\nb"}))
