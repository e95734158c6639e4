"""Support for programs whose standard library gevent or eventlet has patched."""

from __future__ import annotations

import asyncio
import select
import selectors
import sys
from collections.abc import Coroutine
from typing import Any

from shmrpc.basics.loops import hide_loop, show_loop
from shmrpc.errors import LocalProtocolError


def has_gevent() -> bool:
    """Return True if gevent has patched ``threading``, as ``monkey.patch_all()`` does. Checks no other module."""
    gevent = sys.modules.get("gevent.monkey")
    return gevent is not None and gevent.is_module_patched("threading")


def run_in_greenlet(main: Coroutine[Any, Any, None]) -> None:
    """Run a coroutine to its end in a new event loop in the current greenlet. Other greenlets may have loops, too.

    Blocks this greenlet only, and raises the exception of the coroutine. All greenlets share one system thread, and
    Python records one running loop for each thread. While this loop waits and other greenlets run, the record shows the
    loop that was there before.
    """
    found = hide_loop()

    class Selector(selectors.DefaultSelector):  # Gevent has replaced DefaultSelector.
        def select(self, timeout: float | None = None) -> Any:
            nonlocal found
            own = hide_loop()
            show_loop(found)
            try:
                return super().select(timeout)
            finally:
                found = hide_loop()
                show_loop(own)

    try:
        with asyncio.Runner(loop_factory=lambda: asyncio.SelectorEventLoop(Selector())) as runner:
            runner.run(main)
    finally:
        show_loop(found)


def check_threads(what: str) -> None:
    """Raise LocalProtocolError if ``what``, which needs a thread, cannot have a working one.

    This is the case if gevent has patched ``queue`` or ``subprocess`` without ``threading``, or if eventlet has
    replaced threads. ``gevent.monkey.patch_all()`` is no such case.
    """
    gevent, eventlet = map(sys.modules.get, ("gevent.monkey", "eventlet.patcher"))
    if gevent is not None and not has_gevent() and any(map(gevent.is_module_patched, ("queue", "subprocess"))):
        raise LocalProtocolError(
            f"{what} needs a thread, and gevent has replaced a part of what threads use: patch all with gevent's "
            "monkey.patch_all()"
        )
    if eventlet is not None and eventlet.is_monkey_patched("thread"):
        raise LocalProtocolError(
            f"{what} needs a thread, and eventlet has replaced threads by its own: patch with eventlet's "
            "monkey_patch(thread=False)"
        )


def new_poll() -> Any:
    """Return a ``select.poll()`` object, even if eventlet has removed that function."""
    if not hasattr(select, "poll"):
        return sys.modules["eventlet.patcher"].original("select").poll()
    return select.poll()
