"""The processes of a server, for handlers that compute: a pool, made when the first of them is called."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from shmrpc.errors import DecodeError, EncodeError, LocalProtocolError, PoolBroken, WorkerDied
from shmrpc.pools.engine import StopIterationOfTaskError
from shmrpc.pools.pool import Pool, pool


class HandlerProcesses:
    """As many processes as there are CPUs; made anew when they could not begin."""

    def __init__(self) -> None:
        self._opening: asyncio.Task[Pool] | None = None
        self._is_closed = False

    async def run(self, function: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """Calls the function in one of them. Raises RuntimeError if that dies."""
        try:
            opened = await self._opened()
            return await opened.run(function, *args, **kwargs)
        except (WorkerDied, PoolBroken) as error:
            if isinstance(error, PoolBroken):
                self._opening = None  # The next call gets new ones.
            raise RuntimeError(f"the process that ran {function.__qualname__}() died: {error}") from None
        except (DecodeError, EncodeError) as error:  # Of the way to the process and back, and not of the caller's.
            raise RuntimeError(str(error)) from None
        except StopIterationOfTaskError as error:  # Callers see a class that they have, as from any other coroutine.
            raise RuntimeError(str(error)) from error.stop

    async def _opened(self) -> Pool:
        if self._is_closed:
            raise LocalProtocolError("the server is closed")
        if self._opening is None:
            self._opening = asyncio.ensure_future(_open())
        return await asyncio.shield(self._opening)

    async def close(self) -> None:
        """Ends them, and what they do. Again: nothing."""
        self._is_closed = True
        opening, self._opening = self._opening, None
        if opening is None:
            return
        opening.cancel()
        await asyncio.wait([opening])
        if not opening.cancelled() and opening.exception() is None:
            await opening.result().close()


async def _open() -> Pool:
    return await pool()
