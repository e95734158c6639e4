"""The benchmark runs, answers every question, and judges every target."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from benchmark.rows import Row, row
from benchmark.targets import verdicts
from benchmark.work import nested
from tests.test_docs import ROOT


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
        "busy", "memory",
    }  # fmt: skip
    small = {str(found["subject"]) for found in result["rows"] if found["question"] == "small"}
    assert small == {
        "direct, uvloop", "thread to thread, uvloop", "thread to thread, asyncio", "process, sync",
        "process, uvloop", "process, asyncio", "UNIX socket, uvloop",
    }  # fmt: skip


def test_every_row_has_figures(result: dict[str, list[dict[str, object]]]) -> None:
    for found in result["rows"]:
        if found["question"] in ("small", "large", "every 2 ms"):
            p50, p99, p999 = (float(str(found[name])) for name in ("p50", "p99", "p999"))
            assert 0 < p50 <= p99 <= p999
            assert float(str(found["calls_per_second"])) > 0
            assert float(str(found["cpu"])) > 0
        elif found["question"] in ("idle", "memory"):
            assert found["extra"]


def test_every_target_is_judged(result: dict[str, list[dict[str, object]]]) -> None:
    assert len(result["targets"]) == 24
    assert all(isinstance(verdict["met"], bool) for verdict in result["targets"])


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


def test_the_nested_structure_is_of_the_size_that_it_claims() -> None:
    assert 30_000 < len(json.dumps(nested())) < 32_000
