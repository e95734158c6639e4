"""Many clients of the watched service in one process: ``python -m tests.reliability.limits.client_crowd HOW COUNT``.

``stay``: all connect and call; then, for each line on stdin, all call again. ``storm``: all connect at once after a
line on stdin. ``pass``: they connect, call and leave, a few at a time. Each prints a line of JSON about its work.
"""

from __future__ import annotations

import asyncio
import json
import resource
import sys
import time

import shmrpc

#: Clients that are connected at a time in ``pass``.
FEW = 4
#: Seconds to wait for the server.
PATIENCE = 120


def report(**what: object) -> None:
    sys.stdout.write(json.dumps(what) + "\n")
    sys.stdout.flush()


async def line() -> str:
    return await asyncio.to_thread(sys.stdin.readline)


async def check(client: shmrpc.Client, i: int) -> None:
    assert await client.add(i, 1) == i + 1


async def stay(count: int) -> None:
    clients = [await shmrpc.connect("tested.watched", timeout=PATIENCE) for _ in range(count)]
    report(connected=len(clients))
    while await line():
        await asyncio.gather(*(check(client, i) for i, client in enumerate(clients)))
        report(called=len(clients))
    for client in clients:
        await client.close()


async def storm(count: int) -> None:
    report(ready=count)
    await line()
    times: list[float] = []

    async def connect_and_call(i: int) -> None:
        start = time.monotonic()
        async with shmrpc.connect("tested.watched", timeout=PATIENCE) as client:
            await check(client, i)
            times.append(time.monotonic() - start)

    await asyncio.gather(*(connect_and_call(i) for i in range(count)))
    report(times=times)


async def pass_by(count: int) -> None:
    async def connect_and_call(numbers: range) -> None:
        for i in numbers:
            async with shmrpc.connect("tested.watched", timeout=PATIENCE) as client:
                await check(client, i)

    await asyncio.gather(*(connect_and_call(range(n, count, FEW)) for n in range(FEW)))
    report(passed=count)


def main() -> None:
    how, count = sys.argv[1], int(sys.argv[2])
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    asyncio.run({"stay": stay, "storm": storm, "pass": pass_by}[how](count))


if __name__ == "__main__":
    main()
