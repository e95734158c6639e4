"""Redis: a server of its own on a UNIX socket, and a hash in it; nothing is written to the disk.

What it can do in one step it does so: HINCRBY, and MULTI for ten changes, in one packet.
"""

from __future__ import annotations

import contextlib
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from typing import Any, Final

import redis

from benchmark.processes import NotStarted, Rendezvous
from benchmark.queue_work import Part
from benchmark.store_work import FIELDS, KEYS, Kept, ValueStore, keys, nine, one, ten
from benchmark.subjects import Loop

#: Seconds that it may take to start.
_START: Final = 10.0


def serve(place: Rendezvous, ready: Callable[[], None]) -> None:
    """Run the server."""
    options = ["--port", "0", "--unixsocket", place.socket(), "--save", "", "--appendonly", "no"]
    with subprocess.Popen(["redis-server", *options, "--dir", place.directory], stdout=subprocess.DEVNULL) as server:
        try:
            end = time.monotonic() + _START
            while not _is_there(place):
                if time.monotonic() > end or server.poll() is not None:
                    raise NotStarted("redis-server does not answer")
                time.sleep(0.01)
            ready()
            signal.pause()
        finally:
            server.terminate()


def _is_there(place: Rendezvous) -> bool:
    with contextlib.suppress(redis.ConnectionError, OSError), redis.Redis(unix_socket_path=place.socket()) as client:
        return bool(client.ping())
    return False


class _Hash:
    loop: Loop = "none"

    def __init__(self, place: Rendezvous) -> None:
        self.place = place

    @contextlib.contextmanager
    def open(self, part: Part) -> Iterator[Kept]:
        with redis.Redis(unix_socket_path=self.place.socket()) as client:
            names: dict[str, Any] = {"increment": client.hincrby, "get": client.hget, "set": client.hset}

            def reset() -> None:
                client.hset("fields", mapping=dict.fromkeys(FIELDS, 0))
                client.hset("keys", mapping=dict.fromkeys(KEYS, 1))

            added = "increment('fields', '{name}', 1)"
            yield Kept(
                reset,
                lambda: [int(client.hget("fields", name) or 0) for name in FIELDS],
                nine(added, **names),
                one(added, **names),
                one("int(get('fields', '{name}'))", **names),
                ten(
                    "commands.hincrby('fields', '{name}', 1)",
                    "with pipeline() as commands:",
                    pipeline=_pipeline(client),
                ),
                keys("int(get('keys', key))", **names),
                keys("set('keys', key, 7)", **names),
                keys("increment('keys', key, 1)", **names),
                lambda: sum(map(int, client.hvals("keys"))),
            )


def _pipeline(client: Any) -> Callable[[], contextlib.AbstractContextManager[Any]]:
    @contextlib.contextmanager
    def pipeline() -> Iterator[Any]:
        with client.pipeline(transaction=True) as commands:
            yield commands
            commands.execute()

    return pipeline


@contextlib.contextmanager
def connect(place: Rendezvous) -> Iterator[ValueStore]:
    """Yield each process has a connection of its own."""
    yield _Hash(place)
