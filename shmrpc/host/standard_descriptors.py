"""The descriptors of standard input, output and error."""

from __future__ import annotations

import errno
import os
from typing import Final

_LAST: Final = 2


def keep_standard_descriptors() -> None:
    """Open ``/dev/null`` for each standard descriptor that is closed, so that no other file gets its number.

    libuv aborts the program if it has to close such a number, and a child would mistake the file for its standard
    stream. Children inherit these descriptors, as they would those of a terminal. Raises OSError if ``/dev/null``
    cannot be opened.
    """
    try:
        while (opened := os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)) <= _LAST:
            os.set_inheritable(opened, True)
    except OSError as error:
        if error.errno != errno.EMFILE:
            raise
        return  # No descriptor is free, so the standard ones are open.
    os.close(opened)
