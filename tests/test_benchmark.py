"""The benchmark runs, answers every question, and judges every target."""

from __future__ import annotations

import asyncio
import contextlib
import importlib.util
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import click
import pytest

from benchmark import large, one_way, plot, sweep, unix_socket
from benchmark.rivals import inter_process_py_objects, large_socket
from benchmark.rows import Row, row
from benchmark.targets import verdicts
from benchmark.work import nested
from tests.test_docs import ROOT

PROCESSES = ("process, uvloop", "process, asyncio", "UNIX socket, uvloop")


@pytest.fixture(scope="module")
def result(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[dict[str, object]]]:
    path = tmp_path_factory.mktemp("benchmark") / "result.json"
    command = [sys.executable, "-m", "benchmark", "--quick", "--json", str(path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT, timeout=240)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "Targets" in done.stdout
    parsed: dict[str, list[dict[str, object]]] = json.loads(path.read_text())
    return parsed


def test_every_question_is_answered(result: dict[str, list[dict[str, object]]]) -> None:
    asked = {str(found["question"]) for found in result["rows"]}
    assert asked == {
        "floor", "small", "large", "every 2 ms", "64 in flight", "stream", "options", "ticker", "8 clients", "idle",
        "busy", "memory", "array, there and back", "1 MB of bytes", "mean of a frame", "one way, 400 KB",
        *(f"{length:,} {kind}" for kind in ("ints", "bytes") for length in sweep.LENGTHS),
    }  # fmt: skip
    small = {str(found["subject"]) for found in result["rows"] if found["question"] == "small"}
    assert small == {
        "direct, uvloop", "thread to thread, uvloop", "thread to thread, asyncio", "process, sync",
        "process, uvloop", "process, asyncio", "UNIX socket, uvloop",
    }  # fmt: skip
    assert subjects(result, "array, there and back") == {"64 KB", "1 MB", "64 MB"}
    assert subjects(result, "1 MB of bytes") == {*PROCESSES, large.SMALL_PEER}
    assert subjects(result, "mean of a frame") == {large.ALONE, large.CALLED, large.SPINNING}
    assert subjects(result, "one way, 400 KB") == {
        one_way.BYTES, one_way.VIEW, one_way.RIVAL, one_way.FLOOR, one_way.HOT,
    }  # fmt: skip


def subjects(result: dict[str, list[dict[str, object]]], question: str) -> set[str]:
    return {str(found["subject"]) for found in result["rows"] if found["question"] == question}


def test_every_row_has_figures(result: dict[str, list[dict[str, object]]]) -> None:
    for found in result["rows"]:
        if found["question"] in ("small", "large", "every 2 ms"):
            p50, p99, p999 = (float(str(found[name])) for name in ("p50", "p99", "p999"))
            assert 0 < p50 <= p99 <= p999
            assert float(str(found["calls_per_second"])) > 0
            assert float(str(found["cpu"])) > 0
        elif found["question"] in ("idle", "memory"):
            assert found["extra"]
        elif found["question"] in ("array, there and back", "1 MB of bytes", "mean of a frame"):
            assert 0 < float(str(found["p50"])) <= float(str(found["p99"]))


def test_one_way_messages_are_told_in_bytes_a_second_beside_their_floor(
    result: dict[str, list[dict[str, object]]],
) -> None:
    rows = {str(found["subject"]): found for found in result["rows"] if found["question"] == one_way.QUESTION}
    for name, found in rows.items():
        extra: Any = found["extra"]
        if name == one_way.RIVAL and found["note"]:
            assert "pip install --group rivals" in str(found["note"]) or "/dev/shm" in str(found["note"])
        else:
            assert extra["GB/s"] == pytest.approx(float(str(found["calls_per_second"])) * 400_000 / 1e9)
    peak: Any = rows[one_way.BYTES]["extra"]
    floor: Any = rows[one_way.FLOOR]["extra"]
    # One message is there at least, all of them at most; the floor has the same memory.
    assert 0.4 <= peak["MB in use"] == floor["MB in use"] <= 410


def test_the_sweep_has_every_length_of_both_kinds(result: dict[str, list[dict[str, object]]]) -> None:
    rows = [Row(**found) for found in result["rows"]]  # type: ignore[arg-type]
    for kind in ("ints", "bytes"):
        found = sweep.lines(rows, kind)
        assert set(found) == set(PROCESSES)
        for line in found.values():
            assert sorted(line) == [10, 100, 1_000, 10_000, 100_000, 1_000_000]
            for length, each in line.items():
                assert each.extra["bytes"] >= length
                assert each.p50 is not None
                assert each.extra["MB/s"] == pytest.approx(2 * each.extra["bytes"] / each.p50)
    assert sweep.table(rows).row_count == 12


def test_every_target_is_judged(result: dict[str, list[dict[str, object]]]) -> None:
    assert len(result["targets"]) == 30
    for verdict in result["targets"]:
        # A rival that is not there is no target met.
        missing = one_way.RIVAL in str(verdict["target"]) and subject_note(result, one_way.RIVAL)
        assert verdict["met"] is None if missing else isinstance(verdict["met"], bool)


def subject_note(result: dict[str, list[dict[str, object]]], subject: str) -> str:
    (note,) = (str(found["note"]) for found in result["rows"] if found["subject"] == subject)
    return note


def test_percentiles_are_those_of_the_calls() -> None:
    made = row("q", "s", [{"latencies": list(range(1000, 0, -1)), "calls": 1000, "seconds": 2.0, "cpu": 0.5}])
    assert (made.p50, made.p99, made.p999) == (0.501, 0.991, 1.0)
    assert (made.calls_per_second, made.cpu) == (500, 500)


def test_targets_can_be_missed() -> None:
    slow = [
        Row("floor", "ping-pong of a word", p50=0.3),
        Row("small", "process, uvloop", p50=2.1),
        Row("small", "process, asyncio", p50=1.9),
        Row("small", "UNIX socket, uvloop", p50=60.0),
    ]
    assert [verdict.met for verdict in verdicts(slow)] == [False, True]


def large_rows(*, good: bool) -> list[Row]:
    """Rows on the one side of each target for large data, or on the other."""
    rate = 25_000.0 if good else 10_000.0
    return [
        Row(large.ARRAYS, "64 KB", p50=10),
        Row(large.ARRAYS, "64 MB", p50=15 if good else 15.1),
        *(Row(large.MEGABYTE, name, p50=100 if good else 101) for name in PROCESSES[:2]),
        Row(large.MEGABYTE, "UNIX socket, uvloop", p50=500),
        Row(large.MEGABYTE, large.SMALL_PEER, p50=5000),
        Row(one_way.QUESTION, one_way.BYTES, calls_per_second=rate, extra={"GB/s": rate * 4e-4, "MB in use": 12.0}),
        Row(one_way.QUESTION, one_way.RIVAL, calls_per_second=12_500 if good else 5_001),
        Row(one_way.QUESTION, one_way.FLOOR, calls_per_second=31_000 if good else 12_501),
        Row(large.FRAME, large.ALONE, p50=2000),
        Row(large.FRAME, large.CALLED, extra={"µs more than alone": 19.9 if good else 20.0}),
        Row(large.FRAME, large.SPINNING, extra={"µs more than alone": 5.0}),
    ]


def test_targets_for_large_data_can_be_met_and_missed() -> None:
    assert [verdict.met for verdict in verdicts(large_rows(good=True))] == [True] * 6
    assert [verdict.met for verdict in verdicts(large_rows(good=False))] == [False] * 6


def test_a_target_whose_rival_is_missing_is_not_measured() -> None:
    rows = [each for each in large_rows(good=True) if each.subject != one_way.RIVAL]
    rows.append(Row(one_way.QUESTION, one_way.RIVAL, note="not installed (pip install --group rivals)"))
    found = {verdict.target: verdict for verdict in verdicts(rows)}[f"≥ 2 × {one_way.RIVAL}"]
    assert (found.met, found.measured) == (None, "not installed (pip install --group rivals)")


def without(monkeypatch: pytest.MonkeyPatch, package: str) -> None:
    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name, *rest: None if name == package else find(name, *rest))


def test_a_rival_that_is_not_installed_says_how_to(monkeypatch: pytest.MonkeyPatch) -> None:
    without(monkeypatch, "ipc_py_objects")
    with contextlib.ExitStack() as stack:
        assert one_way.start_rival(stack) == (None, "not installed (pip install --group rivals)")


def test_a_rival_that_cannot_be_imported_says_why(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "ipc_py_objects.py").write_text("raise ImportError('half of it is missing')")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(inter_process_py_objects, "SIZE", 0)
    with contextlib.ExitStack() as stack:
        rival, note = one_way.start_rival(stack)
    assert rival is None
    assert note == "cannot be imported: half of it is missing (pip install --group rivals)"


def test_a_rival_needs_room(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: name)
    monkeypatch.setattr(inter_process_py_objects, "SIZE", 1 << 60)
    with contextlib.ExitStack() as stack:
        assert one_way.start_rival(stack) == (None, f"needs {1 << 40} MiB of /dev/shm")


def test_a_plot_is_refused_before_anything_is_measured(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    without(monkeypatch, "matplotlib")
    with pytest.raises(click.UsageError, match="not installed: pip install --group plots"):
        plot.check(tmp_path / "sweep.png")
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: name)
    plot.check(tmp_path / "sweep.png")
    with pytest.raises(click.UsageError, match="there is no directory"):
        plot.check(tmp_path / "nowhere" / "sweep.png")


def test_the_plot_is_a_picture(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    rows = [
        Row(f"{length:,} {kind}", name, p50=length / 10, extra={"length": length, "bytes": length, "MB/s": 20.0})
        for kind in ("ints", "bytes")
        for length in sweep.LENGTHS
        for name in PROCESSES
    ]
    plot.draw(rows, tmp_path / "sweep.png")
    assert (tmp_path / "sweep.png").read_bytes().startswith(b"\x89PNG")


async def test_the_peer_for_large_frames_cuts_them_where_they_end(tmp_path: Path) -> None:
    path = str(tmp_path / "peer.sock")
    async with unix_socket.serve(large_socket.Server, path), unix_socket.connect(large_socket.Client, path) as client:
        for size in (0, 1, 262_100, 262_133, 262_144, 1_000_000, 3_000_000):
            assert await client.echo(b"x" * size) == b"x" * size
        # Many at once: frames that begin in one read and end in another.
        values = [bytes([number]) * (number * 7_919 % 300_007) for number in range(100)]
        assert await asyncio.gather(*map(client.echo, values)) == values


def test_the_nested_structure_is_of_the_size_that_it_claims() -> None:
    assert 30_000 < len(json.dumps(nested())) < 32_000
