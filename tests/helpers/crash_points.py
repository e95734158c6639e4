"""Crash points: lines of Python, and points in a native core that is built with them."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import signal
import struct
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from types import CodeType, FrameType
from typing import Any, Final

import pytest

ROOT: Final = Path(__file__).parents[2]
#: The core that `make crashpoints` builds.
CORE: Final = ROOT / "core" / "target" / "crashpoints" / "lib_core.so"

#: The files whose lines are crash points.
FILES: Final = (
    "transport/shm/handshake.py",
    "transport/shm/segment.py",
    "host/service_socket.py",
    "host/connect_retry.py",
    "host/rendezvous.py",
    "transport/shm/acceptor.py",
    "transport/connection.py",
    "transport/shared_memory_ops.py",
    "transport/listener.py",
    "transport/shm/server.py",
    "transport/shm/peer.py",
    "transport/shm/loop_client.py",
    "transport/shm/loop_connection.py",
    "transport/shm/thread_client.py",
    *(
        str(path.relative_to(ROOT / "shmrpc"))
        for folder in ("client", "server", "streams")
        for path in (ROOT / "shmrpc" / folder).rglob("*.py")
    ),
)

#: The same for shared objects.
FILES_OF_NAMES: Final = tuple(
    f"{folder}/{path.name}"
    for folder in ("objects", "locks", "shared_memory", "queues", "topics", "stores", "discovery")
    for path in (ROOT / "shmrpc" / folder).glob("*.py")
)

#: The native points that only shared objects reach, and no call.
POINTS_OF_NAMES: Final = frozenset(
    (
        "EntryLockHeld",
        "MemoryNamed",
        "MemoryMade",
        "MemoryReady",
        "MemberLocked",
        "MemberEntered",
        "PermitTaken",
        "PermitFreed",
        "Signalled",
        "SignalTaken",
        "EventSet",
        "SlotWoken",
        "RecoveryBegun",
        "PermitRecovered",
        "Recovered",
        "LeaveBegun",
        "MemberLeft",
        "MemoryRemoved",
    )
)

#: Points that only a queue reaches.
POINTS_OF_QUEUES: Final = frozenset(
    ("ItemsWritten", "ItemsPut", "ItemsTaken", "ItemClaimed", "ClaimEnded", "ClaimRecovered")
)

#: Points that only a store reaches.
POINTS_OF_STORES: Final = frozenset(
    (
        "StoreInitialized",
        "StoreChanged",
        "TransactionBegun",
        "TransactionMarked",
        "TransactionEnded",
        "MessageTaken",
        "BufferPinned",
        "BufferUnpinned",
        "WatchBegun",
        "WatchEnded",
        "StoreRecovered",
        "OnlyWordStored",
        "NumberTaken",
        "LogWritten",
        "LogCounted",
        "LogWordStored",
        "LogEnded",
        "LogSettled",
        "RedoBegun",
        "RedoWordStored",
        "RedoDone",
        "HeapGrown",
        "HeapFreed",
        "HeapPunched",
        "DeadContainersRemoved",
        "RepairPunched",
    )
)

#: Points that only the failover of a store reaches.
POINTS_OF_COPIES: Final = frozenset(("ReplaceBegun", "CopyMade", "CopyFound", "CopyUsed"))

#: Points that only the single writer of a store reaches, and points of its readers.
POINTS_OF_OWNERS: Final = frozenset(
    ("OwnerBegun", "ContentsMade", "ContentsFound", "ReadersWoken", "OwnerChangeCommitted")
)
POINTS_OF_READERS: Final = frozenset(("ReaderFollows", "ReaderPinned", "ReaderWatches"))

#: Points that only a reader reaches that completes the commit of a dead writer.
POINTS_OF_MENDING: Final = frozenset(("MendBegun",))

#: A line, by file and number, or a native point, by name and the number of times it was reached.
CrashPoint = tuple[str, int]


def require_core() -> None:
    """Fail the test if the core with crash points is missing or out of date."""
    sources = [*(ROOT / "core" / "src").rglob("*.rs"), ROOT / "core" / "Cargo.toml"]
    if not CORE.exists():
        pytest.fail(f"{CORE} is missing: run `make crashpoints`")
    if CORE.stat().st_mtime < max(path.stat().st_mtime for path in sources):
        pytest.fail(f"{CORE} is older than its sources: run `make crashpoints`")


def use_core() -> None:
    """Load the core with crash points instead of the usual one. Call this before shmrpc is imported."""
    assert "shmrpc" not in sys.modules
    spec = importlib.util.spec_from_file_location("shmrpc._core", CORE)
    assert spec is not None
    assert spec.loader is not None
    core = importlib.util.module_from_spec(spec)
    sys.modules["shmrpc._core"] = core
    spec.loader.exec_module(core)
    assert hasattr(core, "crash_at"), f"{CORE} has no points: run `make crashpoints`"


def _core() -> Any:
    return sys.modules["shmrpc._core"]


def passed() -> list[CrashPoint]:
    """Return the native points, and how often this process has reached each."""
    return list(_core().crash_points())


def die_at_point(name: str, times: int, obituary: int) -> None:
    """Kill the process when it reaches this point for the given time; write the time of death to ``obituary``."""
    _core().crash_at(name, times, signal.SIGKILL, obituary)


def stop_at_point(name: str, times: int) -> None:
    """Stop the process when it reaches this point for the given time, until SIGCONT."""
    _core().crash_at(name, times, signal.SIGSTOP, -1)


class Lines:
    """Traces the lines that Python executes in some files, in this thread and in threads that start later."""

    def __init__(self, files: Sequence[str] = FILES) -> None:
        #: By code, the file as it stands in ``files``, if it is of one of them.
        self._known: dict[CodeType, str | None] = {}
        self._files = {str(ROOT / "shmrpc" / name): name for name in files}
        #: In the order in which they were first reached.
        self.reached: dict[CrashPoint, None] = {}
        self._place: CrashPoint | None = None
        self._obituary = -1

    def record(self) -> None:
        """Record executed lines in :attr:`reached` from now on."""
        self._begin()

    def die_at(self, place: CrashPoint, obituary: int) -> None:
        """Kill the process just before this line; write the time of death to ``obituary``."""
        self._place, self._obituary = place, obituary
        self._begin()

    def _begin(self) -> None:
        threading.settrace(self._calls)
        sys.settrace(self._calls)

    def _file_of(self, code: CodeType) -> str | None:
        file = self._files.get(code.co_filename)
        if file is not None and self._place is not None:
            lines = {line for _, _, line in code.co_lines()}
            return file if self._place[0] == file and self._place[1] in lines else None
        return file

    def _calls(self, frame: FrameType, event: str, argument: Any) -> Any:
        code = frame.f_code
        if code not in self._known:
            self._known[code] = self._file_of(code)
        return None if self._known[code] is None else self._lines

    def _lines(self, frame: FrameType, event: str, argument: Any) -> Any:
        if event == "line":
            place = str(self._known[frame.f_code]), frame.f_lineno
            if self._place is None:
                self.reached.setdefault(place)
            elif place == self._place:
                die(self._obituary)
        return self._lines


def die(obituary: int) -> None:
    """Kill this process with SIGKILL; write the time of death to ``obituary``."""
    with contextlib.suppress(OSError):
        os.write(obituary, struct.pack("=Q", time.monotonic_ns()))
    os.kill(os.getpid(), signal.SIGKILL)
    time.sleep(60)  # Another thread may receive the signal first.
