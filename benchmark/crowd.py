"""Many client processes of one server: a process that has imported what they need, and forks them.

Starting an interpreter for each would take longer than the calls do. The process that forks has no loop, no thread
and no connection; each client makes its own.
"""

from __future__ import annotations

import multiprocessing
import time
import traceback
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any, Final

from benchmark import loads, sync_loads
from benchmark.processes import Caller, Child, Failed, Rendezvous, function, prepare, run
from benchmark.results import Result
from benchmark.subjects import Loop, Subject

#: Seconds that clients have to connect, or to return what they found.
_PATIENCE: Final = 20.0
#: Seconds from when all are connected to when they begin, so that each hears of it in time.
_AHEAD: Final = 0.02
#: Seconds that a client has to disconnect.
_DISCONNECT: Final = 2.0

_fork: Final = multiprocessing.get_context("fork")


def start(subject: Subject, place: Rendezvous) -> Child:
    """Return a crowd of clients, empty at first, for the server at this place."""
    return Child(_main, subject.connect, subject.loop, place)


class _Client:
    """One of them, seen from the process that forked it."""

    def __init__(self, name: str, loop: Loop, place: Rendezvous) -> None:
        self._connection, theirs = _fork.Pipe()
        self._process = _fork.Process(target=_call, args=(name, loop, place, theirs))
        self._process.start()
        theirs.close()

    def tell(self, order: dict[str, float]) -> None:
        """When to begin, and for how long to call."""
        self._connection.send(order)

    def hear(self, end: float) -> Any:
        """Return the next message of the process until the time ``end``."""
        if not self._connection.poll(max(0.0, end - time.monotonic())):
            raise Failed("a client said nothing")
        said = self._connection.recv()
        if isinstance(said, Failed):
            raise said
        return said

    def end(self) -> None:
        """Wait until a client with an order to call has disconnected; kill any other one."""
        self._process.join(_DISCONNECT)
        self._process.kill()
        self._process.join()
        self._connection.close()


def _call(name: str, loop: Loop, place: Rendezvous, connection: Connection) -> None:
    """Run a client: connect, report that, wait for the start, and send the result."""
    prepare(place, None)
    try:
        if loop == "none":
            with function(name)(place) as client:
                client.add(1, 2)
                connection.send("connected")
                connection.send(sync_loads.for_a_while(Caller(client, _nobody), **connection.recv()))
        else:
            run(loop, _call_in_loop(name, place, connection))
    except Exception as error:
        traceback.print_exc()
        connection.send(Failed(f"{type(error).__name__}: {error}"))


async def _call_in_loop(name: str, place: Rendezvous, connection: Connection) -> None:
    async with function(name)(place) as client:
        await client.add(1, 2)
        connection.send("connected")
        # Nothing of it is measured while it waits here.
        connection.send(await loads.for_a_while(Caller(client, _nobody), **connection.recv()))


def _nobody() -> Any:
    raise NotImplementedError("a client of a crowd connects once")


def _main(name: str, loop: Loop, place: Rendezvous, connection: Connection) -> None:
    """Run the process that forks the clients; its parent sends three orders."""
    prepare(place, None)
    function(name)  # The imports, once for all.
    connection.send("ready")
    crowd: list[_Client] = []

    def gather(clients: int) -> None:
        crowd.extend(_Client(name, loop, place) for _ in range(clients))
        end = time.monotonic() + _PATIENCE
        for client in crowd:
            client.hear(end)

    def call(seconds: float) -> Result:
        order = {"seconds": seconds, "start_at": time.monotonic() + _AHEAD}
        for client in crowd:
            client.tell(order)
        end = time.monotonic() + seconds + _PATIENCE
        return _together([client.hear(end) for client in crowd])

    def leave() -> None:
        while crowd:
            crowd.pop().end()

    orders: dict[str, Callable[..., Result | None]] = {"gather": gather, "call": call, "leave": leave}
    while (order := connection.recv()) is not None:
        word, parameters = order
        try:
            connection.send(orders[word](**parameters))
        except (Failed, OSError, EOFError) as error:
            connection.send(Failed(str(error) or "a client ended"))
    leave()


def _together(results: list[Result]) -> Result:
    calls = [result.calls for result in results]
    fair = sum(calls) / len(calls) or 1.0
    return Result(
        sum(calls),
        results[0].seconds,
        cpu=sum(result.cpu for result in results),
        extra={"least": min(calls) / fair},
    )
