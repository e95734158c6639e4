"""The size of a test: the short form in ``make test``, the long form in ``make torture``."""

from __future__ import annotations

import os
from typing import Final

#: True in ``make torture``.
LONG: Final = os.environ.get("SHMRPC_TORTURE") == "1"


def scaled(short: int, long: int) -> int:
    """Return the number of repetitions for the current form."""
    return long if LONG else short
