"""The event loop in which the caller runs."""

from __future__ import annotations

import asyncio
import sys
from asyncio.events import _get_running_loop, _set_running_loop
from typing import Any

from shmrpc.errors import LocalProtocolError


def running_loop() -> asyncio.AbstractEventLoop:
    """Return the running event loop. Raises LocalProtocolError if no loop of asyncio runs here, as under trio."""
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        raise LocalProtocolError(
            "no asyncio event loop runs in this thread: use shmrpc.sync, under trio by trio.to_thread.run_sync"
        ) from None


if sys.version_info >= (3, 14):  # The current task is recorded beside the running loop, and no longer within the loop.

    def hide_task(loop: asyncio.AbstractEventLoop | None) -> Any:
        """Hide the task in which the running loop executes this call; return it for :func:`show_task`."""
        return None if loop is None else asyncio.tasks._swap_current_task(loop, None)  # type: ignore[attr-defined]

    def show_task(loop: asyncio.AbstractEventLoop | None, task: Any) -> None:
        """Show a task again that was hidden. Call this once ``loop`` is the running loop again."""
        if task is not None:
            asyncio.tasks._swap_current_task(loop, task)  # type: ignore[attr-defined]

else:

    def hide_task(loop: asyncio.AbstractEventLoop | None) -> Any:
        """Do nothing: another loop has a current task of its own."""

    def show_task(loop: asyncio.AbstractEventLoop | None, task: Any) -> None:
        """Do nothing, as :func:`hide_task`."""


#: The running loop and its current task, which :func:`hide_loop` has hidden.
HiddenLoop = tuple[asyncio.AbstractEventLoop | None, Any]


def hide_loop() -> HiddenLoop:
    """Hide the running loop of this thread and its current task, so that another loop can run here.

    Returns both for :func:`show_loop`.
    """
    loop = _get_running_loop()
    task = hide_task(loop)
    _set_running_loop(None)
    return loop, task


def show_loop(hidden: HiddenLoop) -> None:
    """Make a hidden loop the running loop of this thread again, and its task the current one."""
    loop, task = hidden
    _set_running_loop(loop)
    show_task(loop, task)
