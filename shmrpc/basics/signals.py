"""Recognises exceptions raised by signal handlers, which Python may run between any two instructions of ours."""

from __future__ import annotations

import functools
import inspect
import signal
import threading
from types import CodeType
from typing import Any


def is_of_a_handler(error: BaseException) -> bool:
    """Whether a signal handler written in Python has raised an exception: the traceback then contains it."""
    if threading.current_thread() is not threading.main_thread():
        return False
    handlers = {_code_of(signal.getsignal(number)) for number in signal.valid_signals()}
    trace = error.__traceback__
    while trace is not None:
        if trace.tb_frame.f_code in handlers:
            return True
        trace = trace.tb_next
    return False


def _code_of(handler: Any) -> CodeType | None:
    """The code of a signal handler that is written in Python."""
    while isinstance(handler, functools.partial):
        handler = handler.func
    if not inspect.isroutine(handler) and callable(handler):
        handler = type(handler).__call__
    code = getattr(handler, "__code__", None)  # A method has its function's.
    return code if isinstance(code, CodeType) else None
