"""The thread in which the event loop of a blocking pool runs."""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import threading
from collections.abc import Coroutine
from typing import Any, Final, TypeVar

import uvloop

from shmrpc.basics.green_threads import has_gevent, run_in_greenlet
from shmrpc.host.resource_limits import descriptor_errno, no_descriptor_error
from shmrpc.pools.pool import Pool

#: Seconds between two checks for running tasks at the end of a pool.
_BUSY_POLL_SECONDS: Final = 2e-3
_R = TypeVar("_R")


class LoopThread:
    """A daemon thread that opens a pool in an event loop, and closes the pool after its last task.

    The constructor waits until the pool is open, and raises what opening the pool raises.
    """

    def __init__(self, pool: Pool) -> None:
        self._pool = pool
        #: Calls whose coroutines have not ended; None after the end of the loop.
        self._calls: dict[concurrent.futures.Future[Any], Coroutine[Any, Any, Any]] | None = {}
        self._lock = threading.RLock()  # Reentrant, because a signal handler within it may make a call.
        started: concurrent.futures.Future[asyncio.Task[None]] = concurrent.futures.Future()
        opened: concurrent.futures.Future[None] = concurrent.futures.Future()
        #: Set when the pool gets no more tasks.
        self._is_finishing = asyncio.Event()
        self._thread = threading.Thread(target=self._run, args=(started, opened), name="shmrpc-pool", daemon=True)
        self._thread.start()
        try:
            self.loop = started.result().get_loop()
            opened.result()
        except BaseException:  # For example Ctrl-C: without this, starting workers would live until the program's end.
            if not (started.done() and started.exception()):
                started.add_done_callback(_cancel_start)
            self._thread.join()
            raise

    def is_alive(self) -> bool:
        """Return True while the event loop runs."""
        return self._thread.is_alive()

    def call(self, coroutine: Coroutine[Any, Any, _R]) -> concurrent.futures.Future[_R]:
        """Run a coroutine in the loop; return a future of its result. Must not run in the thread itself.

        Raises RuntimeError after the end of the loop, which a coroutine that has not ended by then has as its error.
        """
        with self._lock:
            if self._calls is None:
                coroutine.close()
                raise RuntimeError("the pool is shut down")
            future = asyncio.run_coroutine_threadsafe(coroutine, self.loop)
            self._calls[future] = coroutine
        future.add_done_callback(self._forget)
        return future

    def _forget(self, future: concurrent.futures.Future[Any]) -> None:
        """Forget a call that has ended."""
        with self._lock:
            if self._calls is not None:
                self._calls.pop(future, None)

    def _fail_calls(self) -> None:
        """Fail the calls that the loop has left, and accept no more. Call this after the end of the loop."""
        with self._lock:
            calls, self._calls = self._calls or {}, None
        for future, coroutine in calls.items():
            if not future.done():  # The call came after the loop had cancelled its tasks.
                coroutine.close()
                future.set_exception(RuntimeError("the pool is shut down"))

    def finish(self) -> None:
        """End the thread after the last task, without a wait. Call this method in the loop."""
        self._is_finishing.set()

    def join(self) -> bool:
        """Wait for the end of the thread, and return True; return False at once in the thread itself."""
        if threading.current_thread() is self._thread:
            return False
        self._thread.join()
        return True

    def _run(
        self,
        started: concurrent.futures.Future[asyncio.Task[None]],
        opened: concurrent.futures.Future[None],
    ) -> None:
        """Run the event loop in this thread.

        ``started`` gets the task that runs in the loop, and ``opened`` gets None once the pool is open. If the loop
        cannot start, both get the error; if the pool cannot open, ``opened`` gets the error.
        """
        main = self._main(started, opened)
        try:
            (run_in_greenlet if has_gevent() else uvloop.run)(main)
        except BaseException as error:  # For example, no descriptor is left for the event loop.
            main.close()
            number = descriptor_errno(error) if isinstance(error, OSError) else None
            reason = error if number is None else no_descriptor_error(number, "for a pool")
            waiting = [each for each in (started, opened) if not each.done()]
            if not waiting:  # The constructor has returned, so only the thread's hook can show the error.
                raise
            for each in waiting:
                each.set_exception(reason)
        finally:
            self._fail_calls()

    async def _main(
        self,
        started: concurrent.futures.Future[asyncio.Task[None]],
        opened: concurrent.futures.Future[None],
    ) -> None:
        """Open the pool, wait for :meth:`finish` and the last task, and close the pool."""
        task = asyncio.current_task()
        assert task is not None
        started.set_result(task)
        try:
            await self._pool.__aenter__()
        except BaseException as error:
            opened.set_exception(error)
            return
        opened.set_result(None)
        engine, is_patient = self._pool._engine, False
        try:
            await self._is_finishing.wait()
            while engine.is_busy and engine.lifecycle.closed_error is None:
                await asyncio.sleep(_BUSY_POLL_SECONDS)
            is_patient = True
        except asyncio.CancelledError:  # The constructor was interrupted just after the pool had opened.
            pass
        finally:
            await engine.close(is_patient=is_patient)


def _cancel_start(started: concurrent.futures.Future[asyncio.Task[None]]) -> None:
    """Cancel the task that starts a pool, which ``started`` has as its result. Runs in any thread."""
    task = started.result()
    with contextlib.suppress(RuntimeError):  # The loop has ended.
        task.get_loop().call_soon_threadsafe(task.cancel)
