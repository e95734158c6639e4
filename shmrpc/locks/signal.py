"""Signals: each ends one wait, and stays pending until then."""

from __future__ import annotations

from typing import Literal, Self

from shmrpc._core import SharedObject, Signals
from shmrpc.basics.checks import public_class, public_name
from shmrpc.basics.drivers import ThreadsOnly
from shmrpc.objects.arguments import check_timeout
from shmrpc.objects.handle import AsyncContextHandle, ContextHandle, open_object


class SignalBase(Signals, ContextHandle):
    """The part of a signal that is the same in loops and in threads."""

    @public_name("Signal")
    def __new__(cls, name: str) -> Self:
        """Open the signal, and make it, with no signal pending, if no process has it open."""
        return cls._wrap(open_object(name, "signal", 0))

    @classmethod
    def _wrap(cls, shared_object: SharedObject) -> Self:
        """Make a handle of a signal that this process has opened. The handle closes the object."""
        handle = Signals.__new__(cls, shared_object)
        handle._bind(shared_object)
        return handle

    signal = Signals._signal

    def _timeout_cause(self) -> str:
        return "no signal came"


@public_class("shmrpc.Signal")
class Signal(AsyncContextHandle, SignalBase):
    """A counter of signals, which all processes that open its name share: each signal ends one :meth:`wait`.

    A signal stays pending until a wait consumes it, also when the sender has ended. ``drain()`` discards pending
    signals and returns their number. ``with`` and ``async with`` close the handle at the end of the block.

    Raises as :class:`Semaphore` does.
    """

    async def wait(self, timeout: float | None = None) -> Literal[True]:
        """Wait up to ``timeout`` seconds for a signal, consume it and return True. A cancelled call consumes none.

        ``timeout=None`` is no limit. Raises WaitTimeout, WaitStopped after :meth:`stop`, SharedMemoryError if too many
        loops and threads wait, and LocalProtocolError if the handle is closed.
        """
        timeout = check_timeout(timeout)
        if not self._try():
            await self._wait_in_loop(self._try, self.signal, timeout)
        return True


@public_class("shmrpc.sync.Signal")
class BlockingSignal(ThreadsOnly, SignalBase):
    """A :class:`shmrpc.Signal` whose :meth:`wait` blocks the thread that calls it."""

    wait = Signals._wait_signal
