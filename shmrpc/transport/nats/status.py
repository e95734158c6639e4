"""Reports of the servers that NATS reaches."""

from __future__ import annotations

import asyncio
import functools
from typing import Final

from shmrpc.basics.suggestions import closest_match
from shmrpc.errors import RemoteProtocolError, ServiceUnavailable
from shmrpc.host.cleanup import NAME
from shmrpc.transport.nats import messages, subjects
from shmrpc.transport.nats.address import NatsAddress
from shmrpc.transport.nats.link import link
from shmrpc.transport.nats.link.link import Link
from shmrpc.transport.nats.messages import ServerReport

#: Seconds without a report after which no more are expected, and the longest time in total.
_SILENCE: Final = 0.3
_LONGEST: Final = 2.0
#: Seconds that servers have to report to a client that has found none.
_MOMENT: Final = 0.1
#: Largest number of names that one name is compared with.
_MOST_NAMES: Final = 1000


async def find_similar_name(nats_link: Link, service: str) -> str | None:
    """Ask an open link for reports for 0.1 s; return the served name most like this one, None if none is similar."""
    found: set[str] = set()
    inbox = nats_link.open_inbox(functools.partial(_add_name, found))
    try:
        nats_link.publish(subjects.STATUS, b"?", inbox)
        await asyncio.sleep(_MOMENT)
        return closest_match(service, found)
    finally:
        nats_link.close_inbox(inbox)


def _add_name(found: set[str], data: bytes, _: str) -> None:
    """Add the name of the service in a report to ``found``, up to 1,000 names."""
    report = _decode_report(data)
    if report is not None and len(found) < _MOST_NAMES:
        found.add(report.report.service)


def _decode_report(data: bytes) -> ServerReport | None:
    """Return the report in a message, or None if it is invalid, or has a name that no service can have."""
    try:
        message = messages.decode(data) if data else None
    except RemoteProtocolError:
        return None
    return message if isinstance(message, ServerReport) and NAME.fullmatch(message.report.service) else None


async def statuses(address: NatsAddress) -> list[ServerReport]:
    """Return the reports of the servers connected to this NATS, sorted by service and host.

    Once connected, waits until no report has come for 0.3 s, and at most 2 s, so a stopped or distant server may be
    missing. Raises ServiceUnavailable if NATS cannot be reached, or refuses, and ImportError without nats-py.
    """
    nats_link = await link.acquire(address)
    found: list[ServerReport] = []
    answered = asyncio.Event()

    def take(data: bytes, _: str) -> None:
        answered.set()
        report = _decode_report(data)
        if report is not None:
            found.append(report)

    inbox = nats_link.open_inbox(take)
    try:
        nats_link.publish(subjects.STATUS, b"?", inbox)
        async with asyncio.timeout(_LONGEST):
            while True:
                async with asyncio.timeout(_SILENCE):
                    await answered.wait()
                answered.clear()
    except TimeoutError:
        if not found and (
            refused := nats_link.errors.status_refusal or nats_link.errors.recent_refusal().removeprefix(": ")
        ):
            raise ServiceUnavailable(f"NATS at {nats_link} does not let this side ask: {refused}") from None
        return sorted(found, key=lambda each: (each.report.service, each.host, each.report.pid))
    finally:
        nats_link.close_inbox(inbox)
        nats_link.release()
        await nats_link.wait_closed()
