"""A side dies at each line and at each native point of a conversation: the other raises errors and keeps nothing."""

from __future__ import annotations

import asyncio
import gc
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import pytest

import shmrpc
from tests.helpers import traces
from tests.helpers.crash_points import (
    POINTS_OF_COPIES,
    POINTS_OF_MENDING,
    POINTS_OF_NAMES,
    POINTS_OF_OWNERS,
    POINTS_OF_QUEUES,
    POINTS_OF_READERS,
    POINTS_OF_STORES,
    CrashPoint,
)
from tests.helpers.host_names import nothing_is_left, ours_in_shm, swept
from tests.helpers.loops import one_loop, other_loop
from tests.helpers.scale import scaled
from tests.helpers.server_process import ServerProcess, eventually_in_loop
from tests.reliability import figures
from tests.reliability.deaths import conversations
from tests.reliability.deaths.victim_roles import GRACE
from tests.reliability.deaths.victims import Ending, Order, Side, Victims, victims

#: Lines and native points that the short form tries in each conversation; the long form tries all.
LINES: Final = 5
POINTS: Final = 4
#: Repetitions of a conversation until its victim has died.
ROUNDS: Final = 3
#: Seconds for steps whose duration does not matter.
PATIENCE: Final = 30
#: Bytes by which this process may grow in a series of kills: noise of the allocator, not a leak.
NOISE: Final = 24 << 20
#: Kills before the first measurement of memory.
WARM: Final = 4

#: Deaths of a series that may fail to happen, beside half of them.
MISSED: Final = 4

#: Errors after a death: for a client with a connection, and for a client that connects.
LOST: Final = (shmrpc.ConnectionLost, shmrpc.ServiceUnavailable)

each_conversation = pytest.mark.parametrize("conversation", list(conversations.CONVERSATIONS))

#: Points that are passed only if an answer arrives during a spin, which never happens on a busy host.
QUICK: Final = {"ReplyRead"}

#: The sides that die with a server as their peer.
SIDES: Final[tuple[Side, ...]] = ("client", "client in threads")

#: A way to die: "lines" or "points", and the place.
Death = tuple[str, CrashPoint]


@dataclass
class Tally:
    """The results of a series of deaths."""

    planned: int = 0
    killed: int = 0
    #: Number of names in /dev/shm that servers left which died in a handshake.
    names: int = 0
    #: Seconds from a death to the error of each call in flight.
    seconds: list[float] = field(default_factory=list)

    def errors(self, ends: Sequence[float], died: float | None) -> None:
        """Add the times at which calls in flight ended with errors."""
        if died is not None:
            self.seconds += [max(0.0, end - died) for end in ends]

    def note(self, who: str, conversation: str, limit: float) -> None:
        """Print the results at the end of the run."""
        late = sum(each > limit for each in self.seconds)
        figures.note(
            f"death of {who}, {conversation}",
            points=self.planned,
            kills=self.killed,
            error_after=figures.times(self.seconds),
            **({"names_to_clean_up": self.names} if self.names else {}),
            **{f"over_{limit * 1e3:.0f}_ms": late},
        )


@pytest.fixture(scope="module")
def forking() -> Iterator[Victims]:
    """Start the process that forks victims."""
    with victims() as forking:
        gc.collect()
        gc.freeze()  # So that a collection visits only later objects.
        yield forking
        gc.unfreeze()


@pytest.fixture(autouse=True)
def no_listeners() -> Iterator[None]:
    """Remove the callbacks and records of each test."""
    yield
    conversations.leaving.clear()
    conversations.cancelled.clear()


@pytest.fixture
def order(runtime: Path) -> Callable[[Side, str], Order]:
    """Return a function that makes the order for a victim."""
    return lambda side, conversation: Order(side, conversation, str(runtime.parent))


#: Lines that were tried before, in other conversations of the same sides.
_tried: defaultdict[str, set[CrashPoint]] = defaultdict(set)


def deaths(who: str, recorded: Ending) -> list[Death]:
    """Return the places to die at: each recorded line that is new to these sides, and each point.

    A point that is passed often counts three times: the first passage, the middle one and the last.
    """
    fresh = [place for place in recorded.lines if place not in _tried[who]]
    _tried[who].update(fresh)
    lines: list[Death] = [("lines", place) for place in fresh]
    points: list[Death] = [
        ("points", (name, nth))
        for name, times in recorded.points
        if times
        for nth in sorted({1, (times + 1) // 2, times})
    ]
    return [*_spread(lines, scaled(LINES, len(lines))), *_spread(points, scaled(POINTS, len(points)))]


def _spread(deaths: Sequence[Death], most: int) -> list[Death]:
    """Return that many deaths, evenly chosen."""
    most = min(most, len(deaths))
    return [deaths[i * len(deaths) // most] for i in range(most)]


async def _outcome(call: Awaitable[object], ends: list[float]) -> None:
    """Wait for a call that may end with the connection; append the time of such an end to ``ends``."""
    try:
        await call
    except LOST as error:
        ends.append(time.monotonic())
        error.__traceback__ = None  # The traceback refers to the frame of the call, and all its variables.


async def _series(
    who: str, conversation: str, tally: Tally, one: Callable[[str, CrashPoint | None, int, bool], Awaitable[Ending]]
) -> None:
    """Record the possible deaths; then let a victim die of each, and check the remains."""
    recorded = await one("record", None, 1, False)
    chosen = deaths(who, recorded)
    tally.planned = len(chosen)
    resident, mapped = traces.resident(), traces.mappings()[1]
    for number, (how, place) in enumerate(chosen):
        rounds = 1 if conversation in ("drain", "shutdown") else ROUNDS
        try:
            ending = await one(how, place, rounds, how == "points")
        except BaseException as error:
            error.add_note(f"The victim died at {place}.")
            raise
        tally.killed += ending.died is not None
        if number == WARM:
            resident, mapped = traces.resident(), traces.mappings()[1]
    # Passages that depend on a timer or the scheduler may not happen again.
    assert tally.killed >= tally.planned // 2 - MISSED
    assert traces.resident() - resident < NOISE
    assert traces.mappings()[1] - mapped < 50


async def _works() -> None:
    """Check that the next server takes the name, and that the next client is served."""
    async with conversations.serve(), conversations.connect() as client:
        assert await client.add(1, 2) == 3


def _swept(*, connected: bool) -> int:
    """Check that /dev/shm has only names of a server that died in a handshake; remove them and return their number."""
    if connected:
        assert nothing_is_left([]), "names of a connection that stood"
        return 0
    left = ours_in_shm()
    assert not left or swept()
    return len(left)


def _says(conversation: str) -> str:
    """Return the end that the client asks the server for after a conversation."""
    return {"drain": "drain", "shutdown": "stop"}.get(conversation, "exit")


@pytest.mark.crashpoints
@other_loop
@each_conversation
async def test_calls_of_a_loop_client_raise_at_any_death_of_the_server(
    forking: Victims, order: Callable[[Side, str], Order], conversation: str
) -> None:
    tally = Tally()
    await _works()
    base = await traces.settled()

    async def one(how: str, place: CrashPoint | None, rounds: int, fast: bool) -> Ending:
        ends: list[float] = []
        dying = order("server", conversation)
        dying.how, dying.place, dying.uvloop = how, place, fast
        forking.start(dying)
        said = await asyncio.to_thread(forking.line)
        connected = False
        if said == ["serving"]:
            client = conversations.connect(timeout=0)
            await _outcome(client.__aenter__(), ends)
            connected = not ends
            if connected:
                await _outcome(_talk(client, conversation, rounds, ends), ends)
            await client.close()
            ending = await asyncio.to_thread(forking.end)
        else:
            ending = await asyncio.to_thread(forking.end, said)
        assert ending.died is None or said != ["serving"] or len(ends) >= (2 if connected else 1), "a call has no error"
        tally.errors(ends, ending.died)
        tally.names += _swept(connected=connected)
        await _works()
        assert await traces.gone(base), f"{traces.traces()} instead of {base} after {how} {place}"
        return ending

    who = "a server under a client in a loop"
    await _series(who, conversation, tally, one)
    tally.note(who, conversation, 0.1)


async def _talk(client: shmrpc.Client, conversation: str, rounds: int, ends: list[float]) -> None:
    """Hold a conversation with calls in flight beside it until the server has ended."""
    waiting = [asyncio.create_task(_outcome(client.sleep(conversations.LONG), ends)) for _ in range(2)]
    try:
        for _ in range(rounds):
            await conversations.CONVERSATIONS[conversation](client)
        await client.leave(_says(conversation))
    finally:
        _, hanging = await asyncio.wait(waiting, timeout=PATIENCE)
        assert not hanging
        for task in waiting:
            task.result()


@pytest.mark.crashpoints
@other_loop
@each_conversation
async def test_calls_of_a_thread_client_raise_at_any_death_of_the_server(
    forking: Victims, order: Callable[[Side, str], Order], conversation: str
) -> None:
    tally = Tally()
    await _works()
    await asyncio.to_thread(_in_a_thread, lambda: None)
    base = await traces.settled()

    async def one(how: str, place: CrashPoint | None, rounds: int, fast: bool) -> Ending:
        ends: list[float] = []
        dying = order("server", conversation)
        dying.how, dying.place, dying.uvloop = how, place, fast
        forking.start(dying)
        said = await asyncio.to_thread(forking.line)
        connected = False
        if said == ["serving"]:
            connected = await asyncio.to_thread(_talk_in_threads, conversation, rounds, ends)
            ending = await asyncio.to_thread(forking.end)
        else:
            ending = await asyncio.to_thread(forking.end, said)
        assert ending.died is None or said != ["serving"] or len(ends) >= (2 if connected else 1), "a call has no error"
        tally.errors(ends, ending.died)
        tally.names += _swept(connected=connected)
        await _works()
        assert await traces.gone(base), f"{traces.traces()} instead of {base} after {how} {place}"
        return ending

    who = "a server under a client in threads"
    await _series(who, conversation, tally, one)
    tally.note(who, conversation, 0.25)


def _talk_in_threads(conversation: str, rounds: int, ends: list[float]) -> bool:
    """Hold a conversation with calls in flight beside it until the server has ended. Return True if it connected."""
    client = conversations.connect_in_threads(timeout=0)
    waiting: list[threading.Thread] = []
    failures: list[BaseException] = []

    def attempt(call: Callable[[], object]) -> None:
        try:
            call()
        except LOST as error:
            ends.append(time.monotonic())
            error.__traceback__ = None
        except BaseException as error:
            failures.append(error)

    def talk() -> None:
        client.__enter__()
        for _ in range(2):
            waiting.append(_in_a_thread(lambda: attempt(lambda: client.sleep(conversations.LONG))))
        for _ in range(rounds):
            conversations.CONVERSATIONS_IN_THREADS[conversation](client)
        client.leave(_says(conversation))

    attempt(talk)
    for thread in waiting:
        thread.join(PATIENCE)
        assert not thread.is_alive()
    client.close()
    for failure in failures:
        raise failure
    return bool(waiting)


def _in_a_thread(run: Callable[[], None]) -> threading.Thread:
    thread = threading.Thread(target=run)
    thread.start()
    return thread


class Served:
    """A server in this loop, and a polite client that must not notice the deaths of others."""

    def __init__(self) -> None:
        self.server = conversations.serve()
        self.polite = conversations.connect()
        self.answered = 0
        self._stop = False
        self._draining: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Served:
        await self.server.__aenter__()
        await self.polite.__aenter__()
        self._waiting = asyncio.create_task(self.polite.sleep(conversations.LONG))
        self._calling = asyncio.create_task(self._call())
        assert await eventually_in_loop(lambda: self.server.in_flight == 1, PATIENCE)
        return self

    async def _call(self) -> None:
        while not self._stop:
            assert await self.polite.add(self.answered, 1) == self.answered + 1
            self.answered += 1
            await asyncio.sleep(0.005)

    async def __aexit__(self, *error: object) -> None:
        self._stop = True
        await self._calling
        assert not self._waiting.done()
        await self.polite.close()
        await asyncio.wait([self._waiting])
        assert isinstance(self._waiting.exception(), shmrpc.ConnectionLost)
        await self.server.close()

    async def rid(self) -> bool:
        """Return True if the server has dropped all other clients."""
        return await eventually_in_loop(lambda: self.server.connections == 1 and self.server.in_flight == 1, PATIENCE)

    async def next(self) -> None:
        """Check that the polite client is served, and a new one too."""
        answered = self.answered
        assert await eventually_in_loop(lambda: self.answered > answered, PATIENCE)
        async with conversations.connect() as client:
            assert await client.add(1, 2) == 3
        assert await self.rid()


@pytest.mark.crashpoints
@one_loop
@each_conversation
@pytest.mark.parametrize("side", SIDES)
async def test_a_server_drops_a_client_that_dies_at_any_point(
    forking: Victims, order: Callable[[Side, str], Order], side: Side, conversation: str
) -> None:
    tally = Tally()
    who, drains = f"a {side} under a server", conversation == "drain"

    async def die(how: str, place: CrashPoint | None, rounds: int, fast: bool) -> Ending:
        dying = order(side, conversation)
        dying.how, dying.place, dying.rounds, dying.uvloop = how, place, rounds, fast
        conversations.cancelled.clear()
        forking.start(dying)
        return await asyncio.to_thread(forking.end)

    def ended(ending: Ending) -> list[float]:
        """Return the times after the death at which handlers of calls in flight were cancelled."""
        return [end for end in conversations.cancelled if ending.died is not None and end > ending.died]

    async def one(how: str, place: CrashPoint | None, rounds: int, fast: bool) -> Ending:
        ending = await die(how, place, rounds, fast)
        assert await served.rid()
        tally.errors(ended(ending), ending.died)
        # A client that died in its handshake is no connection: the server may notice its end one loop iteration later.
        assert await eventually_in_loop(lambda: ours_in_shm() == [], PATIENCE)
        await served.next()
        assert await traces.gone(base), f"{traces.traces()} instead of {base} after {how} {place}"
        return ending

    base = await traces.settled()

    async def one_that_drains(how: str, place: CrashPoint | None, rounds: int, fast: bool) -> Ending:
        drained: list[asyncio.Task[None]] = []
        async with conversations.serve() as server:
            conversations.leaving[:] = [lambda how: drained.append(asyncio.create_task(server.drain(GRACE)))]
            ending = await die(how, place, rounds, fast)
            assert await eventually_in_loop(lambda: server.connections == 0, PATIENCE)
            await asyncio.gather(*drained)
        tally.errors(ended(ending), ending.died)
        assert nothing_is_left([])
        await _works()
        assert await traces.gone(base), f"{traces.traces()} instead of {base} after {how} {place}"
        return ending

    if drains:
        await _works()
        base = await traces.settled()
        await _series(who, conversation, tally, one_that_drains)
    else:
        async with Served() as served:
            await die("", None, 1, False)
            await served.next()
            base = await traces.settled()
            await _series(who, conversation, tally, one)
    tally.note(who, conversation, 0.1)


@pytest.mark.crashpoints
@one_loop
async def test_every_native_point_is_passed_in_some_conversation(
    forking: Victims, order: Callable[[Side, str], Order]
) -> None:
    passed: Counter[str] = Counter()

    def not_passed() -> list[str]:
        of_stores = POINTS_OF_STORES | POINTS_OF_COPIES | POINTS_OF_OWNERS | POINTS_OF_READERS | POINTS_OF_MENDING
        others = POINTS_OF_NAMES | POINTS_OF_QUEUES | of_stores
        return [name for name, times in passed.items() if not times and name not in others]

    for _ in range(ROUNDS):  # Some points need a thread to run in time: the sweeper.
        for conversation in conversations.CONVERSATIONS:
            forking.start(order("server", conversation))
            assert await asyncio.to_thread(forking.line) == ["serving"]
            ends: list[float] = []
            async with conversations.connect() as client:
                await _outcome(_talk(client, conversation, 1, ends), ends)
            passed.update(dict((await asyncio.to_thread(forking.end)).points))
        async with conversations.serve():
            for conversation in ("small", "arrays", "large", "sleeping"):
                for side in SIDES:
                    forking.start(order(side, conversation))
                    passed.update(dict((await asyncio.to_thread(forking.end)).points))
        assert passed
        if not not_passed():
            break
    assert set(not_passed()) <= QUICK


async def test_allocating_on_a_dead_connection_raises_that_it_is_lost() -> None:
    with ServerProcess("tests.reliability.deaths.conversations:service") as server:
        async with conversations.connect() as client:
            with conversations.connect_in_threads() as in_threads:
                server.kill()
                for _ in range(2):  # The loop has not noticed the death.
                    with pytest.raises(shmrpc.ConnectionLost):
                        client.empty(conversations.ARRAY, "uint8")
                    with pytest.raises(shmrpc.ConnectionLost):
                        in_threads.empty(conversations.ARRAY, "uint8")
