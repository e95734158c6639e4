"""The processes of a server for handlers that compute: a pool, opened by the first call of such a handler."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from shmrpc.errors import DecodeError, EncodeError, LocalProtocolError, PoolBroken, WorkerDied
from shmrpc.pools.factory import pool
from shmrpc.pools.pool import Pool
from shmrpc.pools.scheduling.call_runner import TaskStopIterationError


class HandlerProcesses:
    """A pool with one process per CPU, opened by the first call, and again after it has broken."""

    def __init__(self) -> None:
        #: Pool for the next call.
        self._opening: asyncio.Task[Pool] | None = None
        #: Number of calls in each pool, also in broken ones.
        self._calls = Counter[asyncio.Task[Pool]]()
        #: Tasks that close broken pools.
        self._closing: set[asyncio.Task[None]] = set()
        self._is_closed = False

    async def run(self, function: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """Call the function in a process and return its result.

        Raises what the function raises; RuntimeError if the process dies, or if the arguments or the result cannot be
        sent; and LocalProtocolError after :meth:`close`.
        """
        opening = self._open()
        self._calls[opening] += 1
        try:
            opened = await asyncio.shield(opening)
            return await opened.run(function, *args, **kwargs)
        except (WorkerDied, PoolBroken) as error:
            if opening is self._opening and _is_broken(opening):
                self._opening = None  # The next call opens another pool.
            raise RuntimeError(f"the process that ran {function.__qualname__}() died: {error}") from None
        except (DecodeError, EncodeError) as error:  # The caller's own arguments were decoded before.
            raise RuntimeError(str(error)) from None
        except TaskStopIterationError as error:  # Callers see RuntimeError, as from any coroutine.
            raise RuntimeError(str(error)) from error.stop
        finally:
            self._end_call(opening)

    def _open(self) -> asyncio.Task[Pool]:
        """Return the task that opens the pool, and whose result is the pool; start it unless the pool is open.

        Raises LocalProtocolError after :meth:`close`.
        """
        if self._is_closed:
            raise LocalProtocolError("the server is closed")
        if self._opening is None:
            self._opening = asyncio.ensure_future(_open_pool())
        return self._opening

    def _end_call(self, opening: asyncio.Task[Pool]) -> None:
        """Record the end of a call; close its pool in the background if the pool has broken and has no other call."""
        self._calls[opening] -= 1
        if not self._calls[opening]:
            del self._calls[opening]
            if opening is not self._opening and not self._is_closed:
                closing = asyncio.ensure_future(_close_pool(opening))
                self._closing.add(closing)
                closing.add_done_callback(self._closing.discard)

    async def close(self) -> None:
        """Close all pools, and wait for the end of their processes; running handlers fail. Idempotent."""
        self._is_closed = True
        pools = set(self._calls)
        if self._opening is not None:
            pools.add(self._opening)
            self._opening = None
        await asyncio.gather(*map(_close_pool, pools), *self._closing)


async def _open_pool() -> Pool:
    """Open a pool with the default options, and return it."""
    return await pool()


async def _close_pool(opening: asyncio.Task[Pool]) -> None:
    """Cancel the opening of a pool, or close the pool if it is open; wait for the end of its processes."""
    opening.cancel()
    await asyncio.wait([opening])
    if not opening.cancelled() and opening.exception() is None:
        await opening.result().close()


def _is_broken(opening: asyncio.Task[Pool]) -> bool:
    """Return True if a pool could not open, or has broken since. A handler may raise PoolBroken, too."""
    return opening.exception() is not None or isinstance(opening.result()._engine.lifecycle.closed_error, PoolBroken)
