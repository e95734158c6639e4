"""The event loop in which the caller runs."""

from __future__ import annotations

import asyncio
import sys
from asyncio.events import _get_running_loop, _set_running_loop
from typing import Any, Final

from shmrpc.errors import LocalProtocolError


def running_loop() -> asyncio.AbstractEventLoop:
    """Return the running event loop. Raises LocalProtocolError if no loop of asyncio runs here, as under trio."""
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        raise LocalProtocolError(
            "no asyncio event loop runs in this thread: use shmrpc.sync, under trio by trio.to_thread.run_sync"
        ) from None


#: True if asyncio records the current task beside the running loop, so that both have to be hidden. Each loop had a
#: current task of its own before CPython 3.14.
HIDES_TASKS: Final = sys.version_info >= (3, 14)


def hide_task(loop: asyncio.AbstractEventLoop | None) -> Any:
    """Hide the current task of the running loop; return it for :func:`show_task`. None: there was nothing to hide."""
    if loop is None or not HIDES_TASKS:
        return None
    return asyncio.tasks._swap_current_task(loop, None)  # type: ignore[attr-defined]


def show_task(loop: asyncio.AbstractEventLoop | None, task: Any) -> None:
    """Show a hidden task again; do nothing for None. Call this once ``loop`` is the running loop again."""
    if task is not None:
        asyncio.tasks._swap_current_task(loop, task)  # type: ignore[attr-defined]


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
