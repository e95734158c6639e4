"""Errors for wrong arguments: the names in them are those that users write, and no internal ones."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import pytest

import shmrpc
import shmrpc.sync

#: A name of one underscore, a base class, a class of the core, a module that users do not import, a special method.
INTERNAL = re.compile(
    r"(?<![\w'])_[a-z]\w*|\._[a-z]\w*|\b(Hold|Name|Handle|Held|AwaitedHeld|BlockingHeld|Pausing|Closing|Shared)\b|_core"
    r"|\bBlocking[A-Z]|[a-z]Base\b|__(new|init)__|shmrpc\.(?!sync\b)[a-z]+\.[a-z]"
)

#: Calls that are wrong for every method and function: too many arguments, and an option that none has.
WRONG: tuple[tuple[tuple[Any, ...], dict[str, Any]], ...] = (
    (tuple(range(20)), {}),
    ((), {"no_such_option": 1}),
    ((1,), {"no_such_option": 1}),
    ((object(), object()), {}),
)

#: A worker's own function, and types that users do not call.
NOT_CALLED = ("worker", "Message", "SharedStruct")


def complaints(call: Any) -> Iterator[str]:
    """Yield the messages of the errors of wrong calls."""
    for arguments, options in WRONG:
        try:
            result = call(*arguments, **options)
        except (TypeError, ValueError, shmrpc.ShmrpcError) as error:
            yield str(error)
        else:
            if inspect.iscoroutine(result):
                result.close()


def internal(label: str, call: Any) -> list[str]:
    """Return the messages of wrong calls that have an internal name."""
    return [f"{label}: {words}" for words in complaints(call) if INTERNAL.search(words)]


@pytest.fixture
def objects() -> Iterator[dict[str, Any]]:
    """Yield an object of each kind, for loops and for threads."""
    with ExitStack() as stack:
        made: dict[str, Any] = {}
        for face, module in (("shmrpc", shmrpc), ("shmrpc.sync", shmrpc.sync)):
            each: dict[str, Any] = {
                "queue": module.queue(f"{face}-spelled", 8),
                "topic": module.topic(f"{face}-spelled-topic"),
                "lock": module.Lock(f"{face}-spelled-lock"),
                "semaphore": module.Semaphore(f"{face}-spelled-semaphore", 2),
                "event": module.Event(f"{face}-spelled-event"),
                "signal": module.Signal(f"{face}-spelled-signal"),
                "memory": module.memory(f"{face}-spelled-memory", 4096),
                "store": module.store(f"{face}-spelled-store"),
            }
            each["subscription"] = module.subscribe(f"{face}-spelled-topic")
            for kind, one in each.items():
                made[f"{face} {kind}"] = one
                stack.callback(one.close)
        jobs = made["shmrpc.sync queue"]
        jobs.put(1)
        made["claim"] = claim = jobs.claim()
        stack.callback(claim.ack)
        made["dead letters"] = jobs.dead_letters
        store = made["shmrpc.sync store"]
        store["table"], store["line"], store["set"] = {"a": 1}, [1], {1}
        made["table"], made["line"], made["set"] = store["table"], store["line"], store["set"]
        yield made


def test_errors_for_wrong_arguments_of_methods_have_the_names_that_users_write(objects: dict[str, Any]) -> None:
    found = []
    for label, one in objects.items():
        assert not INTERNAL.search(repr(one)), repr(one)
        for name in dir(one):
            if not name.startswith("_") and callable(method := getattr(one, name)):
                found += internal(f"{label}.{name}", method)
    assert found == []


@pytest.mark.parametrize("module", [shmrpc, shmrpc.sync])
def test_errors_for_wrong_arguments_of_public_names_have_the_names_that_users_write(module: Any) -> None:
    found = []
    for name in module.__all__:
        call = getattr(module, name)
        if not callable(call) or name in NOT_CALLED or (inspect.isclass(call) and issubclass(call, BaseException)):
            continue
        as_python_says = re.compile(rf"^{name}\.__(init|new)__\(\)")  # Of a class without a word of its own.
        for words in complaints(call):
            if INTERNAL.search(as_python_says.sub("", words)):
                found.append(f"{module.__name__}.{name}: {words}")
    assert found == []


def test_the_name_in_the_error_is_the_one_to_write() -> None:
    jobs: Any = shmrpc.sync.queue("spelled-jobs", 1)
    gate: Any = shmrpc.sync.Semaphore("spelled-gate")
    loops: Any = shmrpc
    threads: Any = shmrpc.sync
    with jobs, gate:
        wrong: list[tuple[Any, str]] = [
            (lambda: jobs.put(), r"^Queue\.put\(\) missing"),
            (lambda: jobs.put_nowait(), r"^Queue\.put_nowait\(\) missing"),
            (lambda: jobs.close(1), r"close\(\) takes"),
            (lambda: gate.locked(1), r"^locked\(\) takes 1 positional"),
            (lambda: loops.Client("calculator"), r"^shmrpc\.Client is a type: get one by shmrpc\.connect\(name\)$"),
            (lambda: threads.Client(), r"^shmrpc\.sync\.Client is a type: get one by shmrpc\.sync\.connect"),
            (lambda: threads.Store("x"), r"^shmrpc\.sync\.Store is a type: get one by shmrpc\.sync\.store"),
            (lambda: threads.Queue("x"), r"^shmrpc\.sync\.Queue is a type: open one by shmrpc\.sync\.queue"),
            (lambda: loops.Pool(4), r"^shmrpc\.Pool is a type: open one by shmrpc\.pool\(workers\)$"),
        ]
        for call, words in wrong:
            with pytest.raises(TypeError, match=words):
                call()


def test_arguments_by_place_and_by_name_of_what_the_core_runs() -> None:
    with shmrpc.sync.Signal("spelled-signals") as ready:
        ready.signal(2)
        ready.signal(count=1)
        ready.signal()
        assert ready.wait(5)
        assert ready.wait(timeout=None)
        assert ready.drain() == 2
    with shmrpc.sync.Semaphore("spelled-counts", 2) as gate:
        assert gate.acquire(timeout=5)
        with pytest.raises(shmrpc.WaitTimeout):
            gate.acquire(0)
        gate.release()
