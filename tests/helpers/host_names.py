"""The names of shmrpc in /dev/shm, which all tests of the host share, also those of other runs.

A test may ask that nothing of its own is left, and wait for that: names live for the moments of a handshake, a leak
stays. A test that leaves names for a clean-up to find has the host to itself meanwhile.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Iterator
from pathlib import Path

from shmrpc.host import cleanup
from tests.helpers.server_process import eventually

SHM = Path("/dev/shm")


def ours_in_shm(service: str = "tested") -> list[str]:
    """Return the names in /dev/shm of this service, by default of all services of the tests."""
    ours = (f"shmrpc.{service}.", f"sem.shmrpc.{service}.")
    return sorted(name for name in os.listdir(SHM) if name.startswith(ours))


def nothing_is_left(before: list[str]) -> bool:
    """Return True if within a generous time every name of the tests is one of ``before``."""
    return eventually(lambda: set(ours_in_shm()) <= set(before))


@contextlib.contextmanager
def host_to_oneself() -> Iterator[None]:
    """Keep other tests from using or removing the remains of dead processes during the block."""
    shm = os.open(SHM, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(shm, fcntl.LOCK_EX)
        yield
    finally:
        os.close(shm)


def swept() -> bool:
    """Remove what dead servers left; return True if no name of the tests remains."""
    with host_to_oneself():
        cleanup.clean()
    return eventually(lambda: not ours_in_shm())


def assert_none_left(name: str, runtime: Path) -> None:
    """Assert that nothing of a shared object is left; remove leftovers first."""
    left = [each for each in os.listdir(SHM) if f"shmrpc.{name}@" in each]
    left += [each for each in os.listdir(runtime) if f"{name}@" in each] if runtime.exists() else []
    with host_to_oneself():
        cleanup.clean()
    assert left == []
