"""Semaphores: permits that return at their holder's death, and signals that outlive their sender."""

from __future__ import annotations

from typing import Final, Literal, Self

from shmrpc._core import Hold
from shmrpc.basics.checks import check_count, public_class, public_name
from shmrpc.objects.arguments import check_timeout
from shmrpc.objects.handle import AwaitedHeld, BlockingHeld, Held, opened

#: The wait set of those that wait for a signal.
_SIGNALS: Final = 1


class SemaphoreBase(Held):
    """What a semaphore is in loops and in threads alike."""

    @public_name("Semaphore")
    def __new__(cls, name: str, permits: int = 1) -> Self:
        """Open the semaphore, and make it if nobody else has."""
        permits = check_count(f"semaphore {name!r}: permits", permits, 1, 65536)
        return cls._of(opened(name, "semaphore", permits))

    @property
    def permits(self) -> int:
        """How many permits it has in all."""
        return self._name.amount

    signal = Hold._signal

    def drain(self) -> int:
        """Drops the signals that no ``wait()`` has taken, and returns how many there were."""
        return self._name.drain()

    def _in_vain(self) -> str:
        return "no permit was free" if self.permits > 1 else "its permit was not free"


@public_class("shmrpc.Semaphore")
class Semaphore(SemaphoreBase, AwaitedHeld):
    """A semaphore of all processes that open its name.

    ``permits``: how many there are, 1 to 65536. The first process to open the name makes it, later ones need the same
    number. A permit belongs to the process that has acquired it, also if the handle is garbage-collected; if the
    process dies, or closes its last handle of the semaphore, the permit is free again.

    ``async with gate: ...`` holds a permit, and so does ``with gate: ...`` in a thread without an event loop; methods
    that block a thread are those of :class:`shmrpc.sync.Semaphore`. Of those that wait, whoever came first is served
    first; a permit that is free goes to whoever asks at that moment.

    Raises NameInUse if the name is open as something else, SharedMemoryError if there is no room, and
    LocalProtocolError if the directory where names are met is not safe.
    """

    async def wait(self, timeout: float | None = None) -> Literal[True]:
        """Waits for a signal, for ``timeout`` seconds at most, takes it and returns True. Cancelled, it takes none.

        Raises WaitTimeout, and WaitStopped after :meth:`stop`.
        """
        timeout = check_timeout(timeout)
        if not self._name.try_signal():
            await self._wait(self._name.try_signal, self._put_back, timeout, _SIGNALS)
        return True

    def _put_back(self) -> None:
        self._name.signal(1)


@public_class("shmrpc.sync.Semaphore")
class BlockingSemaphore(SemaphoreBase, BlockingHeld):
    """A :class:`shmrpc.Semaphore` whose methods block the thread that calls them."""

    wait = Hold._wait_signal
