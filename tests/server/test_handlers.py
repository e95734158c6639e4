"""Where a handler runs: inline, in a task of its own once it suspends, and with what context."""

from __future__ import annotations

import asyncio
import contextvars

import pytest

import shmrpc
from shmrpc import _core
from shmrpc.server.eager_start import EagerStarter, Suspended


async def test_asyncio_timeout_works_in_a_handler(client: shmrpc.Client) -> None:
    assert await client.with_timeout(0.01) == "timed out"
    assert await client.with_timeout(0) == "timed out"
    assert await asyncio.gather(*(client.with_timeout(0.01) for _ in range(50))) == ["timed out"] * 50


async def test_a_handler_is_in_one_task_before_and_after_it_suspends(client: shmrpc.Client) -> None:
    assert await client.task_name_twice()


async def test_context_variables_of_one_call_do_not_reach_the_next(client: shmrpc.Client) -> None:
    assert [await client.set_setting(str(i)) for i in range(5)] == ["unset"] * 5


async def test_a_blocked_server_answers_when_it_is_free(client: shmrpc.Client) -> None:
    assert await client.block(0.3) is None
    assert await client.add(1, 2) == 3


class Recorder:
    """Coroutines to run eagerly."""

    def __init__(self) -> None:
        self.steps: list[str] = []

    async def at_once(self) -> int:
        self.steps.append("ran")
        return 1

    async def later(self) -> int:
        self.steps.append("began")
        await asyncio.sleep(0.001)
        self.steps.append("went on")
        return 2

    async def shielded(self) -> str:
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            self.steps.append("cancelled")
            raise
        return "slept"

    async def cancels_itself_and_waits(self) -> str:
        task = asyncio.current_task()
        assert task is not None
        task.cancel()
        return await self.shielded()

    async def waits_for_another(self, other: asyncio.Task[str]) -> str:
        return await other

    async def fails(self) -> None:
        await asyncio.sleep(0)
        raise ValueError("late")

    async def nested(self) -> int:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(self.later()) for _ in range(3)]
        return sum(task.result() for task in tasks)


_CALL = shmrpc.Call(None, "tested")  # type: ignore[arg-type]


async def _outside_a_task(eager: EagerStarter, coroutine: object) -> object:
    """Run the coroutine in a callback of the loop, outside any task, and return its result."""
    future = asyncio.get_running_loop().create_future()

    def callback() -> None:
        eager.contexts.renew()
        try:
            future.set_result(eager.run(coroutine, _CALL))  # type: ignore[arg-type]
        except BaseException as error:
            future.set_exception(error)
        finally:
            eager.contexts.leave()

    asyncio.get_running_loop().call_soon(callback)
    return await future


async def test_eager_steps() -> None:
    eager, record = EagerStarter(_core.CallContexts(contextvars.copy_context())), Recorder()
    assert await _outside_a_task(eager, record.at_once()) == 1
    suspended = await _outside_a_task(eager, record.later())
    assert isinstance(suspended, Suspended)
    assert record.steps == ["ran", "began"]
    assert await suspended.task == 2
    assert record.steps == ["ran", "began", "went on"]
    eager.close()


async def test_eager_cancellation_reaches_the_coroutine_at_once_and_later() -> None:
    eager, record = EagerStarter(_core.CallContexts(contextvars.copy_context())), Recorder()
    for wait in (0, 0.01):
        suspended = await _outside_a_task(eager, record.shielded())
        assert isinstance(suspended, Suspended)
        if wait:
            await asyncio.sleep(wait)
        suspended.task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await suspended.task
    assert record.steps == ["cancelled", "cancelled"]
    eager.close()


async def test_eager_errors_and_task_groups() -> None:
    eager, record = EagerStarter(_core.CallContexts(contextvars.copy_context())), Recorder()
    failing = await _outside_a_task(eager, record.fails())
    assert isinstance(failing, Suspended)
    with pytest.raises(ValueError, match="late"):
        await failing.task
    nested = await _outside_a_task(eager, record.nested())
    assert isinstance(nested, Suspended)
    assert await nested.task == 6
    eager.close()


async def test_a_coroutine_cancelled_within_its_first_step_hears_of_it() -> None:
    eager, record = EagerStarter(_core.CallContexts(contextvars.copy_context())), Recorder()
    for _ in range(2):
        suspended = await _outside_a_task(eager, record.cancels_itself_and_waits())
        assert isinstance(suspended, Suspended)
        with pytest.raises(asyncio.CancelledError):
            await suspended.task
    assert record.steps == ["cancelled", "cancelled"]
    eager.close()


async def test_cancelling_reaches_what_is_waited_for() -> None:
    eager, record = EagerStarter(_core.CallContexts(contextvars.copy_context())), Recorder()
    for wait in (0, 0.01):
        other = asyncio.create_task(record.shielded())
        await asyncio.sleep(0.001)
        suspended = await _outside_a_task(eager, record.waits_for_another(other))
        assert isinstance(suspended, Suspended)
        if wait:
            await asyncio.sleep(wait)
        suspended.task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await suspended.task
        await asyncio.wait([other])
        assert other.cancelled()
    eager.close()


async def test_context_variables_that_cannot_be_compared() -> None:
    class Incomparable:
        __hash__ = None  # type: ignore[assignment]

        def __eq__(self, other: object) -> bool:
            raise ValueError("ambiguous")

    variable: contextvars.ContextVar[Incomparable | None] = contextvars.ContextVar("variable", default=None)

    async def sets() -> bool:
        before = variable.get()
        variable.set(Incomparable())
        return before is None

    variable.set(Incomparable())
    eager = EagerStarter(_core.CallContexts(contextvars.copy_context()))
    assert [await _outside_a_task(eager, sets()) for _ in range(3)] == [False] * 3
    eager.close()
