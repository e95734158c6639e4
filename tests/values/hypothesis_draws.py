"""The number of values that Hypothesis draws for a test, and their choice.

Each run draws the same values, so that no run fails by chance; with SHMRPC_LONG=1 in the environment it draws new
ones. No run fails because the machine is slow.
"""

from __future__ import annotations

import os

from hypothesis import HealthCheck, settings


def drawn(number: int) -> settings:
    """Return the settings of a test with so many examples."""
    new = os.environ.get("SHMRPC_LONG") == "1"
    return settings(
        max_examples=number,
        deadline=None,
        derandomize=not new,
        database=None,
        suppress_health_check=[HealthCheck.too_slow],
    )
