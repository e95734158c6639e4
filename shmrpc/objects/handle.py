"""What all names have in common: opening, closing, waiting, and the words for a wait that was in vain."""

from __future__ import annotations

import asyncio
import atexit
import functools
import logging
import os
import weakref
from collections.abc import Callable, Coroutine
from types import TracebackType
from typing import TYPE_CHECKING, Any, ClassVar, Final, Literal, NoReturn, Self, TypeVar, cast

from shmrpc._core import Hold, Name
from shmrpc.basics.drivers import OpenOnAwait, ThreadsOnly
from shmrpc.basics.loops import running_loop
from shmrpc.errors import LocalProtocolError, WaitTimeout
from shmrpc.host.processes import describe_process, describe_stopped
from shmrpc.objects import lock_files
from shmrpc.objects.arguments import check_timeout
from shmrpc.objects.not_copyable import Uncopied
from shmrpc.objects.wait_queue import Line, stopped_wait

_log = logging.getLogger("shmrpc")


def warn_of_dropped() -> None:
    """Logs which queues this process has ended as their last member, with items in them."""
    for name, count in Name.take_dropped():
        items = "1 item that waited is" if count == 1 else f"{count} items that waited are"
        _log.warning(
            "queue %r: its last process has closed it, and %s gone: keep it open in a process that stays, or call"
            " join() before the end",
            name,
            items,
        )


atexit.register(warn_of_dropped)
atexit.register(Name.leave_all)  # It is called first.


def opened(name: str, kind: str, amount: int, bounds: tuple[int, int] = (0, 0), raw: bool = False) -> Name:
    """Opens a name, and makes it if nobody else has. Raises NameInUse, SharedMemoryError and LocalProtocolError."""
    return Name(name, lock_files.path_to_open(name), kind, amount, bounds, raw)


_F = TypeVar("_F", bound=Callable[..., Any])


def closes_on_error(make: _F) -> _F:
    """Let a method that makes a handle of a name close the name if it fails.

    Else the name would stay open as long as the error is referred to.
    """

    @functools.wraps(make)
    def made(cls: type, name: Name, *args: Any, **options: Any) -> Any:
        try:
            return make(cls, name, *args, **options)
        except BaseException:
            name.close()
            raise

    return cast("_F", made)


class Made:
    """A handle that a function makes, and not its class: the class says which."""

    _made_by: ClassVar[str]

    if not TYPE_CHECKING:

        def __new__(cls, *arguments: object, **options: object) -> NoReturn:
            """Raise TypeError, which names the function."""
            face = "shmrpc.sync" if issubclass(cls, ThreadsOnly) else "shmrpc"
            raise TypeError(f"{face}.{cls.__name__} is a type: open one by {face}.{cls._made_by}(name)")


_L = TypeVar("_L", bound=Line)
#: The functions that open names of these kinds, where they are not called as the kind.
_MAKERS: Final = {"semaphore": "Semaphore", "lock": "Lock", "event": "Event"}


class Handle(Uncopied):
    """A name that this process has open, as one of its members."""

    #: The function that opens another handle like this one.
    _opened_by: ClassVar = "attach"
    _name: Name
    _lines: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, dict[int, Line]]

    @classmethod
    def _of(cls, name: Name) -> Self:
        """Makes a handle of a name that this process has opened."""
        handle = object.__new__(cls)
        handle._name = name
        handle._lines = weakref.WeakKeyDictionary()
        return handle

    @property
    def name(self) -> str:
        """The name."""
        return self._name.name

    def close(self) -> None:
        """Closes it. Again: nothing.

        With the last use of a name this process leaves it, and gives back what it holds; with the last process the name
        is gone. Waits end with LocalProtocolError.
        """
        self._name.close()
        for lines in self._lines.values():
            for line in lines.values():
                line.close()

    def stop(self) -> None:
        """Ends all waits of this handle, and those that begin from now on, with WaitStopped."""
        self._name.stop(True)

    def resume(self) -> None:
        """Lets this handle wait again after :meth:`stop`."""
        self._name.stop(False)

    def __repr__(self) -> str:
        closed = ", closed" if self._name.is_closed else ""
        return f"<shmrpc {self._name.kind} {self.name!r}{self._role()}{closed}>"

    def _role(self) -> str:
        """What it is for, where a name has handles of several kinds, and how it was opened."""
        return ""

    def _kind_and_factory(self) -> tuple[str, str]:
        """Return the kind and name of this object, and the function that opens objects of its kind."""
        kind = self._name.kind
        maker = self._opened_by if self._opened_by != "attach" else _MAKERS.get(kind, kind)
        return f"{kind} {self.name!r}", maker

    def _what_instead(self) -> tuple[str, str]:
        face = "shmrpc.sync" if isinstance(self, ThreadsOnly) else "shmrpc"
        opened = f"open it by its name in the other process: {face}.{self._opened_by}({self.name!r})"
        return f"{self._name.kind} {self.name!r}", f"{opened}; within this one, share the handle"

    def _line(self, place: int, kind: type[_L]) -> _L:
        """The line of this loop for one of the name's wait sets, always of the same kind."""
        loop = running_loop()
        lines = self._lines.setdefault(loop, {})
        line = lines.get(place)
        if line is None:
            line = lines[place] = kind(self._name, place, loop)
        assert isinstance(line, kind)
        return line

    async def _wait(
        self,
        take: Callable[[], bool],
        undo: Callable[[], None],
        timeout: float | None,
        place: int = 0,
        insist: Callable[[], bool] | None = None,
    ) -> None:
        """Waits in the loop until ``take()`` is true, as :meth:`Line.wait` does. Raises WaitTimeout and WaitStopped."""
        if not await self._line(place, Line).wait(take, undo, timeout, insist):
            self._timed_out(timeout, place)

    def _block(self, wait: Callable[[float | None], bool | None], timeout: float | None, place: int = 0) -> None:
        """Waits in a thread. Raises WaitTimeout and WaitStopped."""
        waited = wait(timeout)
        if not waited:
            self._gave_up(waited, timeout, place)

    def _gave_up(self, waited: bool | None, timeout: float | None, place: int) -> NoReturn:
        """Raises what a thread's wait ends with that was in vain: over, or None for one that was stopped."""
        if waited is None:
            raise stopped_wait(self._name)
        self._timed_out(timeout, place)

    def _timed_out(self, timeout: float | None, place: int) -> NoReturn:
        why = "no signal came" if place else self._in_vain()
        holders = "" if place else self._held_by()
        raise WaitTimeout(f"{self._name.kind} {self.name!r}: {why} within {timeout:g} s{holders}")

    def _is_single(self) -> bool:
        """Whether there is one to be held."""
        return self._name.kind != "semaphore" or self._name.amount == 1

    def _in_vain(self) -> str:
        """What has not happened."""
        raise NotImplementedError

    def _held_by(self) -> str:
        """Who has what was waited for."""
        holders = []
        for pid, _, held in self._name.report()["members"]:
            if held:
                holder = "this process" if pid == os.getpid() else describe_process(pid)
                holders.append(f"{holder} has {'it' if self._is_single() else held}{describe_stopped(pid)}")
        return f": {', '.join(holders)}" if holders else ""


class Closing(Handle):
    """A name that ``with`` closes at the end of the block."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.close()


class AsyncClosing(OpenOnAwait, Handle):
    """A name that ``async with`` closes at the end of the block."""

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None
    ) -> None:
        self.close()


class Held(Hold, Handle):
    """What is acquired and released."""

    def locked(self) -> bool:
        """Return True if an acquire would wait now, because no permit is free."""
        return self._locked()

    @classmethod
    def _of(cls, name: Name, reentrant: bool = False) -> Self:
        """Makes a handle of a name that this process has opened; ``reentrant`` as in :class:`Lock`."""
        handle = Hold.__new__(cls, name, reentrant)
        handle._name = name
        handle._lines = weakref.WeakKeyDictionary()
        return handle

    def _refuse_to_block(self) -> NoReturn:
        raise LocalProtocolError(
            f"{self._name.kind} {self.name!r}: 'with' would block the event loop of this thread; use 'async with'"
        )


class BlockingHeld(ThreadsOnly, Held):
    """What is acquired and released in threads."""

    acquire = Hold._acquire


class AwaitedHeld(OpenOnAwait, Held):
    """What is acquired and released in event loops, and by ``with`` in threads without one."""

    __aenter__ = Hold._aenter
    __aexit__ = Hold._aexit

    def acquire(self, timeout: float | None = None) -> Coroutine[Any, Any, Literal[True]]:
        """Waits until it is acquired, for ``timeout`` seconds at most, and returns True. Cancelled, it is not acquired.

        A lock is held by the task that calls this, whichever task awaits it: so ``wait_for``, ``gather``, ``shield``
        and ``create_task`` may have it.

        Raises WaitTimeout, which names who has it, and WaitStopped after :meth:`stop`.
        """
        acquiring = self._acquire_for(self._owner(), check_timeout(timeout))
        # For Python's warning that it was never awaited.
        acquiring.__qualname__ = f"{type(self).__name__}.acquire"  # type: ignore[attr-defined]
        return acquiring

    async def _acquire_for(self, owner: int, timeout: float | None) -> Literal[True]:
        if self._try(owner, True) or self._regain():
            return True
        is_apart = owner != self._owner()  # Else it would wait for itself.
        if not self._try(owner, is_apart):
            take = functools.partial(self._try, owner, is_apart)
            insist = functools.partial(self._insist, owner, is_apart)
            await self._wait(take, functools.partial(self._give_back, owner), timeout, insist=insist)
        return True

    async def _enter(self, owner: int) -> None:
        """Acquires it for ``async with``, which found that it is not free."""
        await self._acquire_for(owner, None)
