"""How frames travel: what the layers above may know of it.

Between processes that is :mod:`shmrpc.transport.shm`, and within one loop, for tests, :mod:`shmrpc.transport.memory`.
Nothing above this line knows what a segment is.
"""

from __future__ import annotations

import asyncio
import warnings
from collections.abc import Callable
from typing import NamedTuple

from shmrpc.errors import ConnectionLost, LocalProtocolError, ShmrpcError
from shmrpc.wire.codec import Body

#: Opcode, call id, body.
Frame = tuple[int, int, Body]
#: A frame has come.
OnFrame = Callable[[int, int, Body], None]


class End(NamedTuple):
    """Why a connection is over."""

    error: ShmrpcError
    #: The highest id of a call that the server took, if it said so. Later ones were not executed.
    reached: int | None = None


#: The connection is over.
OnEnd = Callable[[End], None]


def wrong_loop(service: str, loop: asyncio.AbstractEventLoop) -> LocalProtocolError:
    """The error for a use of a client outside of its loop."""
    if loop.is_closed():
        return LocalProtocolError(f"the event loop of this client of {service!r} was closed; connect again")
    return LocalProtocolError("this client belongs to another event loop; connect once in each loop")


def warn_unclosed(service: str, source: object) -> None:
    """Warns of a client that was dropped open; to be called when it is closed, since the warning may be an error."""
    warnings.warn(f"unclosed client of {service!r}", ResourceWarning, source=source, stacklevel=3)


def interruption(service: str, error: BaseException) -> ConnectionLost:
    """The error for those who wait on a connection whose frames were being taken when something else was raised."""
    return ConnectionLost(
        f"the connection to {service!r} was closed: {type(error).__name__} was raised while its frames were taken, as "
        "by a signal handler, and what was just taken is lost"
    )
