"""Objects for loops and objects for threads: what each says to the statements of the other."""

from __future__ import annotations

import asyncio
import inspect
import os
from collections.abc import Callable
from typing import Any

import pytest

import shmrpc
import shmrpc.sync

OURS = f"driver{os.getpid()}"

#: By their kinds: how an object for loops and one for threads is opened, and the function that a message names.
KINDS: dict[str, tuple[Callable[[], Any], Callable[[], Any], str]] = {
    "queue": (lambda: shmrpc.queue(OURS), lambda: shmrpc.sync.queue(OURS), "queue()"),
    "topic": (lambda: shmrpc.topic(OURS), lambda: shmrpc.sync.topic(OURS), "topic()"),
    "subscription": (lambda: shmrpc.subscribe(OURS), lambda: shmrpc.sync.subscribe(OURS), "subscribe()"),
    "store": (lambda: shmrpc.store(OURS), lambda: shmrpc.sync.store(OURS), "store()"),
    "memory": (lambda: shmrpc.memory(OURS, 8), lambda: shmrpc.sync.memory(OURS, 8), "memory()"),
    "event": (lambda: shmrpc.Event(OURS), lambda: shmrpc.sync.Event(OURS), "Event()"),
    "signal": (lambda: shmrpc.Signal(OURS), lambda: shmrpc.sync.Signal(OURS), "Signal()"),
    "lock": (lambda: shmrpc.Lock(OURS), lambda: shmrpc.sync.Lock(OURS), "Lock()"),
    "semaphore": (lambda: shmrpc.Semaphore(OURS, 2), lambda: shmrpc.sync.Semaphore(OURS, 2), "Semaphore()"),
    "pool": (lambda: shmrpc.pool(1), lambda: shmrpc.sync.pool(1), "pool()"),
}
#: The kinds that ``with`` also enters in threads without a loop.
FOR_BOTH = {"memory", "event", "signal", "lock", "semaphore"}
WITH_ITEMS = ["queue", "subscription"]


@pytest.mark.parametrize("kind", sorted(KINDS.keys() - FOR_BOTH))
def test_with_says_to_write_async_with(kind: str) -> None:
    opened = KINDS[kind][0]()
    with pytest.raises(TypeError, match=r"is for asyncio: `async with` in place of `with`; or shmrpc.sync.") as raised:
        with opened:
            pytest.fail("the block was entered")
    assert str(raised.value).endswith(KINDS[kind][2])
    if kind != "pool":
        opened.close()


@pytest.mark.parametrize("kind", sorted(KINDS))
async def test_async_with_says_to_write_with(kind: str) -> None:
    opened = KINDS[kind][1]()
    with pytest.raises(TypeError, match=r"is for threads: `with` in place of `async with`; or shmrpc.") as raised:
        async with opened:
            pytest.fail("the block was entered")
    assert str(raised.value).endswith(KINDS[kind][2])
    if kind == "pool":
        opened.shutdown()
    else:
        opened.close()


@pytest.mark.parametrize("kind", WITH_ITEMS)
async def test_a_loop_over_items_of_the_other_kind_says_what_to_write(kind: str) -> None:
    in_loop, in_thread = KINDS[kind][0](), KINDS[kind][1]()
    with pytest.raises(TypeError, match="`async for` in place of `for`"):
        for _ in in_loop:
            pytest.fail("there is an item")
    with pytest.raises(TypeError, match="`for` in place of `async for`"):
        async for _ in in_thread:
            pytest.fail("there is an item")
    in_loop.close()
    in_thread.close()


@pytest.mark.parametrize("kind", sorted(KINDS.keys() - {"pool"}))
async def test_an_object_for_loops_can_be_awaited_as_a_client_is(kind: str) -> None:
    opened = KINDS[kind][0]()
    assert await opened is opened
    assert "closed" not in repr(opened)
    if kind == "lock":
        assert not opened.locked()  # The lock was opened, not acquired.
    opened.close()


#: The classes of the kinds that `attach` opens, for loops and for threads.
ATTACHED = {
    "queue": (shmrpc.Queue, shmrpc.sync.Queue),
    "store": (shmrpc.Store, shmrpc.sync.Store),
    "memory": (shmrpc.Memory, shmrpc.sync.Memory),
    "event": (shmrpc.Event, shmrpc.sync.Event),
    "signal": (shmrpc.Signal, shmrpc.sync.Signal),
    "lock": (shmrpc.Lock, shmrpc.sync.Lock),
    "semaphore": (shmrpc.Semaphore, shmrpc.sync.Semaphore),
}


@pytest.mark.parametrize("kind", sorted(ATTACHED))
async def test_attach_opens_the_kind_that_is_asked_for_and_no_other(kind: str) -> None:
    in_loop: Any
    in_thread: Any
    in_loop, in_thread = ATTACHED[kind]
    other, other_in_thread = ATTACHED["event" if kind != "event" else "queue"]
    with KINDS[kind][1]():
        found = await shmrpc.attach(OURS, kind=in_loop)
        assert type(found) is in_loop
        found.close()
        found = shmrpc.sync.attach(OURS, kind=in_thread)
        assert type(found) is in_thread
        found.close()
        with pytest.raises(shmrpc.NameConflict, match=f"is open as a {kind}: it is no "):
            await shmrpc.attach(OURS, kind=other)
        with pytest.raises(shmrpc.NameConflict, match=f"is open as a {kind}: it is no "):
            shmrpc.sync.attach(OURS, kind=other_in_thread)
        for wrong in (in_thread, shmrpc.Topic):
            with pytest.raises(TypeError, match="expected a class of the same module as this attach"):
                await shmrpc.attach(OURS, kind=wrong)


@pytest.mark.parametrize("module", [shmrpc, shmrpc.sync], ids=["loops", "threads"])
@pytest.mark.parametrize(("kind", "maker"), [("Queue", "queue"), ("Topic", "topic"), ("Subscription", "subscribe")])
def test_a_class_says_which_function_makes_it(module: Any, kind: str, maker: str) -> None:
    with pytest.raises(TypeError) as raised:
        getattr(module, kind)(OURS)
    name = module.__name__
    assert str(raised.value) == f"{name}.{kind} is a type: open one by {name}.{maker}(name)"
    with pytest.raises(TypeError, match=rf"^{maker}\(\) got an unexpected keyword argument 'wrong'"):
        getattr(module, maker)(OURS, wrong=1)
    assert not {"of", "publishing", "reading"} & {each for each in dir(getattr(module, kind)) if each[0] != "_"}


@pytest.mark.parametrize("module", [shmrpc, shmrpc.sync], ids=["loops", "threads"])
def test_the_class_of_pools_says_which_function_makes_one(module: Any) -> None:
    with pytest.raises(TypeError) as raised:
        module.Pool(2)
    assert str(raised.value) == f"{module.__name__}.Pool is a type: open one by {module.__name__}.pool(workers)"


def _claim_of(name: str) -> Any:
    return shmrpc.queue(name).claim()


def _reservation_in_queue(name: str) -> Any:
    return shmrpc.queue(name).reserve(8)


def _reservation_in_topic(name: str) -> Any:
    return shmrpc.topic(name).reserve(8)


@pytest.mark.parametrize(
    ("made", "expected"),
    [
        (_claim_of, "a claim of queue '{}' is for asyncio: `async with` in place of `with`; or shmrpc.sync.queue()"),
        (
            _reservation_in_queue,
            "a reservation of queue '{}' is for asyncio: `async with` in place of `with`; or shmrpc.sync.queue()",
        ),
        (
            _reservation_in_topic,
            "a reservation of topic '{}' is for asyncio: `async with` in place of `with`; or shmrpc.sync.topic()",
        ),
    ],
    ids=["claim", "queue", "topic"],
)
async def test_plain_with_says_to_write_async_with(made: Callable[[str], Any], expected: str) -> None:
    given = made(OURS)
    with pytest.raises(TypeError) as raised:
        with given:
            pytest.fail("the block was entered")
    assert str(raised.value) == expected.format(OURS)
    if made is _claim_of:
        given.close()  # Or Python warns that it was never awaited.


async def test_a_claim_that_is_never_awaited_is_warned_of_by_the_name_of_its_method() -> None:
    async with shmrpc.queue(OURS) as q:
        with pytest.warns(RuntimeWarning, match=r"coroutine 'Queue\.claim' was never awaited"):
            q.claim()


async def test_tasks_run_a_claim_as_any_coroutine() -> None:
    async with shmrpc.queue(OURS) as q:
        q.put_many_nowait([1, 2, 3])
        async with asyncio.TaskGroup() as group:
            grouped = group.create_task(q.claim())
        claims = [grouped.result(), await asyncio.create_task(q.claim()), await asyncio.wait_for(q.claim(), 60)]
        assert [claim.value for claim in claims] == [1, 2, 3]
        waits = asyncio.create_task(q.claim())
        await asyncio.sleep(0)
        waits.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waits
        never_begun = asyncio.create_task(q.claim())
        never_begun.cancel()
        with pytest.raises(asyncio.CancelledError):
            await never_begun
        claims.pop().nack()
        async with asyncio.TaskGroup() as group:
            again = group.create_task(q.claim(timeout=60))
        assert again.result().redelivered
        for claim in [*claims, again.result()]:
            claim.ack()


@pytest.mark.parametrize("kind", ["Lock", "Semaphore"])
def test_acquire_says_that_it_takes_a_timeout_alone(kind: str) -> None:
    held = KINDS[kind.lower()][1]()
    said = f"{kind.lower()} '{OURS}': acquire() takes a timeout in seconds alone; acquire(timeout=0) does not wait"
    wrong: list[tuple[tuple[Any, ...], dict[str, Any]]] = [
        ((True, 1), {}),
        ((), {"blocking": False}),
        ((1, 2), {"a": 1}),
    ]
    for arguments, options in wrong:
        with pytest.raises(TypeError) as raised:
            held.acquire(*arguments, **options)
        assert str(raised.value) == said
    assert str(inspect.signature(held.acquire)) == "(timeout=None)"
    assert held.acquire(timeout=0)
    held.close()


def test_signals_say_what_they_take() -> None:
    ready: Any
    with shmrpc.sync.Signal(OURS) as ready:
        with pytest.raises(TypeError, match=rf"^signal '{OURS}': wait\(\) takes a timeout in seconds alone; "):
            ready.wait(True, 1)
        with pytest.raises(TypeError, match=rf"^signal '{OURS}': signal\(\) takes a number of signals alone$"):
            ready.signal(1, 2)
        assert ready.drain() == 0


@pytest.mark.parametrize("kind", ["Lock", "Semaphore"])
async def test_an_acquire_that_is_never_awaited_is_warned_of_by_the_name_of_its_method(kind: str) -> None:
    held = KINDS[kind.lower()][0]()
    with pytest.warns(RuntimeWarning, match=rf"coroutine '{kind}\.acquire' was never awaited"):
        held.acquire()
    held.close()


#: Classes with a driver for event loops and one for threads.
WITH_TWO_DRIVERS = ["Event", "Lock", "Memory", "Queue", "Semaphore", "Store", "StreamCall", "Subscription", "Topic"]
#: Methods of threads that take ``block`` besides, as those of ``queue.Queue``.
TAKE_BLOCK = {("Queue", "get"), ("Queue", "put")}


@pytest.mark.parametrize("kind", WITH_TWO_DRIVERS)
def test_both_drivers_have_the_same_methods_with_the_same_parameters(kind: str) -> None:
    in_loops, in_threads = getattr(shmrpc, kind), getattr(shmrpc.sync, kind)
    names = [name for name in dir(in_loops) if not name.startswith("_")]
    assert names == [name for name in dir(in_threads) if not name.startswith("_")]
    for name in names:
        if callable(method := getattr(in_loops, name, None)):
            parameters = _parameters_of(method)
            others = _parameters_of(getattr(in_threads, name))
            if (kind, name) in TAKE_BLOCK:
                assert others.pop("block") is True
            assert list(parameters.items()) == list(others.items()), name


def _parameters_of(method: Callable[..., Any]) -> dict[str, Any]:
    return {each.name: each.default for each in inspect.signature(method).parameters.values()}
