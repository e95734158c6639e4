"""The descriptors of standard input, output and error."""

from __future__ import annotations

import errno
import os
from typing import Final

_LAST: Final = 2


def keep_standard_descriptors() -> None:
    """Sees to it that no file of ours gets the number of a standard one which is closed: ``/dev/null`` does.

    libuv ends the program if it is to close such a number, and a process that inherits it takes it for what it is not.
    Processes that this one starts inherit these, as they would those of a terminal.
    """
    try:
        while (opened := os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)) <= _LAST:
            os.set_inheritable(opened, True)
    except OSError as error:
        if error.errno != errno.EMFILE:
            raise
        return  # No number is free, so none of the standard ones is.
    os.close(opened)
