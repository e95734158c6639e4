"""Programs whose standard library gevent or eventlet has patched: what works there, and what cannot."""

from __future__ import annotations

import asyncio
import select
import selectors
import sys
from asyncio.events import _get_running_loop, _set_running_loop
from collections.abc import Coroutine
from typing import Any

from shmrpc.errors import LocalProtocolError


def has_gevent() -> bool:
    """Return True if gevent has replaced this program's threads, and all that they wait on."""
    gevent = sys.modules.get("gevent.monkey")
    return gevent is not None and gevent.is_module_patched("threading")


def run_in_greenlet(main: Coroutine[Any, Any, None]) -> None:
    """Runs a coroutine in a loop of its own, in a greenlet of gevent's, beside others that may have loops too.

    They share a thread of the system's, for which Python knows one loop that runs: whenever this one waits, and so lets
    others go on, it leaves what it has found there.
    """
    found = _get_running_loop()
    _set_running_loop(None)

    class Selector(selectors.DefaultSelector):  # Gevent's.
        def select(self, timeout: float | None = None) -> Any:
            nonlocal found
            own = _get_running_loop()
            _set_running_loop(found)
            try:
                return super().select(timeout)
            finally:
                found = _get_running_loop()
                _set_running_loop(own)

    try:
        with asyncio.Runner(loop_factory=lambda: asyncio.SelectorEventLoop(Selector())) as runner:
            runner.run(main)
    finally:
        _set_running_loop(found)


def check_threads(what: str) -> None:
    """Raises LocalProtocolError if this program has no threads that ``what`` could use."""
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
    """A `select.poll()`, also where eventlet has removed that."""
    if not hasattr(select, "poll"):
        return sys.modules["eventlet.patcher"].original("select").poll()
    return select.poll()
