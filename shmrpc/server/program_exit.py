"""The distinction of a SystemExit, KeyboardInterrupt or the like that ends the program from one that ends a call."""

from __future__ import annotations

import signal
import threading

from shmrpc.basics.signals import is_from_signal_handler


def is_program_exit(error: BaseException) -> bool:
    """Return True if a signal handler raised the error while an endpoint ran, as Ctrl-C does.

    Always False for an Exception, and outside of the main thread.

    An error that the endpoint raises itself, such as ``sys.exit()``, is a failure of its call. The traceback tells the
    two apart: it contains the signal handler. Python's own SIGINT handler leaves no frame in it; while that handler is
    installed, every KeyboardInterrupt counts as Ctrl-C. ``asyncio.run()`` installs a different handler.
    """
    if isinstance(error, Exception) or threading.current_thread() is not threading.main_thread():
        return False
    if isinstance(error, KeyboardInterrupt) and signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        return True
    return is_from_signal_handler(error)
