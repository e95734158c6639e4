"""The number of CPUs that this process may use, and how workers share them."""

from __future__ import annotations

import math
import os
from pathlib import Path
from typing import Final

_CGROUPS: Final = Path("/sys/fs/cgroup")
#: Variables that set the number of threads of numerical libraries.
_THREAD_VARIABLES: Final = (
    "OMP_NUM_THREADS",
    "OPENBLAS_NUM_THREADS",
    "MKL_NUM_THREADS",
    "BLIS_NUM_THREADS",
    "VECLIB_MAXIMUM_THREADS",
    "NUMEXPR_NUM_THREADS",
)


def thread_limits(workers: int) -> dict[str, str]:
    """Return environment variables with which the numerical libraries of ``workers`` processes share the CPUs.

    Variables that are set in this process are left out.
    """
    share = str(max(1, usable_cpus() // workers))
    return {name: share for name in _THREAD_VARIABLES if name not in os.environ}


def usable_cpus(cgroups: Path = _CGROUPS, own_cgroup: Path = Path("/proc/self/cgroup")) -> int:
    """Return the number of CPUs in the affinity of this process, or fewer if its cgroup limits CPU time; at least 1.

    A limit that is no whole number of CPUs is rounded up.
    """
    count = len(os.sched_getaffinity(0))
    quota = min(_quotas(cgroups, own_cgroup), default=math.inf)
    return max(1, min(count, math.ceil(quota) if math.isfinite(quota) else count))


def _quotas(cgroups: Path, own_cgroup: Path) -> list[float]:
    """Return the quotas, in CPUs, of the cgroup of this process and of those above it; infinity for one without.

    Returns an empty list if the cgroup cannot be read.
    """
    found: list[float] = []
    try:
        lines = own_cgroup.read_text().splitlines()
    except OSError:
        return found
    for line in lines:
        _, controllers, path = line.split(":", 2)
        group = Path(path.lstrip("/"))
        if not controllers:
            found += [_read_v2_quota(cgroups / each / "cpu.max") for each in (group, *group.parents)]
        elif "cpu" in controllers.split(","):
            base = cgroups / "cpu"
            found += [_read_v1_quota(base / each) for each in (group, *group.parents)]
    return found


def _read_v2_quota(path: Path) -> float:
    """Return the quota in a file of cgroup v2, in CPUs; infinity if there is none."""
    try:
        quota, period = path.read_text().split()
        return math.inf if quota == "max" else int(quota) / int(period)
    except (OSError, ValueError, ZeroDivisionError):
        return math.inf


def _read_v1_quota(group: Path) -> float:
    """Return the quota of a cgroup of v1, in CPUs; infinity if there is none."""
    try:
        quota = int((group / "cpu.cfs_quota_us").read_text())
        period = int((group / "cpu.cfs_period_us").read_text())
        return quota / period if quota > 0 else math.inf
    except (OSError, ValueError, ZeroDivisionError):
        return math.inf
