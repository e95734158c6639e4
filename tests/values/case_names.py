"""The names of parametrised tests' cases."""

from __future__ import annotations

import re


def case_name(value: object) -> str:
    """A value as its name: its repr without the address, which is another one in each of the processes of a run."""
    return re.sub(r" at 0x[0-9a-f]+", "", repr(value))
