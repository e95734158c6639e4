"""On which loop a test runs: on both, asyncio's and uvloop's, unless it says that this makes no difference to it.

A test says so with one of these marks. A module whose tests are all of that kind says ``LOOP = "uvloop"`` instead, or
``LOOP = "asyncio"``. One whose tests take long, and rest on what others test on both loops, says ``LOOP = "either"``:
each of its tests is run on the loop that its name falls to, and on both in the long form.
"""

from __future__ import annotations

import asyncio
import os
import zlib
from collections.abc import Callable
from typing import Final

import pytest
import uvloop

LOOPS: Final[dict[str, Callable[[], asyncio.AbstractEventLoop]]] = {
    "asyncio": asyncio.new_event_loop,
    "uvloop": uvloop.new_event_loop,
}


def in_order_of_loops(test: str) -> list[str]:
    """Return the loop on which a test of this name runs if it runs on one only, and then the other."""
    first = zlib.crc32(test.encode()) % len(LOOPS)
    return sorted(LOOPS)[first:] + sorted(LOOPS)[:first]


def loops_of(module: str | None, test: str) -> dict[str, Callable[[], asyncio.AbstractEventLoop]]:
    """The loops of a test of this name, by what its module says; None: nothing."""
    if module is None or (module == "either" and os.environ.get("SHMRPC_LONG") == "1"):
        return LOOPS
    only = in_order_of_loops(test)[0] if module == "either" else module
    return {only: LOOPS[only]}


#: For what has nothing to do with the loop.
one_loop = pytest.mark.asyncio(loop_factories=["uvloop"])
#: The same, where tests beside it take the other one.
other_loop = pytest.mark.asyncio(loop_factories=["asyncio"])
