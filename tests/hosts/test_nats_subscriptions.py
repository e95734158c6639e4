"""The subscriptions of servers at NATS: none stays after a failure, a reconnection or the end of its server."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Callable, Iterator

import pytest

import shmrpc
from shmrpc.transport.nats import address, status, subjects
from shmrpc.transport.nats.link import link as links
from shmrpc.transport.nats.link.link import Link
from tests.helpers.nats_servers import NatsServer
from tests.helpers.server_process import PATIENCE

service = shmrpc.Service("tested.subscriptions")

#: Configuration in which the only user may not subscribe to the hellos of the service.
NO_HELLOS = f"""authorization {{ users: [
  {{ user: u, password: p, permissions: {{ subscribe: {{ deny: ["{subjects.hello(service.name)}"] }} }} }}
] }}"""


@service.endpoint
def double(number: int) -> int:
    return 2 * number


@pytest.fixture
def own() -> Iterator[NatsServer]:
    """Yield a server of NATS that the test may kill."""
    server = NatsServer()
    yield server
    server.close()


@contextlib.asynccontextmanager
async def used_link(url: str) -> AsyncIterator[Link]:
    """Yield the link of this loop to a URL, used by the test too, so that the link stays open without a server."""
    link = await links.acquire(address.parse(url.removeprefix("nats://"))[0])
    try:
        yield link
    finally:
        link.release()
        await link.wait_closed()


def subscribed(link: Link) -> list[str]:
    """Return the subjects of the subscriptions of a link, without that of the link itself."""
    return sorted(each.subject for each in link._nats._subs.values() if not each.subject.startswith("shmrpc.to."))


def fail_flushes(patched: pytest.MonkeyPatch, failing: Callable[[int], bool]) -> list[int]:
    """Let each flush of a link for which ``failing`` is true, given its number, end as after its 2 s.

    Return the list of the numbers of the flushes so far.
    """
    flush, numbers = Link.flush, list[int]()

    async def flush_or_fail(link: Link) -> bool:
        numbers.append(len(numbers))
        return not failing(numbers[-1]) and await flush(link)

    patched.setattr(Link, "flush", flush_or_fail)
    return numbers


async def until(condition: Callable[[], object]) -> None:
    async with asyncio.timeout(PATIENCE):
        while not condition():
            await asyncio.sleep(0.005)


async def test_a_subscription_that_nats_refuses_is_removed() -> None:
    nats = NatsServer(NO_HELLOS)
    try:
        async with used_link(nats.url.replace("://", "://u:p@")) as link:
            with pytest.raises(shmrpc.ConnectionLost, match="(?i)permissions violation"):
                await link.subscribe(subjects.hello(service.name), lambda data, reply: None)
            await until(lambda: not subscribed(link))
    finally:
        nats.close()


async def test_a_subscription_that_is_not_confirmed_in_time_ends(
    nats: NatsServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    arrived: list[bytes] = []
    async with used_link(nats.url) as link:
        with monkeypatch.context() as patched:
            fail_flushes(patched, lambda number: True)
            with pytest.raises(shmrpc.ConnectionLost, match="does not deliver messages to 'shmrpc.tested'"):
                await link.subscribe("shmrpc.tested", lambda data, reply: arrived.append(data))
        await until(lambda: not subscribed(link))
        link.publish("shmrpc.tested", b"after the end")
        assert await link.flush()
        assert not arrived


async def test_a_subscription_whose_caller_is_cancelled_ends(nats: NatsServer, monkeypatch: pytest.MonkeyPatch) -> None:
    begun = asyncio.Event()

    async def never(_: Link) -> bool:
        begun.set()
        await asyncio.Event().wait()
        return True

    async with used_link(nats.url) as link:
        with monkeypatch.context() as patched:
            patched.setattr(Link, "flush", never)
            subscribing = asyncio.ensure_future(link.subscribe("shmrpc.tested", lambda data, reply: None))
            await begun.wait()
            subscribing.cancel()
            with pytest.raises(asyncio.CancelledError):
                await subscribing
        await until(lambda: not subscribed(link))


@pytest.mark.parametrize("confirmed", [0, 1])
async def test_failed_rounds_of_a_reconnection_leave_one_use_and_one_subscription_of_each_kind(
    own: NatsServer, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, confirmed: int
) -> None:
    """Of each round's subscriptions, the hellos' or the status requests' is not confirmed; the link stays open."""
    caplog.set_level(logging.INFO, "shmrpc.server")
    async with shmrpc.serve(service, at=own.url):
        with monkeypatch.context() as patched:
            numbers = fail_flushes(patched, lambda number: number >= confirmed)
            own.kill()
            own.start()
            await until(lambda: len(numbers) > confirmed + 3)
        async with used_link(own.url) as link:
            await until(lambda: f"serving at {own.url} again" in caplog.text)
            await until(lambda: subscribed(link) == [subjects.hello(service.name), subjects.STATUS])
            async with shmrpc.connect(service.name, at=own.url, timeout=PATIENCE) as client:
                assert await client.double(2) == 4
            await until(lambda: link.users == 2)  # The server's, and the test's.
            reports = await status.statuses(address.parse(own.url.removeprefix("nats://"))[0])
            assert [each.report.service for each in reports] == [service.name]
    assert not links._links[asyncio.get_running_loop()]


async def test_a_closed_server_reports_no_status_over_a_link_that_others_use(nats: NatsServer) -> None:
    async with used_link(nats.url) as link:
        async with shmrpc.serve(service, at=nats.url):
            assert subscribed(link) == [subjects.hello(service.name), subjects.STATUS]
        await until(lambda: not subscribed(link))
        assert link.users == 1
