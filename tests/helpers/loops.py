"""On which loop a test runs: on both, asyncio's and uvloop's, unless it says that this makes no difference to it.

A test says so with one of these marks. A module whose tests are all of that kind says ``LOOP = "uvloop"`` instead, or
``LOOP = "asyncio"``.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

import pytest
import uvloop

LOOPS: Final[dict[str, Callable[[], asyncio.AbstractEventLoop]]] = {
    "asyncio": asyncio.new_event_loop,
    "uvloop": uvloop.new_event_loop,
}

#: For what has nothing to do with the loop.
one_loop = pytest.mark.asyncio(loop_factories=["uvloop"])
#: The same, where tests beside it take the other one.
other_loop = pytest.mark.asyncio(loop_factories=["asyncio"])
