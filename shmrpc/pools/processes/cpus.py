"""How many CPUs this process may use."""

from __future__ import annotations

import math
import os
from pathlib import Path
from typing import Final

_CGROUPS: Final = Path("/sys/fs/cgroup")
#: The variables by which numerical libraries learn how many threads to use.
_THREADS: Final = (
    "OMP_NUM_THREADS",
    "OPENBLAS_NUM_THREADS",
    "MKL_NUM_THREADS",
    "BLIS_NUM_THREADS",
    "VECLIB_MAXIMUM_THREADS",
    "NUMEXPR_NUM_THREADS",
)


def thread_limits(workers: int) -> dict[str, str]:
    """Return the environment in which numerical libraries of ``workers`` processes share the CPUs.

    What the environment of this process says stays as it is.
    """
    share = str(max(1, usable() // workers))
    return {name: share for name in _THREADS if name not in os.environ}


def usable(cgroups: Path = _CGROUPS, own: Path = Path("/proc/self/cgroup")) -> int:
    """The CPUs of its affinity, or fewer if its cgroup may use less time of them; 1 at least."""
    count = len(os.sched_getaffinity(0))
    quota = min(_quotas(cgroups, own), default=math.inf)
    return max(1, min(count, math.ceil(quota) if math.isfinite(quota) else count))


def _quotas(cgroups: Path, own: Path) -> list[float]:
    """What its cgroup, and those that it lies in, may use, in CPUs."""
    found: list[float] = []
    try:
        lines = own.read_text().splitlines()
    except OSError:
        return found
    for line in lines:
        _, controllers, place = line.split(":", 2)
        group = Path(place.lstrip("/"))
        if not controllers:
            found += [_share(cgroups / each / "cpu.max") for each in (group, *group.parents)]
        elif "cpu" in controllers.split(","):
            base = cgroups / "cpu"
            found += [_legacy(base / each) for each in (group, *group.parents)]
    return found


def _share(path: Path) -> float:
    try:
        quota, period = path.read_text().split()
        return math.inf if quota == "max" else int(quota) / int(period)
    except (OSError, ValueError, ZeroDivisionError):
        return math.inf


def _legacy(group: Path) -> float:
    try:
        quota = int((group / "cpu.cfs_quota_us").read_text())
        period = int((group / "cpu.cfs_period_us").read_text())
        return quota / period if quota > 0 else math.inf
    except (OSError, ValueError, ZeroDivisionError):
        return math.inf
