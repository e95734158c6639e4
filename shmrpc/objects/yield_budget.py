"""Yields to the event loop between operations that never have to wait."""

from __future__ import annotations

import asyncio
import functools

from shmrpc._core import YieldBudget


class LoopYielder:
    """A handle whose methods yield to the event loop after a short time of work.

    Other processes may be so quick that no operation of this handle ever waits. Without a yield, the other tasks of
    the loop would never run.
    """

    #: True from the beginning of a budget until the loop has run.
    _has_budget = False

    @functools.cached_property
    def _budget(self) -> YieldBudget:
        """The time for which this handle may keep the loop."""
        return YieldBudget()

    async def _yield_to_loop(self) -> None:
        """Begin a new budget; yield to the loop before, unless it has run since the last budget began."""
        if self._has_budget:
            await asyncio.sleep(0)
        self._has_budget = True
        self._budget.begin()
        asyncio.get_running_loop().call_soon(self._on_loop_ran)

    async def _yield_if_due(self) -> None:
        """Yield to the loop if the budget is used up."""
        if self._budget.is_spent():
            await self._yield_to_loop()

    def _on_loop_ran(self) -> None:
        """End the budget. The loop calls this method in its next iteration."""
        self._has_budget = False
        self._budget.end()
