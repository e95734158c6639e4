"""Recognition of exceptions raised by signal handlers, which Python may run between any two instructions."""

from __future__ import annotations

import functools
import inspect
import signal
import threading
from types import CodeType
from typing import Any


def is_from_signal_handler(error: BaseException) -> bool:
    """Return True if a Python signal handler raised the exception: then its traceback contains the handler.

    Knows only handlers that are installed now and written in Python; ``signal.default_int_handler`` is not. Returns
    False outside of the main thread.
    """
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
    """Return the code of a signal handler written in Python, or None."""
    while isinstance(handler, functools.partial):
        handler = handler.func
    if not inspect.isroutine(handler) and callable(handler):
        handler = type(handler).__call__
    code = getattr(handler, "__code__", None)  # A method has the code of its function.
    return code if isinstance(code, CodeType) else None
