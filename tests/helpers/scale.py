"""How much of a test is run: a short form in ``make test``, the long one in ``make torture``."""

from __future__ import annotations

import os
from typing import Final

#: Whether this is ``make torture``.
LONG: Final = os.environ.get("SHMRPC_TORTURE") == "1"


def scaled(short: int, long: int) -> int:
    """So many of what a test tries."""
    return long if LONG else short
