"""What ends the program, and what only a call: SystemExit, KeyboardInterrupt and their like."""

from __future__ import annotations

import functools
import inspect
import signal
import threading
from types import CodeType
from typing import Any


def is_for_the_program(error: BaseException) -> bool:
    """Whether a signal's handler raised this while an endpoint ran, as Ctrl-C does: it is to end the program.

    What an endpoint raises by itself is its call's failure, ``sys.exit()`` included. The two are told apart by the
    traceback, in which the signal's handler stands. Python's own handler of SIGINT leaves no trace there: as long as
    it is installed, every KeyboardInterrupt is taken for a Ctrl-C. ``asyncio.run()`` installs another one.
    """
    if isinstance(error, Exception) or threading.current_thread() is not threading.main_thread():
        return False
    if isinstance(error, KeyboardInterrupt) and signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        return True
    handlers = {_code_of(signal.getsignal(number)) for number in signal.valid_signals()}
    trace = error.__traceback__
    while trace is not None:
        if trace.tb_frame.f_code in handlers:
            return True
        trace = trace.tb_next
    return False


def _code_of(handler: Any) -> CodeType | None:
    """What a signal's handler runs, if it is written in Python."""
    while isinstance(handler, functools.partial):
        handler = handler.func
    if not inspect.isroutine(handler) and callable(handler):
        handler = type(handler).__call__
    code = getattr(handler, "__code__", None)  # Of a method it is the function's.
    return code if isinstance(code, CodeType) else None
