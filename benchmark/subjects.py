"""The subjects that can be measured: each way to call, where its two sides are written, and what it can do."""

from __future__ import annotations

import dataclasses
import importlib.util
import shutil
from typing import Final, Literal

from benchmark.rows import Role

#: The loop of a side; ``none``: without a loop, with functions that block.
Loop = Literal["asyncio", "uvloop", "none"]
_LOOPS: Final[tuple[Loop, ...]] = ("uvloop", "asyncio")

#: The abilities of a subject:
#: ``call``: ``add(a, b)`` and ``echo(value)``, one after another;
#: ``concurrent``: many of them at once from one client;
#: ``stream``: ``count(n)``, an asynchronous iterator;
#: ``bulk``: ``bulk(data, messages)``, which returns when the other side has read that many copies of ``data``;
#: ``in place``: the same, read in the memory into which they were sent;
#: ``clients``: many client processes of one server;
#: ``connections``: many connections of one client process;
#: ``lock``: ``lock``, and an ``add(a, b)`` that it protects, without a server: see :mod:`benchmark.sharing`;
#: ``signals``: an ``add(a, b)`` that is a signal to another process and one back: see there;
#: ``queue``: a :class:`benchmark.queue_work.Way`, for many writers and readers, with batches;
#: ``queue, one``: the same also for items that are put and got one at a time;
#: ``queue, copied``, ``queue, in place``: the same for arrays that are copied, or lie in shared memory on both sides;
#: ``topic``: the same for one writer, of which each reader gets all, in batches and one at a time;
#: ``topic, arrays``: the same for arrays, in whatever way it has them;
#: ``study``: the same for batches of a published experiment: see :mod:`benchmark.study_work`;
#: ``store``: a :class:`benchmark.store_work.ValueStore`, of fields that one process or many increment;
#: ``store, read``: the same also for a field that one reads;
#: ``store, read beside``: the same also while another one increments it;
#: ``store, dict``: the same also for the values of a dict;
#: ``store, transaction``: the same also for ten changes that are one;
#: ``hosts``: ``add(a, b)`` and ``array(value)``, of NumPy, by a way that leaves a host;
#: ``pool``: a :class:`benchmark.pool_work.Pools`, whose workers do what they are given;
#: ``pool, submit``: the same also for tasks that are handed in one by one;
#: ``fractals``: the same for the pool of the example of fractals;
#: ``command``: a call that has a task of :mod:`benchmark.command_tasks` done, and gives its result.
Ability = Literal[
    "call",
    "concurrent",
    "stream",
    "bulk",
    "in place",
    "clients",
    "connections",
    "lock",
    "signals",
    "queue",
    "queue, one",
    "queue, copied",
    "queue, in place",
    "topic",
    "topic, arrays",
    "study",
    "store",
    "store, read",
    "store, read beside",
    "store, dict",
    "store, transaction",
    "hosts",
    "pool",
    "pool, submit",
    "fractals",
    "command",
]


@dataclasses.dataclass(frozen=True)
class Subject:
    """A way to call.

    ``serve`` and ``connect`` are written as ``module:function``; benchmark/README.md says what they have to do.
    """

    name: str
    connect: str
    #: None: there is no other process, or the client starts it.
    serve: str | None
    loop: Loop
    server_loop: Loop
    abilities: frozenset[Ability]
    role: Role = "rival"
    #: Modules that must be importable, and the way to install them.
    needs: tuple[str, ...] = ()
    install: str = ""
    #: A program that has to be there, of the package of that name of the distribution.
    program: str = ""
    #: ``module:function`` that makes what both sides inherit.
    shared: str | None = None
    #: Uses CPU while it is not called: it is ended after each question, so that it does not disturb the others.
    restless: bool = False
    #: A name for all of its forms, for choosing rivals by name.
    family: str = ""

    def missing(self) -> str:
        """Why it cannot run here; empty if it may."""
        absent = [name for name in self.needs if importlib.util.find_spec(name) is None]
        if not absent and self.program and shutil.which(self.program) is None:
            return f"not installed: {self.program} (on Debian and Ubuntu: apt install {self.program})"
        return f"not installed: {', '.join(absent)} (pip install {self.install})" if absent else ""


def _ours(name: str, connect: str, loop: Loop, *abilities: Ability) -> Subject:
    server: Loop = "uvloop" if loop == "none" else loop
    return Subject(
        name, f"benchmark.ours:{connect}", "benchmark.ours:serve", loop, server, frozenset(("call", *abilities)), "ours"
    )


def _alone(name: str, connect: str, loop: Loop, role: Role = "context") -> Subject:
    """Return one that has no server process."""
    return Subject(name, f"benchmark.{connect}", None, loop, loop, frozenset(("call",)), role)


def _large(name: str, connect: str) -> Subject:
    """Ours, with the service that has arrays."""
    connect, serve = f"benchmark.large_ours:{connect}", "benchmark.large_ours:serve"
    return Subject(name, connect, serve, "uvloop", "uvloop", frozenset(), "context", ("numpy",), "numpy")


OURS: Final = (
    _ours("shmrpc, uvloop", "connect", "uvloop", "concurrent", "stream", "bulk", "clients", "connections"),
    _ours("shmrpc, asyncio", "connect", "asyncio", "concurrent", "stream", "bulk", "clients", "connections"),
    _ours("shmrpc, sync", "connect_sync", "none", "clients", "connections"),
)


def _name(name: str, what: str, loop: Loop, ability: Ability, serve: str | None = None) -> Subject:
    """Ours without a server that answers calls."""
    place = "benchmark.our_names"
    serving = f"{place}:{serve}" if serve else None
    return Subject(name, f"{place}:{what}", serving, loop, loop, frozenset((ability,)), "ours")


#: Our locks, and our signals.
NAMES: Final = (
    _name("shmrpc.Semaphore, uvloop", "connect_permit", "uvloop", "lock"),
    _name("shmrpc.Semaphore, asyncio", "connect_permit", "asyncio", "lock"),
    _name("shmrpc.sync.Semaphore", "connect_permit_sync", "none", "lock"),
    _name("shmrpc.Lock, uvloop", "connect_lock", "uvloop", "lock"),
    _name("shmrpc.Lock, asyncio", "connect_lock", "asyncio", "lock"),
    _name("shmrpc.sync.Lock", "connect_lock_sync", "none", "lock"),
    _name("shmrpc.sync.Signal", "connect_signals", "none", "signals", "serve_signals"),
)
#: Our memory, which stands beside memory of the process.
MEMORY: Final = _alone("shmrpc.memory", "our_names:connect_memory", "none", "ours")


def _forking(name: str, connect: str, *abilities: Ability) -> Subject:
    """Ours with processes of its own, which the client forks."""
    return Subject(name, f"benchmark.{connect}", None, "none", "none", frozenset(abilities), "ours")


#: Our queues, in threads and in loops.
QUEUES: Final = (
    _forking(
        "shmrpc.sync.Queue",
        "queue_ours:connect_threads",
        *("queue", "queue, one", "queue, copied", "queue, in place"),
    ),
    _forking("shmrpc.Queue, uvloop", "queue_ours:connect_uvloop", "queue", "queue, one"),
    _forking("shmrpc.Queue, asyncio", "queue_ours:connect_asyncio", "queue", "queue, one"),
)
#: Our topics.
TOPICS: Final = (
    _forking("shmrpc.sync.Topic", "topic_ours:connect_threads", "topic", "topic, arrays"),
    _forking("shmrpc.Topic, uvloop", "topic_ours:connect_uvloop", "topic"),
    _forking("shmrpc.Topic, asyncio", "topic_ours:connect_asyncio", "topic"),
)
#: Ours in the published experiment.
STUDIED: Final = (
    _forking("shmrpc.sync.Topic, raw", "study_ours:connect_raw", "study"),
    _forking("shmrpc.sync.Topic, arrays", "study_ours:connect_arrays", "study"),
)

_SHAPES: Final[tuple[tuple[str, tuple[Ability, ...]], ...]] = (
    ("struct", ()),
    ("dataclass", ()),
    ("dict", ("store, dict",)),
    ("list", ()),
)
_STORE: Final[tuple[Ability, ...]] = ("store", "store, read", "store, read beside", "store, transaction")
#: Our stores, by what the fields are of; their inbox carries messages.
STORES: Final = tuple(
    _forking(f"shmrpc {shape}", f"store_ours:connect_{shape}", *_STORE, *more) for shape, more in _SHAPES
)
INBOX: Final = Subject(
    "shmrpc inbox",
    "benchmark.store_inbox:connect",
    "benchmark.store_inbox:serve",
    "none",
    "none",
    frozenset(("bulk",)),
    "ours",
)
#: Our pools, in loops and in threads.
POOLS: Final = (
    _forking("shmrpc.pool, uvloop", "pool_ours:connect_uvloop", "pool", "pool, submit", "fractals"),
    _forking("shmrpc.pool, asyncio", "pool_ours:connect_asyncio", "pool", "pool, submit", "fractals"),
    _forking("shmrpc.sync.pool", "pool_ours:connect_threads", "pool", "pool, submit"),
)

#: The function that starts the server of NATS for all subjects that need it.
NATS_SERVER: Final = "benchmark.nats_server:url"


def _hosts(name: str, connect: str, serve: str, loop: Loop, *abilities: Ability) -> Subject:
    """Ours with NATS."""
    place, needs = "benchmark.hosts_ours", ("nats", "numpy")
    return Subject(
        name,
        f"{place}:{connect}",
        f"{place}:{serve}",
        loop,
        loop,
        frozenset(abilities),
        "ours",
        needs,
        "nats-py numpy",
        shared=NATS_SERVER,
    )


#: Ours over NATS, on both loops.
HOSTS: Final = tuple(_hosts(f"shmrpc, NATS, {loop}", "connect", "serve", loop, "hosts") for loop in _LOOPS)
#: By shared memory, of those who know of no NATS, and who have both.
NEAR_ALONE: Final = _hosts("shmrpc, shm", "connect_alone", "serve_both", "uvloop", "hosts")
NEAR_EITHER: Final = _hosts("shmrpc, shm or NATS", "connect_either", "serve_both", "uvloop", "hosts")

#: No call at all, and a server that is another thread.
DIRECT: Final = tuple(_alone(f"direct await, {loop}", "context:connect_direct", loop) for loop in _LOOPS)
THREADS: Final = tuple(_alone(f"shmrpc, two threads, {loop}", "context:connect_thread", loop) for loop in _LOOPS)

#: Subjects that measure the machine and the codec alone.
FLOORS: Final = {loop: _alone(f"floor, {loop}", "floors:connect", loop, "floor") for loop in _LOOPS}

#: Ours with arrays, as it is and with clients that spin for some microseconds.
LARGE: Final = _large("shmrpc, arrays", "connect")
LARGE_SPINNING: Final = _large("shmrpc, arrays, spin=10000", "connect_spinning")
