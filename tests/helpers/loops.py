"""The event loops of a test: asyncio's and uvloop's, unless the loop makes no difference to the test.

Such a test has one of the marks below. A module of such tests sets ``LOOP = "uvloop"`` or ``LOOP = "asyncio"``. A
module of long tests, whose parts other tests cover on both loops, sets ``LOOP = "either"``: each test runs on one loop,
which depends on its name, and on both in the long form.
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
    """Return the loops of a test of this name. ``module``: the ``LOOP`` of its module, or None."""
    if module is None or (module == "either" and os.environ.get("SHMRPC_LONG") == "1"):
        return LOOPS
    only = in_order_of_loops(test)[0] if module == "either" else module
    return {only: LOOPS[only]}


#: Mark of a test that does not depend on the loop.
one_loop = pytest.mark.asyncio(loop_factories=["uvloop"])
#: The same, on the other loop, where the tests beside it use uvloop.
other_loop = pytest.mark.asyncio(loop_factories=["asyncio"])
