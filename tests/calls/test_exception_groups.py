"""A group of exceptions that a handler or a task raises arrives as a group, with all that is in it."""

from __future__ import annotations

import asyncio
import contextlib
import pickle
import sys
import threading
from collections.abc import AsyncIterator, Iterator
from typing import Any

import msgspec
import pytest

import shmrpc
import shmrpc.sync
from shmrpc import errors
from shmrpc.values import registry
from shmrpc.wire import frames
from shmrpc.wire.failure import MAX_EXCEPTIONS, MAX_GROUPS, Failure, decode_failure, encode_failure
from tests.calls import raised_groups as groups

LOOP = "either"
MAX_FRAME = 1 << 20

service = shmrpc.Service("groups")


@service.endpoint
async def fetch_all() -> None:
    async def fetch(url: str) -> None:
        raise ValueError(f"no such page: {url}")

    async with asyncio.TaskGroup() as group:
        for url in ("a", "b"):
            group.create_task(fetch(url))


@service.endpoint
def fail(name: str) -> None:
    raise groups.made(name)


@service.endpoint
async def items(name: str) -> AsyncIterator[int]:
    yield 1
    raise groups.made(name)


@service.endpoint
async def passed_on(name: str) -> None:
    async with shmrpc.connect("groups") as client:
        await client.fail(name)


@pytest.fixture(autouse=True)
def registered() -> Iterator[None]:
    """Register the class of an exception for a test."""
    shmrpc.register(groups.OutOfStock)
    yield
    registry._by_type.pop(groups.OutOfStock, None)
    registry._by_name.pop("tests.calls.raised_groups.OutOfStock", None)


async def test_except_star_catches_what_a_task_group_raised() -> None:
    caught: list[str] = []
    async with shmrpc.serve(service), shmrpc.connect("groups") as client:
        try:
            await client.fetch_all()
        except* ValueError as group:
            caught += map(str, group.exceptions)
            are_remote = {isinstance(each, shmrpc.RemoteError) for each in group.exceptions}
    assert sorted(caught) == ["no such page: a", "no such page: b"]
    assert are_remote == {True}


def looks(error: BaseException) -> Any:
    """Return the builtin class and the text of an exception, and the same of the exceptions in it."""
    base = errors.base_of(errors.own_class(type(error))).__name__
    if isinstance(error, BaseExceptionGroup):
        return base, error.message, [looks(each) for each in error.exceptions]
    return base, str(error)


async def test_groups_arrive_by_every_way() -> None:
    expected = looks(groups.made("nested"))
    async with shmrpc.serve(service), shmrpc.connect("groups") as client:
        for call in (client.fail, client.passed_on):
            with pytest.raises(ExceptionGroup) as raised:
                await call("nested")
            assert looks(raised.value) == expected
            assert isinstance(raised.value, shmrpc.RemoteError)
            assert raised.value.maybe_executed
            assert "test_exception_groups.py" in raised.value.remote_traceback
            inner: Any = raised.value.exceptions[1].exceptions[0]
            assert (type(inner).__qualname__, inner.item) == ("OutOfStock", "ball")
            assert isinstance(inner, groups.OutOfStock)
        with pytest.raises(ExceptionGroup) as raised:
            async for each in client.items("nested"):
                assert each == 1
        assert looks(raised.value) == expected
        assert looks(pickle.loads(pickle.dumps(raised.value))) == expected


async def test_a_group_of_a_task_is_itself_or_as_of_a_call() -> None:
    async with shmrpc.pool(1) as pool:
        for way in ("run", "submit", "map"):
            with pytest.raises(ExceptionGroup) as raised:
                await (_mapped(pool) if way == "map" else getattr(pool, way)(groups.fail, "nested"))
            assert looks(raised.value) == looks(groups.made("nested"))
        with pytest.raises(ExceptionGroup, match="odd") as raised:
            await pool.run(groups.fail, "cannot be pickled")
        assert [str(each) for each in raised.value.exceptions] == ["local", "b"]
        assert isinstance(raised.value.exceptions[1], ValueError)


async def _mapped(pool: shmrpc.Pool) -> None:
    async for _ in pool.map(groups.fail, ["nested"]):
        pass


def test_threads_get_groups_too() -> None:
    with contextlib.ExitStack() as stack:
        stack.enter_context(_served())
        client = stack.enter_context(shmrpc.sync.connect("groups"))
        with pytest.raises(ExceptionGroup) as raised:
            client.fail("nested")
    assert looks(raised.value) == looks(groups.made("nested"))


@contextlib.contextmanager
def _served() -> Iterator[None]:
    ready, done = threading.Event(), threading.Event()

    def run() -> None:
        async def main() -> None:
            async with shmrpc.serve(service):
                ready.set()
                await asyncio.to_thread(done.wait)

        asyncio.run(main())

    thread = threading.Thread(target=run)
    thread.start()
    ready.wait()
    try:
        yield
    finally:
        done.set()
        thread.join()


def arrived(error: BaseException, max_frame: int = MAX_FRAME) -> BaseException:
    """Return the exception as the caller gets it."""
    return decode_failure(encode_failure(error, max_frame))


def test_exceptions_that_end_a_program_are_mere_errors_at_the_caller() -> None:
    got = arrived(BaseExceptionGroup("all", [KeyboardInterrupt(), ValueError("x")]))
    assert isinstance(got, ExceptionGroup)
    assert type(got.exceptions[0]) is shmrpc.RemoteError
    assert isinstance(got.exceptions[1], ValueError)
    assert got.type_name == "builtins.BaseExceptionGroup"  # type: ignore[attr-defined]
    interrupted: Any = got.exceptions[0]
    assert interrupted.type_name == "builtins.KeyboardInterrupt"


def test_a_derived_group_arrives_as_a_plain_one() -> None:
    class Failures(ExceptionGroup[Exception]):
        pass

    got = arrived(Failures("all", [KeyError("k")]))
    assert isinstance(got, ExceptionGroup)
    assert got.args[0] == "all"
    assert got.exceptions[0].args == ("k",)
    assert any("Failures" in note for note in got.__notes__)


def test_a_large_group_tells_how_many_were_left_out() -> None:
    got = arrived(ExceptionGroup("all", [ValueError(number) for number in range(1000)]))
    assert isinstance(got, ExceptionGroup)
    assert len(got.exceptions) == MAX_EXCEPTIONS + 1
    assert str(got.exceptions[-1]) == f"{1000 - MAX_EXCEPTIONS} more exceptions of this group were left out"
    deep: Exception = ValueError("x")
    for _ in range(MAX_GROUPS + 3):
        deep = ExceptionGroup("in", [deep])
    got, depth = arrived(deep), 0
    while isinstance(got, BaseExceptionGroup):
        got, depth = got.exceptions[0], depth + 1
    assert depth == MAX_GROUPS
    assert str(got) == "in (1 sub-exception)"


def test_a_group_that_does_not_fit_leaves_out_tracebacks_and_then_its_exceptions() -> None:
    def failed(number: int) -> Exception:
        try:
            raise ValueError("v" * 100 + str(number))
        except ValueError as error:
            return error

    group = ExceptionGroup("all", [failed(number) for number in range(20)])
    got = arrived(group, 6000)
    assert isinstance(got, ExceptionGroup)
    members: Any = got.exceptions
    assert {each.remote_traceback for each in members} == {""}
    assert len(got.exceptions) == 20
    got = arrived(group, 1024)
    assert type(got) is shmrpc.RemoteError
    assert "all" in str(got)
    assert all(len(encode_failure(group, size)) <= size for size in range(1024, 20_000, 500))


def test_lies_about_groups_are_plain_errors() -> None:
    def told(exceptions: Any, base: str = "ExceptionGroup") -> BaseException:
        return decode_failure(frames._encoder.encode(Failure("raised", "m", base=base, exceptions=exceptions)))

    assert type(told([])) is shmrpc.RemoteError
    assert isinstance(told([Failure("raised", "x")], "ValueError"), ValueError)
    assert type(told([Failure("raised", "x")] * 1000)) is shmrpc.RemoteError
    tree = [Failure("raised", "x")]
    for _ in range(MAX_GROUPS):
        tree = [Failure("raised", "m", base="ExceptionGroup", exceptions=tree)]
    inner: Any = told(tree)
    for _ in range(MAX_GROUPS):
        assert isinstance(inner, ExceptionGroup)
        inner = inner.exceptions[0]
    assert type(inner) is shmrpc.RemoteError
    body = msgspec.msgpack.encode({"kind": "raised", "message": "m", "exceptions": 5})
    assert isinstance(decode_failure(body), shmrpc.DecodeError)
    level = {"kind": "raised", "message": "m", "base": "ExceptionGroup", "exceptions": [None]}
    # So deep that it fails too where the size of the stack is the limit, as from CPython 3.14 on.
    nested = msgspec.msgpack.encode(level)[:-1] * 500_000 + msgspec.msgpack.encode({"kind": "raised", "message": "m"})
    limit = sys.getrecursionlimit()
    sys.setrecursionlimit(1000)  # Hypothesis has raised it in a process that has run one of its tests.
    try:
        assert isinstance(decode_failure(nested), shmrpc.DecodeError)
    finally:
        sys.setrecursionlimit(limit)
