"""Interruptions between two instructions of shmrpc: an exception, as of a signal handler, or a call."""

from __future__ import annotations

import asyncio
import contextlib
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from types import CodeType, FrameType
from typing import Any, Final

import shmrpc

NAME: Final = "tested.interrupted"
service = shmrpc.Service(NAME)
_OURS: Final = str(Path(shmrpc.__file__).parent)

_under_way = 0


@contextlib.contextmanager
def _counted() -> Iterator[None]:
    global _under_way
    _under_way += 1
    try:
        yield
    finally:
        _under_way -= 1


@service.endpoint
def add(a: int, b: int) -> int:
    return a + b


@service.endpoint
async def later(value: int, seconds: float = 0.001) -> int:
    with _counted():
        await asyncio.sleep(seconds)
        return value


@service.endpoint
async def count(n: int, pause: float = 0.0) -> AsyncIterator[int]:
    with _counted():
        for i in range(n):
            yield i
            if pause:
                await asyncio.sleep(pause)


@service.endpoint
async def total(numbers: AsyncIterator[int]) -> int:
    with _counted():
        return sum([number async for number in numbers])


@service.endpoint
async def doubled(numbers: AsyncIterator[int]) -> AsyncIterator[int]:
    with _counted():
        async for number in numbers:
            yield 2 * number


@service.endpoint
def under_way() -> int:
    """Return the number of running handlers."""
    return _under_way


class Interrupted(Exception):
    """The exception of signal handlers. An Exception, so that tests find each `except Exception` that drops it."""


class Steps:
    """A trace of this thread's instructions in shmrpc, which calls ``act`` at one of them.

    The next instruction after a native function's return is one of them, too.
    """

    def __init__(self, at: int = -1, act: Callable[[], object] = lambda: None) -> None:
        #: The number of instructions so far.
        self.count = 0
        #: The place of the call of ``act``.
        self.place = ""
        self._at = at
        self._act = act
        self._known: dict[CodeType, bool] = {}

    @contextlib.contextmanager
    def followed(self) -> Iterator[None]:
        """Trace the block."""
        before = sys.gettrace()
        sys.settrace(self._calls)
        try:
            yield
        finally:
            sys.settrace(before)

    def _calls(self, frame: FrameType, event: str, argument: Any) -> Any:
        code = frame.f_code
        known = self._known.get(code)
        if known is None:
            known = self._known[code] = code.co_filename.startswith(_OURS) and code.co_name != "__del__"
        if not known:
            return None
        frame.f_trace_opcodes = True
        frame.f_trace_lines = False
        return self._instructions

    def _instructions(self, frame: FrameType, event: str, argument: Any) -> Any:
        # An instruction without a line is the compiler's end of an except clause, where Python runs no signal handler.
        if event == "opcode" and frame.f_lineno is not None:
            self.count += 1
            if self.count == self._at and not is_deleting(frame):
                self.place = f"{frame.f_code.co_qualname} line {frame.f_lineno} instruction {frame.f_lasti}"
                self._act()
        return self._instructions


def is_deleting(frame: FrameType | None) -> bool:
    """Return True inside a finalizer, where Python itself drops exceptions."""
    while frame is not None:
        if frame.f_code.co_name == "__del__":
            return True
        frame = frame.f_back
    return False
