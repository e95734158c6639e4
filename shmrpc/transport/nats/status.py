"""Which servers there are, as they say themselves."""

from __future__ import annotations

import asyncio
from typing import Final

from shmrpc.errors import RemoteProtocolError, ServiceUnavailable
from shmrpc.transport.nats import link, messages, subjects
from shmrpc.transport.nats.address import Address
from shmrpc.transport.nats.messages import Report

#: Seconds without a further answer after which no more are expected, and those that all of it takes at most.
_SILENCE: Final = 0.3
_LONGEST: Final = 2.0


async def statuses(address: Address) -> list[Report]:
    """What the servers that reach NATS here say of themselves, by service and host.

    A server that is stopped, or far away, may be missing. Raises ServiceUnavailable if NATS cannot be reached, or
    refuses.
    """
    joined = await link.join(address)
    found: list[Report] = []
    answered = asyncio.Event()

    def take(data: bytes, _: str) -> None:
        answered.set()
        if data:
            try:
                message = messages.decode(data)
            except RemoteProtocolError:
                return  # Somebody else's: everybody may send here.
            if isinstance(message, Report):
                found.append(message)

    box = joined.open_box(take)
    try:
        joined.post(subjects.STATUS, b"?", box)
        async with asyncio.timeout(_LONGEST):
            while True:
                async with asyncio.timeout(_SILENCE):
                    await answered.wait()
                answered.clear()
    except TimeoutError:
        if not found and (refused := joined.why_silent().removeprefix(": ")):
            raise ServiceUnavailable(f"NATS at {joined} does not let this side ask: {refused}") from None
        return sorted(found, key=lambda each: (each.report.service, each.host, each.report.pid))
    finally:
        joined.close_box(box, take)
        joined.leave()
        await joined.wait_closed()
