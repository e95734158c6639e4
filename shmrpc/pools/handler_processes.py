"""The processes of a server for handlers that compute: a pool, opened by the first call of such a handler."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from shmrpc.errors import DecodeError, EncodeError, LocalProtocolError, PoolBroken, WorkerDied
from shmrpc.pools.factory import pool
from shmrpc.pools.pool import Pool
from shmrpc.pools.scheduling.call_runner import TaskStopIterationError


class HandlerProcesses:
    """A pool with one process per CPU, opened by the first call, and again after it has broken."""

    def __init__(self) -> None:
        self._opening: asyncio.Task[Pool] | None = None
        self._is_closed = False

    async def run(self, function: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """Call the function in a process and return its result.

        Raises what the function raises; RuntimeError if the process dies, or if the arguments or the result cannot be
        sent; and LocalProtocolError after :meth:`close`.
        """
        try:
            opened = await self._open()
            return await opened.run(function, *args, **kwargs)
        except (WorkerDied, PoolBroken) as error:
            if isinstance(error, PoolBroken):
                self._opening = None  # The next call opens another pool.
            raise RuntimeError(f"the process that ran {function.__qualname__}() died: {error}") from None
        except (DecodeError, EncodeError) as error:  # The caller's own arguments were decoded before.
            raise RuntimeError(str(error)) from None
        except TaskStopIterationError as error:  # Callers see RuntimeError, as from any coroutine.
            raise RuntimeError(str(error)) from error.stop

    async def _open(self) -> Pool:
        """Open the pool, unless it is open or opening; wait until it is open, and return it.

        Raises LocalProtocolError after :meth:`close`, and what opening the pool raises.
        """
        if self._is_closed:
            raise LocalProtocolError("the server is closed")
        if self._opening is None:
            self._opening = asyncio.ensure_future(_open_pool())
        return await asyncio.shield(self._opening)

    async def close(self) -> None:
        """Close the pool, and wait for the end of its processes; running handlers fail. Idempotent."""
        self._is_closed = True
        opening, self._opening = self._opening, None
        if opening is None:
            return
        opening.cancel()
        await asyncio.wait([opening])
        if not opening.cancelled() and opening.exception() is None:
            await opening.result().close()


async def _open_pool() -> Pool:
    """Open a pool with the default options, and return it."""
    return await pool()
