"""What ends the program, and what only a call: SystemExit, KeyboardInterrupt and their like."""

from __future__ import annotations

import signal
import threading

from shmrpc.basics.signals import is_from_signal_handler


def is_program_exit(error: BaseException) -> bool:
    """Whether a signal's handler raised this while an endpoint ran, as Ctrl-C does: it is to end the program.

    What an endpoint raises by itself is its call's failure, ``sys.exit()`` included. The two are told apart by the
    traceback, in which the signal's handler stands. Python's own handler of SIGINT leaves no trace there: as long as
    it is installed, every KeyboardInterrupt is taken for a Ctrl-C. ``asyncio.run()`` installs another one.
    """
    if isinstance(error, Exception) or threading.current_thread() is not threading.main_thread():
        return False
    if isinstance(error, KeyboardInterrupt) and signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        return True
    return is_from_signal_handler(error)
