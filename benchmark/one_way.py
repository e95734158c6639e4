"""The question of one-way messages: 1000 of 400 KB, as InterProcessPyObjects measures them."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import time
from typing import Any, Final

from benchmark.loads import Result
from benchmark.processes import Child, NotStarted
from benchmark.rivals import inter_process_py_objects as rival
from benchmark.rows import Row, row
from benchmark.subjects import Run, Subject

QUESTION: Final = "one way, 400 KB"
BYTES, VIEW = "bytes", "bytes, looked at where they lie"
RIVAL: Final = "InterProcessPyObjects 1.0.7"
FLOOR, HOT = "memcpy, as many places", "memcpy, one place"

_SIZE: Final = 400_000
_MESSAGES: Final = 1000


class _Rival:
    """Its two processes."""

    def __init__(self, stack: contextlib.ExitStack) -> None:
        name = f"shmrpc_benchmark_{os.getpid()}"
        self._sender = stack.enter_context(Child(rival.send, name))
        self._receiver = stack.enter_context(Child(rival.receive, name))

    def do(self) -> Result:
        """All messages; the receiver waits already."""
        before = self._receiver.cpu()
        self._receiver.order("receive", messages=_MESSAGES)
        time.sleep(0.05)
        result = self._sender.do("send", size=_SIZE, messages=_MESSAGES)
        self._receiver.result()
        result["cpu"] += self._receiver.cpu() - before
        return result


def _missing() -> str:
    """Why the rival cannot run here; empty if it can."""
    if importlib.util.find_spec("ipc_py_objects") is None:
        return "not installed (pip install --group rivals)"
    room = os.statvfs("/dev/shm")
    if room.f_bavail * room.f_frsize < rival.SIZE:
        return f"needs {rival.SIZE >> 20} MiB of /dev/shm"
    return ""


def start_rival(stack: contextlib.ExitStack) -> tuple[_Rival | None, str]:
    """The rival, or why there is none."""
    note = _missing()
    if note:
        return None, note
    try:
        return _Rival(stack), ""
    except NotStarted as error:
        return None, f"{error} (pip install --group rivals)"


def one_way(run: Run) -> list[Row]:
    """1000 messages of 400 KB that nobody answers, until the receiver has processed the last."""
    with contextlib.ExitStack() as stack:
        subject = Subject(stack, "large", "uvloop")
        other, note = start_rival(stack)
        results: dict[str, list[Result]] = {BYTES: [], VIEW: [], RIVAL: [], FLOOR: [], HOT: []}
        for number in range(-1, run.rounds):  # The first warms up.
            run.progress(f"{QUESTION}: round {number + 1} of {run.rounds}")
            found = _round(subject, other)
            if number >= 0:
                for name, result in found.items():
                    results[name].append(result)
    return [_row(name, rounds) if rounds else Row(QUESTION, name, note=note) for name, rounds in results.items()]


def _round(subject: Subject, other: _Rival | None) -> dict[str, Result]:
    """Each in turn. The copies have as much memory as the messages had before them."""

    def do(load: str, **parameters: Any) -> Result:
        return subject.do(load, size=_SIZE, messages=_MESSAGES, **parameters)

    found = {BYTES: do("one_way_messages", endpoint="take"), VIEW: do("one_way_messages", endpoint="look")}
    if other is not None:
        found[RIVAL] = other.do()
    peak = found[BYTES]["peak"]
    found[FLOOR] = {**do("copies", footprint=peak), "peak": peak}
    found[HOT] = do("copies", footprint=_SIZE)
    return found


def _row(name: str, rounds: list[Result]) -> Row:
    made = row(QUESTION, name, rounds)
    if name in (FLOOR, HOT):
        made.cpu = None  # In it is what the memory took that they copy to.
    made.extra["GB/s"] = (made.calls_per_second or 0.0) * _SIZE / 1e9
    peaks = sorted(result["peak"] for result in rounds if "peak" in result)
    if peaks:
        made.extra["MB in use"] = peaks[len(peaks) // 2] / 1e6
    return made
