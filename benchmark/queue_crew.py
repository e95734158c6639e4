"""The processes at the ends of a queue: forked when their turn comes, gone when it is over."""

from __future__ import annotations

import asyncio
import dataclasses
import multiprocessing
import time
import traceback
from collections.abc import Callable, Iterable, Sequence
from multiprocessing.connection import Connection
from types import TracebackType
from typing import Any, Final

from benchmark.processes import Failed, Rendezvous, prepare, run
from benchmark.queue_work import End, Part, Way

#: Seconds that a process has to open its end, or to do what it does beyond its time.
_PATIENCE: Final = 20.0
#: Seconds from when all are there to when they begin, so that each hears of it in time.
_AHEAD: Final = 0.01
#: Seconds that a process has to leave.
_LEAVE: Final = 3.0

_fork: Final = multiprocessing.get_context("fork")


@dataclasses.dataclass
class Duty:
    """The arguments of a process: its end of the queue, its part, and the connection to the process that forked it."""

    place: Rendezvous
    end: End
    part: Part
    _connection: Connection

    def begin(self) -> None:
        """Says that it is there, and waits until all begin."""
        self._connection.send("there")
        time.sleep(max(0.0, self._connection.recv() - time.monotonic()))

    def tell(self, said: Any) -> None:
        """Says something, and waits for an answer."""
        self._connection.send(said)
        self._connection.recv()


class _Worker:
    def __init__(self, way: Way, part: Part, work: Callable[..., Any], parameters: dict[str, Any]) -> None:
        self._connection, theirs = _fork.Pipe()
        self._process = _fork.Process(target=_main, args=(way, part, work, parameters, theirs))
        self._process.start()
        theirs.close()

    def say(self, word: Any) -> None:
        self._connection.send(word)

    def hear(self, end: float) -> Any:
        """Return the next message of the process until the time ``end``."""
        if not self._connection.poll(max(0.0, end - time.monotonic())):
            raise Failed("a process of the queue said nothing")
        said = self._connection.recv()
        if isinstance(said, Failed):
            raise said
        return said

    def leave(self, patience: float) -> None:
        self._process.join(patience)
        self._process.kill()
        self._process.join()
        self._connection.close()


def _main(way: Way, part: Part, work: Callable[..., Any], parameters: dict[str, Any], connection: Connection) -> None:
    """Run a process: open its end of the queue, and do its work."""
    prepare(way.place, None)
    try:
        if way.loop == "none":
            with way.open(part) as end:  # type: ignore[union-attr]
                done = work(Duty(way.place, end, part, connection), **parameters)
            connection.send(done)
        else:
            run(way.loop, _main_in_loop(way, part, work, parameters, connection))
    except Exception as error:
        traceback.print_exc()
        connection.send(Failed(f"{type(error).__name__}: {error}"))


async def _main_in_loop(
    way: Way, part: Part, work: Callable[..., Any], parameters: dict[str, Any], connection: Connection
) -> None:
    async with way.open(part) as end:  # type: ignore[union-attr]
        done = await work(Duty(way.place, end, part, connection), **parameters)
    await asyncio.to_thread(connection.send, done)


class Crew:
    """Processes that are there; within its block they work."""

    def __init__(self) -> None:
        self._workers: list[_Worker] = []
        self._ended: Sequence[_Worker] = ()
        self._patience = 0.0

    def __enter__(self) -> Crew:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        while self._workers:
            self._workers.pop().leave(self._patience)

    def add(self, way: Way, parts: Iterable[Part], work: Callable[..., Any], /, **parameters: Any) -> list[_Worker]:
        """More of them; returns when they have opened their ends."""
        made = [_Worker(way, part, work, parameters) for part in parts]
        self._workers += made
        self.hear(made, 0.0)
        return made

    def begin(self) -> None:
        """Let all begin at once."""
        start = time.monotonic() + _AHEAD
        for worker in self._workers:
            worker.say(start)

    def hear(self, workers: Iterable[_Worker], seconds: float) -> list[Any]:
        """Return the next message of each worker, within ``seconds``."""
        end = time.monotonic() + seconds + _PATIENCE
        return [worker.hear(end) for worker in workers]

    def end(self, workers: Sequence[_Worker]) -> None:
        """Let writers that have said what they have done say that they have ended, the first one after all others."""
        for worker in reversed(workers):
            worker.say("end")
            self.hear([worker], 0.0)
        self._ended = workers

    def part(self) -> None:
        """They leave by themselves, now that all is got: what was sent by who is gone might be lost."""
        for worker in self._ended:
            worker.say("leave")
        self._patience = _LEAVE
