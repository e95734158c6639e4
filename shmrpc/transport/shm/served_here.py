"""Which services this process serves, and in which loop: a thread that waits for its own loop would wait for ever."""

from __future__ import annotations

import asyncio
import weakref
from typing import Protocol

from shmrpc.errors import LocalProtocolError


class _Listener(Protocol):
    service: str
    loop: asyncio.AbstractEventLoop


#: By their ids, those that are not closed.
_listening: weakref.WeakValueDictionary[int, _Listener] = weakref.WeakValueDictionary()


def begin(listener: _Listener) -> None:
    """Its loop serves its service from now on."""
    _listening[id(listener)] = listener


def end(listener: _Listener) -> None:
    """It does so no longer. Again: nothing."""
    _listening.pop(id(listener), None)


def check_thread(service: str) -> None:
    """LocalProtocolError if the calling thread runs the loop that serves this service."""
    try:
        loop = asyncio.get_running_loop()
    except RuntimeError:
        return
    for listener in [reference() for reference in _listening.valuerefs()]:
        if listener is not None and listener.service == service and listener.loop is loop:
            raise LocalProtocolError(
                f"service {service!r} is served by the event loop of this very thread, which cannot answer while the "
                f"thread waits for it: use `async with shmrpc.connect({service!r})` here, or wait in another thread "
                "(asyncio.to_thread)"
            )
