"""The names of parametrised tests' cases."""

from __future__ import annotations

import re


def case_name(value: object) -> str:
    """Return a value's repr as its name, without the address, which differs between the processes of a run."""
    return re.sub(r" at 0x[0-9a-f]+", "", repr(value))
