"""What a loop awaits, and what may never have to wait."""

from __future__ import annotations

import asyncio
import functools

from shmrpc._core import Slice


class Pausing:
    """Lets its loop turn now and then: other processes may be so quick that none of its awaits ever has to wait."""

    _is_in_slice = False

    @functools.cached_property
    def _slice(self) -> Slice:
        """Until when nobody else has the loop."""
        return Slice()

    async def _pause(self) -> None:
        """Begins a slice; lets the loop turn before, if it has not since the last one."""
        if self._is_in_slice:
            await asyncio.sleep(0)
        self._is_in_slice = True
        self._slice.set(True)
        asyncio.get_running_loop().call_soon(self._turned)

    async def _pause_in_time(self) -> None:
        """Pauses if the slice is over."""
        if self._slice.is_over():
            await self._pause()

    def _turned(self) -> None:
        self._is_in_slice = False
        self._slice.set(False)
