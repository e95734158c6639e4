"""Where a process dies: at a line of Python, or at a point of the native core that is built for that."""

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
#: What `make crashpoints` builds.
CORE: Final = ROOT / "core" / "target" / "crashpoints" / "lib_core.so"

#: The files in which each line is a place to die.
FILES: Final = (
    "transport/shm/handshake.py",
    "transport/shm/segment.py",
    "host/rendezvous.py",
    "transport/shm/acceptor.py",
    "transport/connection.py",
    "transport/shared_memory_ops.py",
    "transport/listener.py",
    "transport/shm/server.py",
    "transport/shm/loop_client.py",
    "transport/shm/thread_client.py",
    *(
        str(path.relative_to(ROOT / "shmrpc"))
        for folder in ("client", "server", "streams")
        for path in (ROOT / "shmrpc" / folder).rglob("*.py")
    ),
)

#: The same for names with members.
FILES_OF_NAMES: Final = tuple(
    f"{folder}/{path.name}"
    for folder in ("objects", "locks", "shared_memory", "queues", "topics", "stores", "discovery")
    for path in (ROOT / "shmrpc" / folder).glob("*.py")
)

#: The native points that only a name with members passes, and no conversation.
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

#: Those that only a queue passes.
POINTS_OF_QUEUES: Final = frozenset(
    ("ItemsWritten", "ItemsPut", "ItemsTaken", "ItemClaimed", "ClaimEnded", "ClaimRecovered")
)

#: Those that only a store passes.
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

#: Those that only one passes who replaces a store by a copy.
POINTS_OF_COPIES: Final = frozenset(("ReplaceBegun", "CopyMade", "CopyFound", "CopyUsed"))

#: Those that only an owner of a store passes, and its readers.
POINTS_OF_OWNERS: Final = frozenset(
    ("OwnerBegun", "ContentsMade", "ContentsFound", "ReadersWoken", "OwnerChangeCommitted")
)
POINTS_OF_READERS: Final = frozenset(("ReaderFollows", "ReaderPinned", "ReaderWatches"))

#: Those that only a reader passes that ends the half commit of a dead owner.
POINTS_OF_MENDING: Final = frozenset(("MendBegun",))

#: A line by file and number, or a native point by name and how often it was passed.
Place = tuple[str, int]


def require_core() -> None:
    """Fails the test that needs the core of its own if there is none, or an old one."""
    sources = [*(ROOT / "core" / "src").rglob("*.rs"), ROOT / "core" / "Cargo.toml"]
    if not CORE.exists():
        pytest.fail(f"{CORE} is missing: run `make crashpoints`")
    if CORE.stat().st_mtime < max(path.stat().st_mtime for path in sources):
        pytest.fail(f"{CORE} is older than its sources: run `make crashpoints`")


def use_core() -> None:
    """In a process that is to die: the core with points in the place of the other. Before shmrpc is imported."""
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


def passed() -> list[Place]:
    """The native points, and how often this process has passed each."""
    return list(_core().crash_points())


def die_at_point(name: str, times: int, obituary: int) -> None:
    """From now on the process dies when it passes this point for so many times. The time goes to ``obituary``."""
    _core().crash_at(name, times, signal.SIGKILL, obituary)


def stop_at_point(name: str, times: int) -> None:
    """From now on the process stops when it passes this point for so many times, until it is continued."""
    _core().crash_at(name, times, signal.SIGSTOP, -1)


class Lines:
    """Follows what Python executes of some files, in all threads that begin from now on and in this one."""

    def __init__(self, files: Sequence[str] = FILES) -> None:
        #: By code, the file as it stands in ``files``, if it is of one of them.
        self._known: dict[CodeType, str | None] = {}
        self._files = {str(ROOT / "shmrpc" / name): name for name in files}
        #: In the order in which they were first reached.
        self.reached: dict[Place, None] = {}
        self._place: Place | None = None
        self._obituary = -1

    def record(self) -> None:
        """From now on what is executed is kept in :attr:`reached`."""
        self._begin()

    def die_at(self, place: Place, obituary: int) -> None:
        """The process dies just before it executes this line. The time of that goes to ``obituary``."""
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
    """As ``kill -9`` does it; the time of that goes to ``obituary``."""
    with contextlib.suppress(OSError):
        os.write(obituary, struct.pack("=Q", time.monotonic_ns()))
    os.kill(os.getpid(), signal.SIGKILL)
    time.sleep(60)  # The signal may come to another thread first.
