"""Where a run was made: without it its figures say little."""

from __future__ import annotations

import contextlib
import datetime
import importlib.metadata
import os
import platform
import subprocess
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import shmrpc
from benchmark.subjects import Subject

#: Packages that several subjects and shmrpc itself use.
_COMMON = ("msgspec", "msgpack", "uvloop")


def before(subjects: Iterable[Subject], *, pinned: bool) -> dict[str, Any]:
    """Return the facts that are known before the run."""
    cpuinfo = _read("/proc/cpuinfo")
    models = [line.partition(": ")[2] for line in cpuinfo.splitlines() if line.startswith("model name")]
    virtual = _read("/sys/hypervisor/type") or ("yes" if " hypervisor" in cpuinfo else "no")
    return {
        "cpu": models[0] if models else platform.machine(),
        "usable cpus": len(os.sched_getaffinity(0)),
        "governor": _read("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor") or "not readable",
        "virtual machine": virtual,
        "kernel": platform.release(),
        "python": f"{platform.python_implementation()} {platform.python_version()}",
        "shmrpc": shmrpc.__version__,
        "commit": _commit(),
        "packages": versions(subjects),
        "pinned": pinned,
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "load before": _load(),
    }


def after(seconds: float) -> dict[str, Any]:
    """Return the facts that are known after the run."""
    return {"load after": _load(), "seconds": round(seconds, 1)}


def lines(environment: dict[str, Any]) -> list[tuple[str, str]]:
    """Return the environment as names and texts."""
    made = []
    for name, value in environment.items():
        if isinstance(value, dict):
            text = ", ".join(f"{key} {each}" for key, each in value.items())
        elif isinstance(value, list):
            text = ", ".join(map(str, value))
        else:
            text = {True: "yes", False: "no"}[value] if isinstance(value, bool) else str(value)
        made.append((name, text))
    return made


def versions(subjects: Iterable[Subject]) -> dict[str, str]:
    """Return the packages of those subjects that are installed, by their names in the index."""
    modules = {*_COMMON, *(need.partition(".")[0] for subject in subjects for need in subject.needs)}
    providers = importlib.metadata.packages_distributions()
    packages = {name for module in modules for name in providers.get(module, [])}
    return {name: importlib.metadata.version(name) for name in sorted(packages, key=str.lower)}


def _read(path: str) -> str:
    with contextlib.suppress(OSError):
        return Path(path).read_text().strip()
    return ""


def _load() -> list[float]:
    return [round(each, 2) for each in os.getloadavg()]


def _commit() -> str:
    """Return the commit of the tree that is measured, if there is one."""
    commit = _git("rev-parse", "--short=12", "HEAD")
    if not commit:
        return "unknown"
    return f"{commit} and changes" if _git("status", "--porcelain", "--untracked-files=no") else commit


def _git(*arguments: str) -> str:
    with contextlib.suppress(OSError, subprocess.SubprocessError):
        command = ["git", "-C", str(Path(__file__).parent), *arguments]
        return subprocess.run(command, capture_output=True, text=True, check=True, timeout=10).stdout.strip()
    return ""
