"""How many values Hypothesis draws for a test, and which.

They are the same at each run, so that one does not fail by chance; with SHMRPC_LONG=1 in the environment they are new
ones. Nor does a run fail because the machine is slow.
"""

from __future__ import annotations

import os

from hypothesis import HealthCheck, settings


def drawn(number: int) -> settings:
    """The settings of a test with so many examples."""
    new = os.environ.get("SHMRPC_LONG") == "1"
    return settings(
        max_examples=number,
        deadline=None,
        derandomize=not new,
        database=None,
        suppress_health_check=[HealthCheck.too_slow],
    )
